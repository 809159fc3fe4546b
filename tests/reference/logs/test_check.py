"""Event logs as files: the incident, every format, every fault with its line, and the report."""

import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvlatch.reference.logs import check as logs
from kvlatch.reference.logs import columns
from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.events import STATUSES, TABLE_OPS, CannotCheck, LogError
from kvlatch.reference.logs.files import File
from kvlatch.reference.logs.laws import PROFILES
from kvlatch.reference.logs.parts import Part
from kvlatch.reference.logs.report import Report
from kvlatch.spec.schema import Profile
from tests.reference.logs.log_files import WRITERS, Row, arrow_file, arrow_table, ndjson, parquet, rows_of

LOGS = Path(__file__).parents[2] / "logs"
SEED = LOGS / "seed.ndjson"
"""The incident. Room 4127… lives a whole life, 6802… is aborted before it transfers, and both are cleared. Room 771… is
WaitingForInput, and worker 1 is past its checks (line 13), when decode's abort notice writes Failed (line 14). The
worker's Transferring goes over it (line 15). From then on the workers skip the room, and the scheduler's polls find
it Transferring for ever. Two more rooms come and go meanwhile; the last is still on its way when the log ends."""
SEED_ROOM = 771203388710254007


def told(report: Report) -> Row:
    """What a report says of the log, without where and how it was read, lines counted from the first event."""
    header = 2 if report.unit == "line" else 1
    return {
        "found": [(f.law, f.scenario, f.room, f.line and f.line - header) for f in report.findings],
        "answers": [(one.name, one.verdict, getattr(one.answer, "looks", 0)) for one in report.judgements],
        "counts": (report.events, report.silent, report.rooms, report.running, report.left),
        "final": report.final,
        "failed": bool(report.error),
    }


# --------------------------------------------------------------------------------------------------------------------
# The incident


def test_the_incident_is_found_in_its_log() -> None:
    """The room, the line, Transferring over Failed, the property's sentence, and the room pinned at the end."""
    report = check(SEED)
    assert report.exit_code == 1
    [violation] = report.violations
    assert (violation.room, violation.line, violation.law) == (SEED_ROOM, 15, "terminal-sticky")
    assert (violation.before, violation.after, violation.incoming) == ("Failed", "Transferring", "Transferring")
    assert [(pinned.law, pinned.room) for pinned in report.pinned] == [("no-pin", SEED_ROOM)]
    text = "\n".join(finding.text(report.unit) for finding in report.findings)
    assert f"room {SEED_ROOM}, line 15: Transferring over Failed" in text
    assert "A status that is terminal is never replaced by a live one" in text
    assert f"room {SEED_ROOM} is pinned: it ends Transferring although it had been terminal" in text
    assert {one.law: one.verdict for one in report.judgements} | {"room-reusable": "not judged"} == {
        **dict.fromkeys(report_laws(report), "not judged"), "terminal-sticky": "broken", "no-resurrection": "broken",
        "no-pin": "broken", "settlement": "broken", "success-not-overwritten": "kept", "no-ghost": "kept",
    }  # fmt: skip


def report_laws(report: Report) -> list[str]:
    """Every law has an answer."""
    return [one.law for one in report.judgements]


def test_a_room_on_its_way_at_the_end_is_not_called_pinned() -> None:
    """The last room of the incident's log is WaitingForInput at the end: counted as such, and nothing more."""
    report = check(SEED)
    assert report.final["WaitingForInput"] == 1
    assert (len(report.pinned), report.running, report.left) == (1, 1, 2)
    assert sum(report.final.values()) == report.rooms == 5


@pytest.mark.parametrize("profile", PROFILES)
def test_the_profile_decides_about_a_late_failure(tmp_path: Path, profile: Profile) -> None:
    """Failed over Success breaks a law where the first terminal status wins, and none where failure overrides."""
    path = ndjson(tmp_path / "log", [{"room": 1, "op": "poll", "status": "Success"},
                                     {"room": 1, "op": "abort", "status": "Failed"}])  # fmt: skip
    laws = [violation.law for violation in check(path, profile=profile).violations]
    assert laws == (["success-not-overwritten"] if profile == "first terminal wins" else [])


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
    assert report.engine == "numpy"


