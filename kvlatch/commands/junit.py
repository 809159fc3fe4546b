"""JUnit reports, which every CI can show."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import attrs


@attrs.frozen
class Case:
    """One case; ``failure`` says why it failed, None that it did not. ``seconds`` is how long it took."""

    owner: str
    name: str
    failure: str | None = None
    seconds: float = 0.0


def write(path: Path, suite: str, cases: Sequence[Case]) -> None:
    """Write the cases as one suite."""
    failures = sum(case.failure is not None for case in cases)
    root = ET.Element("testsuite", name=suite, tests=str(len(cases)), failures=str(failures))
    for case in cases:
        element = ET.SubElement(root, "testcase", classname=case.owner, name=case.name, time=f"{case.seconds:.3f}")
        if case.failure is not None:
            first, _, rest = case.failure.partition("\n")
            ET.SubElement(element, "failure", message=first).text = rest or None
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
