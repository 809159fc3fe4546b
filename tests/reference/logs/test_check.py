"""Event logs as files: the incident, every format, every fault with its line, and the report."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvlatch.reference.logs import check as logs
from kvlatch.reference.logs import read as log_read
from kvlatch.reference.logs.check import Report, check
from kvlatch.reference.logs.laws import OPS, PROFILES, STATUSES
from kvlatch.reference.logs.read import CannotCheck, LogError
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.schema import Profile
from tests.reference.logs.log_files import arrow_file, parquet

LOGS = Path(__file__).parents[2] / "logs"
SEED = LOGS / "seed.ndjson"
"""The incident. Room 4127… lives a whole life, 6802… is aborted before it transfers, and both are cleared. Room 771… is
WaitingForInput, and worker 1 is past its checks (line 13), when decode's abort notice writes Failed (line 14). The
worker's Transferring goes over it (line 15). From then on the workers skip the room, and the scheduler's polls find
it Transferring for ever. Two more rooms come and go meanwhile; the last is still on its way when the log ends."""
SEED_ROOM = 771203388710254007
Row = dict[str, Any]


def story(report: Report) -> Row:
    """What a report says of the log, without where and how it was read."""
    return {**report.as_json(), "path": "", "unit": "", "seconds": 0.0, "error": bool(report.error)}


def rows_of(path: Path) -> list[Row]:
    """The events of an NDJSON log."""
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def ndjson(path: Path, rows: Iterable[Row | str]) -> Path:
    """An NDJSON log of these events; a string is a line as it stands."""
    lines = [json.dumps({"kvlatch-log": 1}), *(row if isinstance(row, str) else json.dumps(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def arrow_table(rows: list[Row], *, numbers: bool = False) -> Any:
    """The events as an Arrow table, names as strings or as numbers."""
    pa = pytest.importorskip("pyarrow", reason="Parquet and Arrow are read with pyarrow")
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in ("op", "status", "incoming")}
    kind = pa.string()
    if numbers:
        kind = pa.int16()
        known = {"op": OPS, "status": STATUSES, "incoming": STATUSES}
        columns = {
            name: [known[name].index(value) if value is not None else None for value in values]
            for name, values in columns.items()
        }
    arrays = {name: pa.array(values, kind) for name, values in columns.items()}
    return pa.table({"room": pa.array([row["room"] for row in rows], pa.int64()), **arrays})


def arrow_stream(path: Path, table: Any) -> Path:
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return path


def dictionaries(path: Path, table: Any) -> Path:
    """An Arrow file whose names, if it has any, are dictionaries."""
    for name in ("op", "status", "incoming") if str(table.schema.field("op").type) == "string" else ():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table.column(name).combine_chunks().dictionary_encode())
    return arrow_file(path, table)


WRITERS = (parquet, arrow_file, arrow_stream, dictionaries)


# --------------------------------------------------------------------------------------------------------------------
# The incident


def test_the_incident_is_found_in_its_log() -> None:
    """The room, the line, Transferring over Failed, the property's sentence, and the room pinned at the end."""
    report = check(SEED)
    assert report.exit_code == 1
    [violation] = report.violations
    assert (violation.room, violation.line, violation.law) == (SEED_ROOM, 15, "terminal-sticky")
    assert (violation.before, violation.after, violation.incoming) == ("Failed", "Transferring", "Transferring")
    assert [(pinned.room, pinned.status, pinned.revived) for pinned in report.pinned] == [
        (SEED_ROOM, "Transferring", True)
    ]
    text = "\n".join(report.lines())
    assert f"room {SEED_ROOM}, line 15: Transferring over Failed" in text
    assert "A status that is terminal is never replaced by a live one" in text
    assert f"room {SEED_ROOM} is pinned: it ends Transferring although it had been terminal" in text


def test_a_room_on_its_way_at_the_end_is_not_called_pinned() -> None:
    """The last room of the incident's log is WaitingForInput at the end: counted as such, and nothing more."""
    report = check(SEED)
    assert report.final["WaitingForInput"] == 1
    assert report.pinned_rooms == 1
    assert sum(report.final.values()) == report.rooms == 5