values = st.none() | st.sampled_from(STATUSES)
ids = st.integers(0, 3) | st.sampled_from([2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
events = st.fixed_dictionaries(
    {"room": ids, "op": st.sampled_from(TABLE_OPS), "status": values,
     "incoming": st.none() | st.sampled_from(STATUSES[:5]),
     "time": st.none() | st.sampled_from([0.0, 1.0, 2.0, 500.0, 1000.0])},
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    rows=st.lists(events, min_size=1, max_size=30),
    batch=st.integers(1, 40),
    write=st.sampled_from(WRITERS),
    numbers=st.booleans(),
    profile=st.sampled_from(PROFILES),
)
def test_any_log_means_the_same_in_every_format_and_batch_screened_or_not(
    tmp_path: Path, rows: list[Row], batch: int, write: Callable[..., Path], numbers: bool, profile: Profile,
) -> None:  # fmt: skip
    """What the judge finds event by event in lines is what comes out of the screen, whatever the format and batches."""
    text = check(ndjson(tmp_path / "text", rows), batch=batch, profile=profile)
    path = write(tmp_path / "columns", arrow_table(rows, numbers=numbers))
    assert text.engine == "judge"
    whole = check(path, batch=41 - batch, profile=profile, engine="judge")
    assert told(whole) == told(text)
    screened = check(path, batch=41 - batch, profile=profile)
    assert screened.engine == "numpy"
    for one in ("found", "counts", "final"):
        assert told(screened)[one] == told(text)[one], one
    assert [answer[:2] for answer in told(screened)["answers"]] == [answer[:2] for answer in told(text)["answers"]]


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
        ('{"room": 18446744073709551616, "op": "poll"}', '"room" is 18446744073709551616, and must be an integer'),
        ('{"room": 5.0, "op": "poll"}', '"room" is 5.0, and must be an integer'),
        ('{"room": true, "op": "poll"}', '"room" is true, and must be an integer'),
        ('{"room": 5, "op": "poll", "status": 6}', '"status" is 6, and must be one of Failed'),
        (
            '{"room": 5, "op": "take", "chunk": 0}',
            '"op" is "take", and must be one of create, clear, poll, abort, write',
        ),
        ('{"room": 5, "op": "peek"}', '"op" is "peek", and must be one of create, clear, poll, abort, write'),
        ('{"room": 5, "op": ["poll"]}', '"op" is ["poll"], and must be one of'),
        ('{"room": 5, "op": "poll", "status": "Faild"}', '"status" is "Faild", and must be one of Failed'),
        ('{"room": 5, "op": "poll", "status": {}}', '"status" is {}, and must be one of'),
        ('{"room": 5, "op": "write", "incoming": "Absent"}', '"incoming" is "Absent", and must be one of'),
        ("[" * 60_000, "not a JSON object"),
        ('{"room": 5, "op": "poll", "note": "' + "x" * 70_000 + '"}', "not a JSON object"),
    ],
)
@pytest.mark.parametrize("batch", [1, 1000])
def test_a_bad_line_is_named_and_what_came_before_it_is_reported(
    tmp_path: Path, line: str, message: str, batch: int
) -> None:
    """Exit 2 and the number of the bad line; the violation on line 3 is still found, what follows is not read."""
    path = ndjson(tmp_path / "log", [*GOOD, line, {"room": 6, "op": "poll", "status": "Success"}])
    report = check(path, batch=batch)
    assert report.exit_code == 2
    assert report.error is not None
    assert f"{path}, line 4: {message}" in report.error
    assert [violation.line for violation in report.violations] == [3]
    assert report.events == 2


@pytest.mark.parametrize("cut", [*range(1, 40, 4)])
@pytest.mark.parametrize("packed", [False, True])
def test_a_last_line_that_is_cut_off_is_left_out(tmp_path: Path, cut: int, packed: bool) -> None:
    """A process that was killed leaves one: a caution, and what came before is judged."""
    path = ndjson(tmp_path / "log", GOOD)
    whole = path.read_bytes()
    text = whole + b'{"room": 5, "op": "poll", "status": "Absent"}'[:cut]
    path.write_bytes(gzip.compress(text) if packed else text)
    report = check(path)
    assert (report.error, report.events, report.exit_code) == (None, 2, 1)
    (caution,) = report.cautions
    assert f"{path}, line 4: the log ends in the middle of it" in caution
    assert check(path, part=Part(0, 2)).merge(check(path, part=Part(1, 2))).cautions == report.cautions


