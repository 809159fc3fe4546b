"""One room of an event log as a story: the incident, any room of any log, damaged logs, and logs in columns."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.codes import EVENTS
from kvlatch.reference.logs.events import STATUSES, LogError
from kvlatch.reference.logs.events import TABLE_OPS as OPS
from kvlatch.reference.logs.laws import PROFILES
from kvlatch.reference.logs.read import is_log
from kvlatch.reference.logs.rooms import Tables
from kvlatch.reference.logs.story import story
from kvlatch.reference.story import Story, mermaid, text
from kvlatch.spec.schema import Profile
from tests.reference.logs.log_files import arrow_file, ndjson, parquet

SEED = Path(__file__).parents[2] / "logs" / "seed.ndjson"
SEED_ROOM = 771203388710254007
"""The room that was resurrected; ``test_log.py`` has its story."""
WHOLE_ROOM, ABORTED_ROOM, OPEN_ROOM = 4127330981276645121, 6802561139847736610, 2210930054619987433
Row = dict[str, Any]

GOOD: list[Row | str] = [
    {"room": 5, "op": "abort", "status": "Failed"},
    {"room": 5, "op": "poll", "status": "Transferring"},
]


def did(told: Story) -> list[tuple[int, str, str, str]]:
    """Each line: number, thread, what was done, and the entry after it."""
    return [(line.number, line.thread, line.text, line.entry) for line in told.lines]


# --------------------------------------------------------------------------------------------------------------------
# The incident


def test_the_resurrected_room_of_the_incident() -> None:
    """Who did what on which line, the fatal one, and that the room is pinned; lines of other rooms are left out."""
    told = story(SEED, SEED_ROOM)
    assert told.heading == f"{SEED}, room {SEED_ROOM}: 8 events, lines 4 to 23, 0.195 s"
    assert did(told) == [
        (4, "scheduler", "create", "Bootstrapping"),
        (5, "bootstrap", "write WaitingForInput over Bootstrapping", "WaitingForInput"),
        (13, "scheduler", "poll", "WaitingForInput"),
        (14, "bootstrap", "abort: WaitingForInput -> Failed", "Failed"),
        (15, "worker 1", "write Transferring over Failed", "Transferring"),
        (17, "scheduler", "poll x 3", "Transferring"),
    ]
    assert [line.time for line in told.lines] == ["+0 s", "+0.011 s", "+0.07 s", "+0.082 s", "+0.082 s", "+0.095 s"]
    assert told.fatal == 15
    [violation] = check(SEED).violations
    assert told.sentence == (
        f"Line 15: {violation.sentence} Room {SEED_ROOM} is pinned: it ends Transferring although it had been "
        "terminal: No request stays in the inflight queue with nobody left to move it."
    )
    assert "breaks terminal-sticky: A status that is terminal is never replaced by a live one" in told.sentence


@pytest.mark.parametrize(
    ("room", "last", "end"),
    [(WHOLE_ROOM, "clear: Success -> Absent", "Absent"), (ABORTED_ROOM, "clear: Failed -> Absent", "Absent"),
     (OPEN_ROOM, "write WaitingForInput over Bootstrapping", "WaitingForInput")],
)  # fmt: skip
def test_a_room_that_breaks_nothing_ends_in_one_sentence(room: int, last: str, end: str) -> None:
    """No line is fatal, and the sentence has the status that is known last."""
    told = story(SEED, room)
    assert (told.fatal, told.lines[-1].text) == (None, last)
    assert told.sentence == f"No event breaks a law, and the last known status of the room is {end}."


def test_it_prints_as_a_table_with_a_column_for_each_thread() -> None:
    """Times have a column; polls, which a log does not tell apart from the table, have none; line 15 has the star."""
    _, columns, _, *rows = text(story(SEED, SEED_ROOM), 120).splitlines()
    assert columns.split() == ["#", "time", "scheduler", "bootstrap", "worker", "1", "table"]
    assert rows[4].split() == ["15*", "+0.082", "s", "write", "Transferring", "over", "Failed", "Transferring"]


def test_it_prints_as_a_sequence_diagram() -> None:
    """Polls read the table, all else writes it, and the fatal line is framed."""
    lines = mermaid(story(SEED, SEED_ROOM)).splitlines()
    assert "  table-->>scheduler: poll x 3" in lines
    fatal = lines.index("  worker1->>table: write Transferring over Failed")
    assert (lines[fatal - 1], lines[fatal + 1]) == ("  rect rgba(255, 0, 0, 0.2)", "  end")


def test_the_profile_is_that_of_check(tmp_path: Path) -> None:
    """A late failure is fatal where the first terminal status wins."""
    path = ndjson(tmp_path / "log", [{"room": 5, "op": "poll", "status": "Success"},
                                     {"room": 5, "op": "abort", "status": "Failed"}])  # fmt: skip
    assert [story(path, 5, profile=profile).fatal for profile in PROFILES] == [3, None]


# --------------------------------------------------------------------------------------------------------------------
# Any room of any log

values = st.none() | st.sampled_from(STATUSES)
events = st.fixed_dictionaries(
    {"room": st.integers(0, 2), "op": st.sampled_from(OPS), "status": values,
     "incoming": st.none() | st.sampled_from(STATUSES[:5])},
    optional={"thread": st.sampled_from(["scheduler", "worker 0", "worker 1", None]), "time": st.floats(0, 1e6)},
)  # fmt: skip
polls = st.builds(
    lambda status, thread, times: [{"room": 1, "op": "poll", "status": status, "thread": thread}] * times,
    values, st.sampled_from(["scheduler", None]), st.integers(1, 5),
)  # fmt: skip
logs = st.lists(polls | st.lists(events, max_size=5), max_size=6).map(lambda parts: [row for p in parts for row in p])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=logs, batch=st.integers(1, 9), profile=st.sampled_from(PROFILES))
def test_each_event_of_a_room_is_told_once_and_the_verdict_is_that_of_check(
    tmp_path: Path, rows: list[Row], batch: int, profile: Profile
) -> None:
    """Folded polls counted, whatever the batches; the decisive line and how the room ends are check's."""
    path = ndjson(tmp_path / "log", rows)
    report = check(path, profile=profile, batch=batch)
    for room in {row["room"] for row in rows}:
        told = story(path, room, profile=profile, batch=batch)
        expected = sorted(
            (row["op"], row.get("thread") or "log") for row in rows if row["room"] == room
        )  # those of one thread may be told in another order: that of their times
        unfolded = []
        for line in told.lines:
            _, x, times = line.text.partition(" x ")
            unfolded += [(line.text.split()[0].rstrip(":"), line.thread)] * (int(times) if x else 1)
        assert sorted(unfolded) == expected
        found = [finding for finding in report.findings if finding.room == room]
        fatal = next((finding for finding in found if finding.line), None)
        assert told.fatal == (fatal.line if fatal else None)
        assert (fatal.sentence if fatal else "No event breaks a law") in told.sentence
        assert [finding.sentence in told.sentence for finding in found if finding.law == "no-pin"] in ([], [True])