def test_quiet_rooms_are_pinned_when_asked_for(tmp_path: Path) -> None:
    """A room that waits while the log goes on for longer than ``quiet`` lines is pinned, with its last line."""
    rows = [
        {"room": 1, "op": "create", "status": "Bootstrapping"},
        {"room": 1, "op": "poll", "status": "Bootstrapping"},
    ]
    rows += [{"room": 2 + i, "op": "create", "status": "Success" if i < 9 else "Bootstrapping"} for i in range(10)]
    path = ndjson(tmp_path / "log", rows)
    assert check(path).exit_code == 0
    assert check(path, quiet=11).exit_code == 0
    report = check(path, quiet=10)
    assert report.exit_code == 1
    assert [(pinned.room, pinned.line) for pinned in report.pinned] == [(1, 3)]
    assert "room 1 is pinned: it ends Bootstrapping and nothing is said of it after line 3" in report.lines()


@pytest.mark.parametrize("profile", PROFILES)
def test_the_profile_decides_about_a_late_failure(tmp_path: Path, profile: Profile) -> None:
    """Failed over Success breaks a law where the first terminal status wins, and none where failure overrides."""
    path = ndjson(tmp_path / "log", [{"room": 1, "op": "poll", "status": "Success"},
                                     {"room": 1, "op": "abort", "status": "Failed"}])  # fmt: skip
    laws = [violation.law for violation in check(path, profile=profile).violations]
    assert laws == (["success-not-overwritten"] if profile == "first terminal wins" else [])


def test_a_named_design_adds_its_merge(tmp_path: Path) -> None:
    """A write that leaves what the named design would not is reported with what its merge makes of it."""
    path = ndjson(tmp_path / "log", [
        {"room": 1, "op": "write", "incoming": "Transferring", "status": "Transferring"},
        {"room": 1, "op": "abort", "status": "Transferring"},
    ])  # fmt: skip
    assert check(path).exit_code == 0
    report = check(path, design=DESIGNS["sglang-0.5.23"])
    assert report.laws == {"merge": 1}
    assert report.violations[0].says == "In sglang-0.5.23, Failed written over Transferring leaves Failed."


# --------------------------------------------------------------------------------------------------------------------
# Formats


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("numbers", [False, True])
def test_every_format_tells_the_same_story(tmp_path: Path, write: Callable[..., Path], numbers: bool) -> None:
    """Parquet, Arrow files and streams, with strings, dictionaries or numbers, give the report of the NDJSON log."""
    path = write(tmp_path / "log", arrow_table(rows_of(SEED), numbers=numbers))
    report = check(path)
    assert report.unit == "row"
    assert [(violation.room, violation.line) for violation in report.violations] == [(SEED_ROOM, 14)]
    assert (report.final, report.laws, report.events) == (check(SEED).final, check(SEED).laws, 24)