@pytest.mark.parametrize("last", ["never", "[1", '"room', "\0\0\0", '{"room": 5, "op": "pol"}', '{"room": 5}'])
def test_a_last_line_that_is_no_beginning_of_an_event_is_a_fault(tmp_path: Path, last: str) -> None:
    """Whole and wrong, or not even begun."""
    path = ndjson(tmp_path / "log", GOOD)
    path.write_text(path.read_text() + last)
    report = check(path)
    assert report.error is not None
    assert report.exit_code == 2


def test_a_log_among_others_may_be_cut_off(tmp_path: Path) -> None:
    """Each process has its own: the logs after it are read, and one without a header is named."""
    paths = [ndjson(tmp_path / name, GOOD) for name in "abcd"]
    paths[0].write_text(paths[0].read_text() + '{"roo')
    paths[1].write_text("")
    paths[2].write_text('{"kvla')
    report = check(*paths)
    assert (report.error, report.events, len(report.cautions)) == (None, 4, 3)
    for alone in (paths[1:2], paths[1:3]):
        with pytest.raises(LogError, match="line 1"):
            check(*alone)


def test_a_last_line_without_a_newline_is_read(tmp_path: Path) -> None:
    """Whole JSON at the end of the file is an event, newline or not."""
    path = ndjson(tmp_path / "log", GOOD)
    path.write_text(path.read_text().rstrip("\n"))
    assert (check(path).events, check(path).error) == (2, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: empty: NDJSON begins with"),
        ('{"room": 5, "op": "poll"}\n', "line 1: not an event log"),
        ("\x00\x01\x02 what is this", "line 1: not an event log"),
        ('{"kvlatch-log": 3}\n', "line 1: version 3, and this reads versions 1 and 2"),
        ('{"kvlatch-log": true}\n', "line 1: version True, and this reads versions 1 and 2"),
        ('{"kvlatch-log": 2, "statuses": {"ready": "Ready"}}\n', 'line 1: "statuses" must map names to Failed'),
        ('{"kvlatch-log": 2, "ops": ["fly"]}\n', 'line 1: "ops" must be a list'),
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


def test_an_empty_log_is_not_green(tmp_path: Path) -> None:
    """A header and nothing else: nothing was judged, exit 3."""
    report = check(ndjson(tmp_path / "log", []))
    assert (report.exit_code, report.events, report.rooms) == (3, 0, 0)
    assert {one.verdict for one in report.judgements} == {"not judged"}


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"room": 5, "op": "poll", "status": "Faild"}, "row 3: 'status' is \"Faild\", and must be one of Failed"),
        ({"room": 5, "op": None}, "row 3: no 'op'"),
        ({"room": 5, "op": "peek"}, "row 3: 'op' is \"peek\", and must be one of create, clear"),
        ({"room": -2, "op": "poll"}, "row 3: 'room' is -2, and must be an integer from 0 to 2**64 - 1"),
        ({"room": None, "op": "poll"}, "row 3: no 'room'"),
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


@pytest.mark.parametrize("number", [-1, 6, 50, 300])
def test_a_number_that_is_no_name_is_named(tmp_path: Path, number: int) -> None:
    """Numbers outside the list are faults, beside a null that is none."""
    import pyarrow as pa

    table = arrow_table([*GOOD, *GOOD], numbers=True)
    table = table.set_column(2, "status", pa.array([None, 3, None if number == 50 else number, 1], pa.int16()))
    table = table.set_column(1, "op", pa.array([2, 2, number, 2] if number == 50 else [2, 2, 2, 2], pa.int8()))
    report = check(parquet(tmp_path / "log", table))
    field = "op" if number == 50 else "status"
    assert f"row 3: '{field}' is {number}, and must be one of" in str(report.error)
    assert report.events == 2


@pytest.mark.parametrize("missing", ["room", "op", "status"])
def test_a_missing_column_is_named(tmp_path: Path, missing: str) -> None:
    """A log without one of the three columns is refused, with those that it has."""
    path = parquet(tmp_path / "log", arrow_table(GOOD).drop_columns([missing]))
    with pytest.raises(LogError, match=f"no column '{missing}': it has"):
        check(path)


def test_a_column_of_rooms_that_are_neither_integers_nor_strings_is_named(tmp_path: Path) -> None:
    """The type that the column has is in the line."""
    import pyarrow as pa

    table = arrow_table(GOOD).set_column(0, "room", pa.array([1.0, 2.0]))
    with pytest.raises(LogError, match="column 'room' is of double, and must be of integers or strings"):
        check(arrow_file(tmp_path / "log", table))


