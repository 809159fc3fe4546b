"""JUnit reports, which every CI can show. The one writer of them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, escaped or not: control characters, and halves of a surrogate pair."""


@attrs.frozen
class Case:
    """One case. ``failure`` says why it failed, ``skipped`` why it was not judged; it passed if both are None.

    The first line of ``failure`` is its message, the rest (a run of the subject, say) its text. ``file`` and ``line``
    are the place to blame, ``seconds`` is how long the case took, None if nobody measured it.
    """

    owner: str
    name: str
    failure: str | None = None
    seconds: float | None = None
    skipped: str | None = None
    file: str | None = None
    line: int | None = None


def write(path: Path, suite: str, cases: Sequence[Case]) -> None:
    """Write the cases as one suite; OSError if the file cannot be written."""
    failures = sum(case.failure is not None for case in cases)
    skipped = sum(case.skipped is not None for case in cases)
    seconds = f"{sum(case.seconds or 0 for case in cases):.6f}"
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    root = ET.Element("testsuite", {"name": _clean(suite), **counts, "time": seconds})
    for case in cases:
        place = {"file": case.file, "line": None if case.line is None else str(case.line)}
        time = None if case.seconds is None else f"{case.seconds:.6f}"
        about = {"classname": case.owner, "name": case.name, "time": time, **place}
        known = {name: _clean(value) for name, value in about.items() if value is not None}
        element = ET.SubElement(root, "testcase", known)
        if case.failure is not None:
            first, _, rest = _clean(case.failure).partition("\n")
            ET.SubElement(element, "failure", message=first).text = rest or None
        if case.skipped is not None:
            ET.SubElement(element, "skipped", message=_clean(case.skipped))
    ET.indent(root)
    path.write_bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
