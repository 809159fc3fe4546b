"""What an abort storm has shown, as one HTML file that stands alone.

Names and details may come from a foreign server. All text goes through :func:`printable` and through Jinja's escaping;
the page's content security policy forbids scripts and requests.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Final

from kvlatch.commands.storm import laws
from kvlatch.commands.storm.report import (
    COUNTS,
    ROOMS_SHOWN,
    UNKNOWN,
    cautions,
    chance,
    doubts,
    groups,
    held,
    printable,
    window,
)
from kvlatch.reference.live.records import Conclusion, Run, Storm

_TEMPLATE: Final = Path(__file__).with_name("report.html")
_TONES: Final[dict[Conclusion, str]] = {
    "treatment fixes it": "good",
    "treatment helps": "open",
    "drains": "good",
    "treatment is worse": "bad",
    "pins": "bad",
    "no difference": "open",
    "inconclusive": "open",
    "refused": "open",
}


def html(storm: Storm) -> str:
    """The report as one HTML file, to be written in UTF-8; it needs nothing else and asks for nothing."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    from kvlatch.commands.storm.plot import NARROW, WIDE, svg

    environment = Environment(
        autoescape=True, finalize=_finalize, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    builds = groups(storm)
    page: str = template.render(
        storm=storm,
        tone=_TONES[storm.conclusion],
        chance=chance(storm.p),
        window=window(storm),
        cautions=cautions(storm),
        groups=builds,
        counts=COUNTS,
        plots={
            name: Markup(svg({group.label: group.runs for group in builds}, size))  # noqa: S704  # it escapes names
            for name, size in {"wide": WIDE, "narrow": NARROW}.items()
        },
        laws=laws.reports(storm),
        held=held(storm),
        doubts=doubts(storm),
        shown=ROOMS_SHOWN,
        check=_check_command,
        any_pinned=any(run.counts.pinned or run.pinned for run in storm.runs),
        any_fault=any(run.faults or run.left_behind for run in storm.runs),
        settings={
            name: value if isinstance(value, str) else json.dumps(value) for name, value in storm.settings.items()
        },
    )
    return page


def _finalize(value: object) -> object:
    """How the template shows what it is given."""
    if value is None:
        return UNKNOWN
    if type(value) is int:
        return f"{value:,}"
    return printable(value) if type(value) is str else value


def _check_command(run: Run) -> str | None:
    """The command that checks the log of a run."""
    return None if run.log is None else shlex.join(["kvlatch", "check", str(run.log)])