def test_a_later_version_in_the_schema_is_refused(tmp_path: Path) -> None:
    """Columns may carry the version too."""
    path = parquet(tmp_path / "log", arrow_table(GOOD).replace_schema_metadata({"kvlatch-log": "3"}))
    with pytest.raises(LogError, match="version 3, and this reads versions 1 and 2"):
        check(path)


def test_names_that_are_no_text_are_one_line(tmp_path: Path) -> None:
    """Strings of a column that are not UTF-8 end the reading, with the row that was reached."""
    import pyarrow as pa

    broken = pa.array([b"poll", b"\xff"], pa.binary()).view(pa.string())
    report = check(parquet(tmp_path / "log", arrow_table(GOOD).set_column(1, "op", broken)))
    assert report.exit_code == 2
    assert f"{tmp_path / 'log'}, after row 0: " in str(report.error)
    assert "UTF" in str(report.error)


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
    path = parquet(tmp_path / "log", arrow_table(rows_of(SEED)))
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "kvlatch.reference.logs.fast", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(CannotCheck, match=r"install kvlatch\[fast\]"):
        check(path, engine="fast")
    with pytest.raises(CannotCheck, match="no GPU to use"):
        check(path, engine="gpu")
    monkeypatch.setattr(logs, "_SMALL", 0)
    assert check(path).engine == "numpy"


def test_an_engine_that_would_have_no_effect_is_refused(tmp_path: Path) -> None:
    """A log of lines is not screened; nor is one that has more than statuses."""
    with pytest.raises(LogError, match="the engine numpy screens one log of columns"):
        check(SEED, engine="numpy")
    table = arrow_table(GOOD).append_column("rank", [[0, 0]])
    with pytest.raises(LogError, match="this one is judged event by event"):
        check(parquet(tmp_path / "log", table), engine="numpy")


def test_the_report_says_which_engine_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small logs are checked with NumPy, large ones with the fastest engine there is, to the same effect."""
    pytest.importorskip("numba", reason="the engine `fast` is numba's")
    path = parquet(tmp_path / "log", arrow_table(rows_of(SEED)))
    small = check(path)
    monkeypatch.setattr(logs, "_SMALL", 0)
    large = check(path)
    assert small.engine == "numpy"
    assert large.engine == "fast"
    assert told(large) == told(small)


def test_texts_are_bounded_and_counts_are_not(tmp_path: Path) -> None:
    """Of many broken rooms the first ten by line are told; all are counted."""
    rows = [{"room": room, "op": "poll", "status": status} for status in ("Failed", "Transferring")
            for room in range(14)]  # fmt: skip
    report = check(ndjson(tmp_path / "log", rows), batch=3)
    assert report.laws["terminal-sticky"] == report.laws["no-pin"] == 14
    answer = report.judgements[0].answer
    assert str(answer).startswith("in 14 rooms; room 0, line 16: ")
    assert getattr(answer, "text", "").splitlines()[-1] == "... and 4 more rooms"


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    """Progress is told after each chunk, in bytes of lines or in rows, and ends at the whole."""
    for path in (SEED, parquet(tmp_path / "log", arrow_table(rows_of(SEED)))):
        steps: list[tuple[int, int]] = []
        check(path, batch=10, progress=lambda done, total, steps=steps: steps.append((done, total)))  # type: ignore[misc]
        assert len(steps) >= 3
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]


@pytest.mark.parametrize("argument", [{"batch": 0}, {"quiet": 0}, {"engine": "cupy"}, {"profile": "x"}])
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
        check(path, batch=1_000)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    check(SEED)  # what is computed once per process is not counted
    assert peak(20_000) < 1.2 * peak(2_000)


def test_a_chunk_of_columns_has_at_most_so_many_events(tmp_path: Path) -> None:
    """Rows come in chunks of the size asked for, whatever the size of the batches in the file."""
    table = arrow_table(rows_of(SEED) * 3)
    for write in WRITERS:
        path = write(tmp_path / "log", table)
        parts = list(columns.ColumnLog.of(File.of(path), path.read_bytes()[:4], 5).table())
        assert max(len(part.codes) for part in parts) <= 5
        assert [room for part in parts for room in part.rooms.tolist()] == table.column("room").to_pylist()
        assert parts[-1].row + len(parts[-1].codes) - 1 == table.num_rows