def test_a_poll_that_repeats_what_is_known_is_never_suspicious() -> None:
    """So the decisive event is never one of those that are folded into the line of another."""
    suspicious = Tables.of().suspicious
    repeats = [
        int(suspicious[code]) & (1 << STATUSES.index(event.status))
        for code, event in enumerate(EVENTS)
        if event.op == "poll" and event.status
    ]
    assert repeats == [0] * 6


def test_polls_are_folded_while_thread_and_answer_stay_the_same(tmp_path: Path) -> None:
    """Hundreds of polls are a line, other rooms in between do not matter, another answer or thread begins a new one."""
    waits = [
        {"room": room, "op": "poll", "status": "WaitingForInput", "thread": "scheduler"} for room in (5, 6)
    ] * 400  # fmt: skip
    rows: list[Row | str] = [*waits, {"room": 5, "op": "poll", "status": "WaitingForInput", "thread": "rank 1"},
            {"room": 5, "op": "poll", "status": "Success", "thread": "rank 1"}, *waits[:3]]  # fmt: skip
    told = story(ndjson(tmp_path / "log", rows), 5, batch=7)
    assert [(line.number, line.text, line.entry) for line in told.lines] == [
        (2, "poll x 400", "WaitingForInput"),
        (802, "poll", "WaitingForInput"),
        (803, "poll", "Success"),
        (804, "poll x 2", "WaitingForInput"),
    ]
    assert len(text(told).splitlines()) < 12


