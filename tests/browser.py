"""A page in a headless browser: what it became, what it wrote to the console, what it asked for."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import attrs
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is installed")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--hide-scrollbars",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--dump-dom",
]
DARK = "--blink-settings=preferredColorScheme=0"
BY_ITSELF = "not an origin"
"""What the browser's own requests have in the place of an initiator; those of a page have its origin."""


@attrs.frozen
class Visit:
    """What became of a page: the document after it had loaded, what it wrote to the console, what it asked for."""

    document: str
    console: list[str]
    asked: list[str]


def visit(page: Path, *flags: str, fragment: str = "") -> Visit:
    """Open a file, as a window of its own if ``flags`` say so (``--window-size=400,900``), at ``#fragment``."""
    net = page.with_suffix(".net.json")
    command = [
        str(BROWSER),
        *FLAGS,
        f"--user-data-dir={page.with_suffix('.profile')}",
        f"--log-net-log={net}",
        *flags,
        page.as_uri() + fragment,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    events = json.loads(net.read_text())["events"]
    asked = [
        event["params"]["url"]
        for event in events
        if event.get("params", {}).get("initiator", BY_ITSELF) != BY_ITSELF and "url" in event["params"]
    ]
    return Visit(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line], asked)
