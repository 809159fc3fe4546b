"""Parts of the rooms, checked by themselves, add up to the whole: counts, findings, order, faults."""

from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.events import OPS, STATUSES, LogError
from kvlatch.reference.logs.parts import Part
from kvlatch.reference.logs.report import Report
from tests.reference.logs.log_files import ndjson, parquet

LOGS = Path(__file__).parents[2] / "logs"
ROOMS = st.one_of(st.integers(0, 6), st.sampled_from([2**63, 2**64 - 1, "a", "b", "7"]))
EVENTS = st.fixed_dictionaries(
    {"room": ROOMS, "op": st.sampled_from([*OPS, "create", "write", "poll", "clear", "tell"])},
    optional={
        "status": st.sampled_from(STATUSES), "incoming": st.sampled_from(STATUSES[:-1]),
        "node": st.sampled_from(["p", "d"]), "rank": st.integers(0, 1), "request": st.sampled_from(["1", "2"]),
        "thread": st.sampled_from(["w", "s"]), "time": st.sampled_from([0.0, 1.0, 2.0, 900.0]),
        "chunk": st.integers(0, 1), "last": st.booleans(),
    },
)  # fmt: skip

LATE = [{"room": 1, "op": "write", "status": "Failed", "thread": "w", "time": 2.0},
        {"room": 2, "op": "poll", "status": "Success", "thread": "w", "time": 1.0},
        {"room": 1, "op": "write", "status": "Transferring", "thread": "w", "time": 0.0}]  # fmt: skip
"""Lines of one worker that came late, in one room and across two."""


def apart(path: Path, of: int, **options: Any) -> Report:
    """What the parts say together; all of them end where the first one had to."""
    reports = [check(path, part=Part(number, of), **options) for number in range(of)]
    stops = [report.stop for report in reports if report.stop]
    if stops:
        reports = [check(path, part=Part(number, of), until=min(stops), **options) for number in range(of)]
    forth, back = reduce(Report.merge, reports), reduce(Report.merge, reversed(reports))
    assert forth == back
    return forth


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(EVENTS, max_size=40), of=st.integers(2, 4), batch=st.sampled_from([1, 3, 1000]))
@example(rows=LATE, of=2, batch=1000)
def test_parts_add_up_to_the_whole(tmp_path: Path, rows: list[dict[str, Any]], of: int, batch: int) -> None:
    """Events of any kind, many of them faulty (no chunk, say): each report is that of one process, bit by bit."""
    path = ndjson(tmp_path / "log", rows, version=2)
    whole = check(path, batch=batch)
    together = apart(path, of, batch=batch)
    assert together == whole
    assert [(one.name, one.answer) for one in together.judgements] == [
        (one.name, one.answer) for one in whole.judgements
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(EVENTS, max_size=30), of=st.integers(2, 3))
def test_parts_of_columns_add_up_to_the_whole(tmp_path: Path, rows: list[dict[str, Any]], of: int) -> None:
    """The same for Parquet, where rooms are picked before events are made of their rows."""
    pa = pytest.importorskip("pyarrow", reason="Parquet is read with pyarrow")
    kinds = {"op": pa.string(), "status": pa.string(), "incoming": pa.string(), "node": pa.string(),
             "rank": pa.int8(), "request": pa.string(), "thread": pa.string(), "time": pa.float64(),
             "chunk": pa.int8(), "last": pa.bool_()}  # fmt: skip
    columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()}
    table = pa.table({"room": pa.array([str(row["room"]) for row in rows], pa.string()), **columns})
    path = parquet(tmp_path / "log", table)
    assert apart(path, of, batch=7) == check(path, batch=7)


@pytest.mark.parametrize("engine", ["numpy", "judge"])
def test_parts_of_a_log_that_is_screened(tmp_path: Path, engine: Any) -> None:
    """A table of integers, thousands of rooms, of which some are suspects."""
    pa = pytest.importorskip("pyarrow", reason="Parquet is read with pyarrow")
    chance = np.random.default_rng(5)
    count = 20_000
    rooms = chance.integers(0, 3_000, count) * (2**40 + 1)
    table = pa.table({
        "room": pa.array(rooms), "op": pa.array(chance.choice([0, 1, 2, 2, 2, 3, 4], count)),
        "status": pa.array(chance.choice([0, 1, 2, 3, 4, 5], count)),
    })  # fmt: skip
    path = parquet(tmp_path / "log", table)
    whole = check(path, engine=engine)
    assert whole.findings
    assert apart(path, 3, engine=engine) == whole


def test_a_fault_that_one_part_finds_ends_all(tmp_path: Path) -> None:
    """What came after the fault is judged by nobody, and a part that went on cannot be merged with one that ended."""
    rows = [{"room": room, "op": "poll", "status": "Failed"} for room in range(20)]
    rows += [{"room": 3, "op": "enqueue"}, *({"room": room, "op": "poll", "status": "Success"} for room in range(20))]
    path = ndjson(tmp_path / "log", rows, version=2)
    whole = check(path)
    assert (whole.error, whole.events, whole.findings) == (
        f"{path}, line 22: no \"chunk\", which 'enqueue' cannot do without",
        20,
        (),
    )
    assert apart(path, 2) == whole
    went_on, ended = sorted((check(path, part=Part(number, 2)) for number in range(2)), key=lambda one: bool(one.stop))
    with pytest.raises(ValueError, match="have the same stop"):
        went_on.merge(ended)


def test_the_incident_in_parts() -> None:
    """Of the fixtures' logs too, with the limits and the laws that were asked for."""
    for name in ("seed.ndjson", "storm.ndjson"):
        path = LOGS / name
        assert apart(path, 3, quiet=0.5, only=("no-pin",)) == check(path, quiet=0.5, only=("no-pin",))


def test_there_is_no_part_beyond_the_last() -> None:
    """Parts are counted from 0; each room is in one of them."""
    with pytest.raises(ValueError, match="no part 2 of 2"):
        Part(2, 2)
    rooms: list[int | str] = [0, 1, 2**63, 2**64 - 1, "a", "", "\ud800"]
    assert all(sum(room in Part(number, 3) for number in range(3)) == 1 for room in rooms)
    keys = np.array([0, 1, 2**63, 2**64 - 1], np.uint64).view(np.int64)
    assert Part(1, 3).of_keys(keys).tolist() == [room in Part(1, 3) for room in rooms[:4]]


def test_reports_of_other_logs_are_not_merged(tmp_path: Path) -> None:
    """Each says of what it is."""
    with pytest.raises(ValueError, match="the same paths"):
        check(LOGS / "seed.ndjson").merge(check(LOGS / "storm.ndjson"))
    with pytest.raises(LogError):
        check(tmp_path / "none.ndjson")