@pytest.mark.parametrize(
    ("row", "said", "entry"),
    [
        ({"op": "write", "incoming": "Transferring", "status": "Success"}, "write Transferring: Success stays",
         "Success"),
        ({"op": "write", "incoming": "Transferring", "status": "Failed"}, "write Transferring: Success -> Failed",
         "Failed"),
        ({"op": "write", "status": "Failed"}, "write: Success -> Failed", "Failed"),
        ({"op": "write", "incoming": "Failed"}, "write Failed", "?"),
        ({"op": "abort", "status": "Success"}, "abort: Success stays", "Success"),
        ({"op": "clear"}, "clear: Success -> Absent", "Absent"),
        ({"op": "create"}, "create", "?"),
        ({"op": "poll", "status": "Failed"}, "poll", "Failed"),
        ({"op": "poll"}, "poll", "?"),
    ],
)  # fmt: skip
def test_what_an_event_did_in_words(tmp_path: Path, row: Row, said: str, entry: str) -> None:
    """What was stored, over what, what stayed; a question mark where the log does not say what came of it."""
    path = ndjson(tmp_path / "log", [{"room": 5, "op": "poll", "status": "Success"}, {"room": 5, **row}])
    line = story(path, 5).lines[1]
    assert (line.text, line.entry) == (said, entry)


def test_what_is_not_said_does_not_change_what_is_known(tmp_path: Path) -> None:
    """An event without a status leaves the one before it for the next event to be held against, and for the end."""
    write = {"room": 5, "op": "write", "incoming": "Success", "status": "Success"}
    rows: list[Row | str] = [GOOD[0], {"room": 5, "op": "poll"}, write, {"room": 5, "op": "abort"}]
    told = story(ndjson(tmp_path / "log", rows), 5)
    assert [line.text for line in told.lines] == ["abort", "poll", "write Success over Failed", "abort"]
    assert told.fatal == 4
    assert told.sentence.endswith(" The last known status of the room is Success.")


def test_a_status_that_nobody_knows_in_the_end(tmp_path: Path) -> None:
    """After a create without a status the log does not say where the room stands, nor does the story."""
    told = story(ndjson(tmp_path / "log", [*GOOD[:1], {"room": 5, "op": "create"}]), 5)
    assert told.sentence == "No event breaks a law, and the status of the room in the end is not known."


# --------------------------------------------------------------------------------------------------------------------
# Threads and times


def test_a_log_without_threads_and_times(tmp_path: Path) -> None:
    """All events stand in one column, and there is no time, in the heading or in the table."""
    path = ndjson(tmp_path / "log", GOOD)
    told = story(path, 5)
    assert told.heading == f"{path}, room 5: 2 events, lines 2 to 3"
    assert told.threads == ("log",)
    assert text(told).splitlines()[1].split() == ["#", "log", "table"]


def test_times_count_from_the_first_one_of_the_room(tmp_path: Path) -> None:
    """Also where only some events have one, or a clock goes back; what is no number of seconds is no time."""
    times = [None, 1.7e9, "12:00", 1.7e9 + 61.25, 1.7e9 - 0.5, True, float("nan"), 10**400]
    rows = [{"room": 5, "op": "abort", "status": "Failed", "time": time} for time in times]
    told = story(ndjson(tmp_path / "log", rows), 5)
    assert [line.time for line in told.lines] == ["", "+0 s", "", "+61.25 s", "-0.5 s", "", "", ""]
    assert told.heading.endswith("lines 2 to 9, 61.75 s")