values = st.none() | st.sampled_from(STATUSES)
events = st.fixed_dictionaries(
    {"room": st.integers(0, 3) | st.integers(0, 2**63 - 1), "op": st.sampled_from(OPS), "status": values,
     "incoming": st.none() | st.sampled_from(STATUSES[:5])}
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(rows=st.lists(events, min_size=1, max_size=30), chunk=st.integers(1, 40), write=st.sampled_from(WRITERS),
       numbers=st.booleans())  # fmt: skip
def test_any_log_means_the_same_in_every_format_and_chunk(
    tmp_path: Path, rows: list[Row], chunk: int, write: Callable[..., Path], numbers: bool
) -> None:
    """Nothing depends on the format, on how names are stored, or on the size of the chunks."""
    text = check(ndjson(tmp_path / "text", rows), chunk=chunk)
    columns = check(write(tmp_path / "columns", arrow_table(rows, numbers=numbers)), chunk=41 - chunk)

    def lines(report: Report, header: int) -> Row:
        found = [(violation.room, violation.line - header, violation.law) for violation in report.violations]
        return {**story(report), "violations": found}

    assert lines(text, 1) == lines(columns, 0)


def test_a_column_that_may_be_missing_is_incoming(tmp_path: Path) -> None:
    """Without ``incoming`` the log is read, and a write is one that does not say what it wrote."""
    table = arrow_table(rows_of(SEED)).drop_columns(["incoming"])
    [violation] = check(parquet(tmp_path / "log", table)).violations
    assert (violation.op, violation.incoming, violation.after) == ("write", None, "Transferring")


def test_unsigned_and_narrow_room_ids_are_read(tmp_path: Path) -> None:
    """Any integer type holds room ids."""
    import pyarrow as pa

    for kind in (pa.uint64(), pa.uint32(), pa.int8()):
        table = arrow_table([{"room": 1, "op": "poll", "status": "Failed"}])
        table = table.set_column(0, "room", pa.array([100], kind))
        assert check(parquet(tmp_path / "log", table)).final["Failed"] == 1


# --------------------------------------------------------------------------------------------------------------------
# Faults

GOOD = [{"room": 5, "op": "abort", "status": "Failed"}, {"room": 5, "op": "poll", "status": "Transferring"}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"room": 5, "op": "poll", "sta', "not a JSON object"),
        ("null", "not a JSON object"),
        ("[5]", "not a JSON object"),
        ("", "a blank line where an event should be"),
        ('{"op": "poll"}', 'no "room"'),
        ('{"room": 5}', 'no "op"'),
        ('{"room": -1, "op": "poll"}', '"room" is -1, and must be an integer from 0'),
        ('{"room": 9223372036854775808, "op": "poll"}', '"room" is 9223372036854775808, and must be an integer'),
        ('{"room": 5.0, "op": "poll"}', '"room" is 5.0, and must be an integer'),
        ('{"room": true, "op": "poll"}', '"room" is true, and must be an integer'),
        ('{"room": "5", "op": "poll"}', '"room" is "5", and must be an integer'),
        ('{"room": 5, "op": "peek"}', '"op" is "peek", and must be one of create, clear, poll, abort, write'),
        ('{"room": 5, "op": ["poll"]}', '"op" is ["poll"], and must be one of'),
        ('{"room": 5, "op": "poll", "status": "Faild"}', '"status" is "Faild", and must be one of Failed'),
        ('{"room": 5, "op": "poll", "status": 3}', '"status" is 3, and must be one of'),
        ('{"room": 5, "op": "poll", "status": {}}', '"status" is {}, and must be one of'),
        ('{"room": 5, "op": "write", "incoming": "Absent"}', '"incoming" is "Absent", and must be one of'),
        ("[" * 60_000, "not a JSON object"),
        ('{"room": 5, "op": "poll", "note": "' + "x" * 70_000 + '"}', "not a JSON object"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 1000])
def test_a_bad_line_is_named_and_what_came_before_it_is_reported(
    tmp_path: Path, line: str, message: str, chunk: int
) -> None:
    """Exit 2 and the number of the bad line; the violation on line 3 is still found, what follows is not read."""
    path = ndjson(tmp_path / "log", [*GOOD, line, {"room": 6, "op": "poll", "status": "Success"}])
    report = check(path, chunk=chunk)
    assert report.exit_code == 2
    assert report.error is not None
    assert f"{path}, line 4: {message}" in report.error
    assert [violation.line for violation in report.violations] == [3]
    assert report.events == 2


def test_a_truncated_last_line_says_that_it_is(tmp_path: Path) -> None:
    """A log whose writer was cut off in the middle of a line."""
    path = ndjson(tmp_path / "log", GOOD)
    path.write_text(path.read_text() + '{"room": 5, "op": "po')
    assert "line 4: not a JSON object: the line is cut off" in str(check(path).error)


def test_a_last_line_without_a_newline_is_read(tmp_path: Path) -> None:
    """Whole JSON at the end of the file is an event, newline or not."""
    path = ndjson(tmp_path / "log", GOOD)
    path.write_text(path.read_text().rstrip("\n"))
    assert (check(path).events, check(path).error) == (2, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: not an event log: NDJSON begins with"),
        ('{"room": 5, "op": "poll"}\n', "line 1: not an event log"),
        ("\x00\x01\x02 what is this", "line 1: not an event log"),
        ('{"kvlatch-log": 2}\n', "line 1: version 2, and this reads version 1"),
    ],
)
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Without a header of this version there is nothing to report on."""
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(LogError, match=message) as caught:
        check(path)
    assert caught.value.exit_code == 2


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """One line with the path and the reason."""
    with pytest.raises(LogError, match="nowhere: No such file or directory"):
        check(tmp_path / "nowhere")


def test_an_empty_log_holds(tmp_path: Path) -> None:
    """A header and nothing else: no rooms, exit 0."""
    report = check(ndjson(tmp_path / "log", []))
    assert (report.exit_code, report.events, report.rooms) == (0, 0, 0)
    assert "final: no rooms" in list(report.lines())


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"room": 5, "op": "poll", "status": "Faild"}, "row 3: 'status' is \"Faild\", and must be one of Failed"),
        ({"room": 5, "op": None}, "row 3: 'op' is null, and must be one of create"),
        ({"room": 5, "op": "peek"}, "row 3: 'op' is \"peek\""),
        ({"room": -2, "op": "poll"}, "row 3: 'room' is -2, and must be an integer from 0"),
        ({"room": None, "op": "poll"}, "row 3: 'room' is None, and must be an integer from 0"),
    ],
)
def test_a_bad_row_is_named_and_what_came_before_it_is_reported(
    tmp_path: Path, write: Callable[..., Path], bad: Row, message: str
) -> None:
    """As for a bad line; rows are counted from 1."""
    path = write(tmp_path / "log", arrow_table([*GOOD, bad, {"room": 6, "op": "peek"}]))
    report = check(path)
    assert report.exit_code == 2
    assert f"{path}, {message}" in str(report.error)
    assert [violation.line for violation in report.violations] == [2]
    assert report.events == 2


@pytest.mark.parametrize("number", [-1, 5, 6, 300])
def test_a_number_that_is_no_name_is_named(tmp_path: Path, number: int) -> None:
    """Numbers outside the list are faults, beside a null that is none."""
    import pyarrow as pa

    table = arrow_table([*GOOD, *GOOD], numbers=True)
    table = table.set_column(2, "status", pa.array([None, 3, None if number == 5 else number, 1], pa.int16()))
    table = table.set_column(1, "op", pa.array([2, 2, number, 2] if number == 5 else [2, 2, 2, 2], pa.int8()))
    report = check(parquet(tmp_path / "log", table))
    field = "op" if number == 5 else "status"
    assert f"row 3: '{field}' is {number}, and must be one of" in str(report.error)
    assert report.events == 2


@pytest.mark.parametrize("missing", ["room", "op", "status"])
def test_a_missing_column_is_named(tmp_path: Path, missing: str) -> None:
    """A log without one of the three columns is refused, with those that it has."""
    path = parquet(tmp_path / "log", arrow_table(GOOD).drop_columns([missing]))
    with pytest.raises(LogError, match=f"no column '{missing}': it has"):
        check(path)


def test_a_column_of_rooms_that_are_no_integers_is_named(tmp_path: Path) -> None:
    """The type that the column has is in the line."""
    import pyarrow as pa

    table = arrow_table(GOOD).set_column(0, "room", pa.array(["a", "b"]))
    with pytest.raises(LogError, match="column 'room' is of string, and must be of integers"):
        check(arrow_file(tmp_path / "log", table))


def test_a_later_version_in_the_schema_is_refused(tmp_path: Path) -> None:
    """Columns may carry the version too."""
    path = parquet(tmp_path / "log", arrow_table(GOOD).replace_schema_metadata({"kvlatch-log": "2"}))
    with pytest.raises(LogError, match="version 2, and this reads version 1"):
        check(path)


def test_names_that_are_no_text_are_one_line(tmp_path: Path) -> None:
    """Strings of a column that are not UTF-8 end the reading, with the row that was reached."""
    import pyarrow as pa

    broken = pa.array([b"poll", b"\xff"], pa.binary()).view(pa.string())
    report = check(parquet(tmp_path / "log", arrow_table(GOOD).set_column(1, "op", broken)))
    assert report.exit_code == 2
    assert f"{tmp_path / 'log'}, after row 0: 'utf-8' codec can't decode" in str(report.error)


@pytest.mark.parametrize("write", WRITERS)
def test_a_truncated_file_of_columns_is_one_line(tmp_path: Path, write: Callable[..., Path]) -> None:
    """Half a file is refused, or read as far as it goes; never more than a line, and never exit 0."""
    path = write(tmp_path / "log", arrow_table(rows_of(SEED) * 40))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    try:
        report = check(path)
    except LogError as error:
        said = str(error)
    else:
        assert report.exit_code == 2
        assert report.events > 0
        said = str(report.error)
    assert said.startswith(str(path))
    assert "\n" not in said


def test_without_pyarrow_columns_are_refused_and_lines_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 4 with what to install; NDJSON needs nothing."""
    path = parquet(tmp_path / "log", arrow_table(GOOD))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CannotCheck, match=r"read with pyarrow: install kvlatch\[logs\]") as caught:
        check(path)
    assert caught.value.exit_code == 4
    assert check(SEED).exit_code == 1


