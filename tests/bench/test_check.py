"""The score of the log judge: its logs are what they say, and its counting goes both ways."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench import check
from bench.check import Case, Result, judged
from bench.subjects.logs.faults import FAULTS, keys
from bench.subjects.logs.forms import FORMS, KEEPS_FAULTS, swapped, whole, written
from bench.subjects.logs.healthy import healthy
from kvlatch.reference.laws import LAWS

FAULT = FAULTS[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_does_everything_once(seed: int) -> None:
    """Counted from the events alone: each request is created, concluded, cleared, released and settled once."""
    events = healthy(seed)
    done = Counter((e["room"], e["node"], e["rank"], e["request"], e["op"]) for e in events)
    created = {key[:4] for key in done if key[4] == "create"}
    for op in ("create", "conclude", "clear", "release", "settle"):
        assert {key[:4]: done[key] for key in done if key[4] == op} == dict.fromkeys(created, 1), op
    reading: Counter[tuple[Any, ...]] = Counter()
    failed = set()
    for event in events:
        key = tuple(event[name] for name in ("room", "node", "rank", "request"))
        if event["op"] in ("post", "arrive", "fail"):
            reading[key] += 1 if event["op"] == "post" else -1
        if event["op"] == "release":
            assert reading[key] == 0
            failed.discard(key)
        if event.get("status") == "Failed" and event["op"] == "abort":
            failed.add(key)
        if key in failed and event["op"] in ("write", "poll"):
            assert event["status"] in ("Failed", "Absent")
        if key in failed and event["op"] == "clear":
            failed.discard(key)


def test_each_fault_can_be_planted_and_changes_one_table() -> None:
    planted: Counter[str] = Counter()
    for seed in range(20):
        events = healthy(seed)
        for key in keys(events):
            for fault in FAULTS:
                changed = fault.planted(events, key)
                if changed is not None:
                    planted[fault.name] += 1
                    assert changed != events
    assert set(planted) == {fault.name for fault in FAULTS}
    assert {fault.law for fault in FAULTS} <= set(LAWS)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_forms_are_forms_of_the_same_run() -> None:
    events = healthy(1)
    for form in FORMS:
        shown = form([dict(event) for event in events], random.Random(1))  # noqa: S311  # no secret
        assert 0 < len(shown) <= len(events)
    swap = swapped(events, random.Random(1))  # noqa: S311  # no secret
    assert swap != events
    assert sorted(swap, key=lambda event: float(event["time"])) == sorted(events, key=lambda e: float(e["time"]))


def test_what_is_written_is_version_2() -> None:
    events = healthy(1)
    lines = gzip.decompress(written(events, packed=True)).decode().splitlines()
    assert json.loads(lines[0]) == {"kvlatch-log": 2}
    assert [json.loads(line) for line in lines[1:]] == events


@pytest.mark.parametrize(
    ("case", "exit_code", "broken", "reason"),
    [
        (Case(1, whole), 0, {}, ""),
        (Case(1, whole), 1, {FAULT.law: "so it is"}, f"{FAULT.law}: so it is"),
        (Case(1, whole), 2, {}, "exit 2"),
        (Case(1, whole, FAULT), 1, {FAULT.law: "so it is"}, ""),
        (Case(1, whole, FAULT), 0, {}, "missed, exit 0"),
    ],
)
def test_it_counts_both_ways(case: Case, exit_code: int, broken: dict[str, str], reason: str) -> None:
    result = Result(case, exit_code, broken)
    assert result.reason().startswith(reason)
    assert bool(result.reason()) == bool(reason)
    assert result.named == (case.fault is not None and bool(broken))


def test_a_sample_is_judged(tmp_path: Path) -> None:
    """The judge itself, on one healthy log and on one with a fault."""
    well, ill = judged(Case(1, whole), tmp_path), judged(Case(1, whole, FAULT), tmp_path)
    assert well is not None
    assert ill is not None
    assert (well.reason(), ill.reason(), ill.named) == ("", "", True)


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--only", "nobody"]) == 2
    assert FAULT.name in capsys.readouterr().err
    assert {form.__name__ for form in KEEPS_FAULTS} <= {form.__name__ for form in FORMS}