def test_a_thread_may_be_called_anything(tmp_path: Path) -> None:
    """Markup, control characters and Mermaid's own words do no harm to table and diagram, and names stay apart."""
    names: list[Any] = ["[/x]", "end", "a;b#c", "\x1b[2J", "ab", "a b", 140231, "", ["x"], "table"]
    rows = [{"room": 5, "op": "abort", "status": "Failed", "thread": name} for name in names]
    told = story(ndjson(tmp_path / "log", rows), 5)
    threads = ["[/x]", "end", "a;b#c", "\\x1b[2J", "ab", "a b", "140231", "log", "log", "table"]
    assert [line.thread for line in told.lines] == threads
    printed = text(told, 200)
    assert all(name in printed.splitlines()[1] for name in threads)
    participants = [line.split()[1:] for line in mermaid(told).splitlines() if line.startswith("  participant")]
    ids = [participant[0] for participant in participants]
    assert len(set(ids)) == len(ids) == 10
    assert set(ids) & {"end", "table"} == {"table"}
    assert ["a#59;b#35;c"] in [participant[2:] for participant in participants]


# --------------------------------------------------------------------------------------------------------------------
# Rooms that are not there, and damage


@pytest.mark.parametrize("room", [5, -1, 2**63, 10**30])
def test_a_room_that_is_not_there(room: int) -> None:
    """One line with the room and the number of rooms that there are; the same for a number that no room can have."""
    with pytest.raises(LogError, match=f"seed.ndjson: no event of room {room}: the log has 5 rooms$") as caught:
        story(SEED, room)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("batch", [1, 1000])
def test_a_damaged_line_after_events_of_the_room_ends_its_story(tmp_path: Path, batch: int) -> None:
    """What came before is told, verdict included, and the sentence names the line; what comes after is not read."""
    path = ndjson(tmp_path / "log", [*GOOD, "{half a li", {"room": 5, "op": "clear", "status": "Absent"}])
    told = story(path, 5, batch=batch)
    assert [line.number for line in told.lines] == [2, 3]
    assert told.fatal == 3
    assert told.sentence.startswith("Line 3: Transferring over Failed (poll) breaks terminal-sticky")
    assert told.sentence.endswith(f" {path}, line 4: not a JSON object; this is about what came before.")


def test_a_damaged_line_before_the_first_event_of_the_room(tmp_path: Path) -> None:
    """There is nothing to tell: one line names the damage, and says that the room did not come before it."""
    path = ndjson(tmp_path / "log", [*GOOD, "{half a li", {"room": 6, "op": "poll"}])
    message = "line 4: not a JSON object; before that, the log has 1 room, and no event of room 6$"
    with pytest.raises(LogError, match=message):
        story(path, 6)