# --------------------------------------------------------------------------------------------------------------------
# Engines, bounds, progress


def test_an_engine_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 4 and what to install; ``auto`` takes NumPy then."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "kvlatch.reference.logs.fast", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(CannotCheck, match=r"install kvlatch\[fast\]"):
        check(SEED, engine="fast")
    with pytest.raises(CannotCheck, match="no GPU to use"):
        check(SEED, engine="cupy")
    monkeypatch.setattr(logs, "_SMALL", 0)
    assert check(parquet(tmp_path / "log", arrow_table(rows_of(SEED)))).engine == "numpy"


def test_the_report_says_which_engine_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small logs are checked with NumPy, large ones with the fastest engine there is, to the same effect."""
    pytest.importorskip("numba", reason="the engine `fast` is numba's")
    path = parquet(tmp_path / "log", arrow_table(rows_of(SEED)))
    small = check(path)
    monkeypatch.setattr(logs, "_SMALL", 0)
    large = check(path)
    assert small.engine == "numpy"
    assert large.engine in ("fast", "cupy")
    assert {**story(large), "engine": "numpy"} == story(small)
    assert any(line.startswith("24 events, 5 rooms; numpy: ") for line in small.lines())


def test_lists_are_bounded_and_counts_are_not(tmp_path: Path) -> None:
    """Of many broken rooms the first by line are listed; all are counted."""
    rows = [{"room": room, "op": "poll", "status": status} for status in ("Failed", "Transferring")
            for room in (9, 3, 7, 1)]  # fmt: skip
    report = check(ndjson(tmp_path / "log", rows), most=2, chunk=3)
    assert [violation.room for violation in report.violations] == [9, 3]
    assert [pinned.room for pinned in report.pinned] == [1, 3]
    assert (report.violated, report.pinned_rooms, report.laws) == (4, 4, {"terminal-sticky": 4})
    assert "... and 2 more rooms" in report.lines()
    assert "... and 2 more pinned rooms" in report.lines()


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    """Progress is told after each chunk, in bytes of lines or in rows, and ends at the whole."""
    for path in (SEED, parquet(tmp_path / "log", arrow_table(rows_of(SEED)))):
        told: list[tuple[int, int]] = []
        check(path, chunk=10, progress=lambda done, total, told=told: told.append((done, total)))  # type: ignore[misc]
        assert len(told) == 3
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1]


def test_the_report_is_json() -> None:
    """Numbers, strings, lists and objects only, and the exit code."""
    assert json.loads(json.dumps(check(SEED).as_json()))["exit_code"] == 1


@pytest.mark.parametrize("argument", [{"chunk": 0}, {"most": -1}, {"quiet": 0}, {"engine": "gpu"}, {"profile": "x"}])
def test_arguments_that_make_no_sense_are_refused(argument: dict[str, Any]) -> None:
    """ValueError, before the log is read."""
    with pytest.raises(ValueError, match=r"at least|no engine is called|no profile is called"):
        check(SEED, **argument)


def test_memory_is_bounded_by_the_chunk(tmp_path: Path) -> None:
    """Ten times the events of a few rooms take no more memory than a chunk and what a chunk of them took."""
    import tracemalloc

    def peak(events: int) -> int:
        rows = ('{"room": 1, "op": "poll", "status": "Transferring"}' for _ in range(events))
        path = ndjson(tmp_path / "log", rows)
        tracemalloc.start()
        check(path, chunk=1_000)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    check(SEED)  # what is computed once per process is not counted
    assert peak(20_000) < 1.2 * peak(2_000)


def test_a_chunk_of_columns_has_at_most_so_many_events(tmp_path: Path) -> None:
    """Rows come in chunks of the size asked for, whatever the size of the batches in the file."""
    table = arrow_table(rows_of(SEED) * 3)
    for write in WRITERS:
        parts = list(log_read.open_log(write(tmp_path / "log", table), 5).chunks)
        assert max(len(part.codes) for part in parts) <= 5
        assert np.concatenate([part.rooms for part in parts]).tolist() == table.column("room").to_pylist()
        assert parts[-1].line + len(parts[-1].codes) - 1 == table.num_rows