def test_a_log_is_not_held_in_memory(tmp_path: Path) -> None:
    """A log of 20 MB, where the room has two events among other rooms' 20,000, takes a small part of its size."""
    other = json.dumps({"room": 6, "op": "poll", "status": "Failed", "note": "x" * 1000})
    path = ndjson(tmp_path / "log", [GOOD[0], *[other] * 20_000, GOOD[1]])
    story(path, 5)  # the verdicts of the laws are computed once
    tracemalloc.start()
    told = story(path, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [line.number for line in told.lines] == [2, 20_003]
    assert peak < path.stat().st_size / 5


def test_progress_comes_to_the_end() -> None:
    """It counts up to the size of the log."""
    seen: list[tuple[int, int]] = []
    story(SEED, SEED_ROOM, batch=5, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (SEED.stat().st_size,) * 2


# --------------------------------------------------------------------------------------------------------------------
# Columns


def arrow_table(rows: list[Row], *names: str) -> Any:
    """The events as an Arrow table of these columns."""
    pa = pytest.importorskip("pyarrow", reason="Parquet and Arrow are read with pyarrow")
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


SEED_ROWS = [json.loads(line) for line in SEED.read_text().splitlines()[1:]]


@pytest.mark.parametrize("write", [parquet, arrow_file])
def test_columns_tell_the_same_story(tmp_path: Path, write: Any) -> None:
    """Threads and times are read from columns of these names; rows are counted from 1, lines from the header on."""
    table = arrow_table(SEED_ROWS, "room", "op", "status", "incoming", "thread", "time")
    told, text_log = story(write(tmp_path / "log", table), SEED_ROOM, batch=5), story(SEED, SEED_ROOM)
    assert [(n + 1, *rest) for n, *rest in did(told)] == did(text_log)
    assert [line.time for line in told.lines] == [line.time for line in text_log.lines]
    assert told.fatal == 14
    assert told.heading.endswith("8 events, rows 3 to 22, 0.195 s")
    assert told.sentence.partition(":")[2] == text_log.sentence.partition(":")[2]


@pytest.mark.parametrize("write", [parquet, arrow_file])
def test_columns_without_threads_and_times(tmp_path: Path, write: Any) -> None:
    """They may be missing."""
    told = story(write(tmp_path / "log", arrow_table(SEED_ROWS, "room", "op", "status")), SEED_ROOM)
    assert told.threads == ("log",)
    assert {line.time for line in told.lines} == {""}


@pytest.mark.parametrize("write", [parquet, arrow_file])
def test_a_damaged_row_of_the_room_ends_its_story(tmp_path: Path, write: Any) -> None:
    """It is not told itself, and the sentence names it."""
    rows = [{"room": 5, "op": op, "status": "Failed", "thread": op} for op in ("abort", "peek", "poll")]
    told = story(write(tmp_path / "log", arrow_table(rows, "room", "op", "status", "thread")), 5)
    assert did(told) == [(1, "abort", "abort", "Failed")]
    assert f"{tmp_path / 'log'}, row 2: 'op' is \"peek\"" in told.sentence


@pytest.mark.parametrize("write", [parquet, arrow_file])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_names_of_a_dictionary_and_numbered_threads(tmp_path: Path, write: Any, unit: str) -> None:
    """A time may be a timestamp of any unit, nanoseconds included; a thread may be a number or in a dictionary."""
    pa = pytest.importorskip("pyarrow", reason="Parquet and Arrow are read with pyarrow")
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    base = {"room": [5] * 3, "op": ["abort"] * 3, "status": ["Failed"] * 3}
    ticks = [1_700_000_000 * second + (1 if unit == "ns" else 0), None, 1_700_000_002 * second]
    times = pa.array(ticks, pa.timestamp(unit))
    for threads, expected in (
        (pa.array([11, None, 12]), ["11", "log", "12"]),
        (pa.array(["a", None, "b"]).dictionary_encode(), ["a", "log", "b"]),
    ):
        told = story(write(tmp_path / "log", pa.table({**base, "thread": threads, "time": times})), 5)
        assert [line.thread for line in told.lines] == expected
        assert [line.time for line in told.lines] == ["+0 s", "", "+2 s"]


def test_columns_of_another_kind_are_as_good_as_none(tmp_path: Path) -> None:
    """A list as a thread, a duration as a time: the log is told without them."""
    pa = pytest.importorskip("pyarrow", reason="Parquet and Arrow are read with pyarrow")
    table = pa.table({"room": [5], "op": ["abort"], "status": ["Failed"], "thread": [["a"]],
                      "time": pa.array([1], pa.duration("ns"))})  # fmt: skip
    [line] = story(parquet(tmp_path / "log", table), 5).lines
    assert (line.thread, line.time) == ("log", "")


# --------------------------------------------------------------------------------------------------------------------
# Which files are logs


def test_logs_are_told_from_traces_by_how_they_begin(tmp_path: Path) -> None:
    """NDJSON of any version, Parquet and Arrow are logs; a trace, an empty file and a folder are not."""
    trace = tmp_path / "trace"
    trace.write_text('{"#meta": {"format": "ITF"}, "vars": []}')
    later = tmp_path / "later"
    later.write_text('{"kvlatch-log": 2}\n')
    empty = tmp_path / "empty"
    empty.touch()
    assert [is_log(path) for path in (SEED, later, trace, empty, tmp_path)] == [True, True, False, False, False]
    table = arrow_table(SEED_ROWS, "room", "op", "status")
    assert is_log(parquet(tmp_path / "p", table))
    assert is_log(arrow_file(tmp_path / "a", table))
