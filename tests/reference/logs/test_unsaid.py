"""What a log does not show, what decode is told, and what the two ends of a request say of each other."""

from pathlib import Path

import pytest

from tests.reference.logs.log_files import Row
from tests.reference.logs.test_judge import BOOT, CLEAR, DONE, LIFE, WAIT, answers, broken, of

# --------------------------------------------------------------------------------------------------------------------
# Statuses that were not observed


@pytest.mark.parametrize("op", ["write", "abort"])
def test_after_a_write_that_was_not_observed_the_status_is_not_known(tmp_path: Path, op: str) -> None:
    """Nothing is concluded from the status before it: no jump to Success, no overlap, no pin."""
    hidden = {"op": op} | ({"incoming": "WaitingForInput"} if op == "write" else {})
    known = [{**row, "room": 1} for row in LIFE]
    assert "success-complete" in broken(of(tmp_path, *known, BOOT, DONE))
    assert "success-complete" not in broken(of(tmp_path, *known, BOOT, hidden, DONE))
    assert "room-reusable/overlap" in broken(of(tmp_path, BOOT, BOOT))
    assert "room-reusable/overlap" not in broken(of(tmp_path, BOOT, hidden, BOOT))
    late = [{**row, "room": 1, "time": 1000.0} for row in LIFE]
    assert "settlement" in broken(of(tmp_path, {**BOOT, "time": 0}, *late))
    assert "settlement" not in broken(of(tmp_path, {**BOOT, "time": 0}, {**hidden, "time": 1}, *late))


def test_a_wake_up_that_was_not_observed_is_not_lost(tmp_path: Path) -> None:
    """Metadata is there, and whether its write came through is not known; a poll that reads Bootstrapping tells."""
    infos: list[Row] = [{"op": "infos", "thread": "b"}, {"op": "write", "incoming": "WaitingForInput", "thread": "b"}]
    rows = [BOOT, *infos, {"op": "end", "thread": "b"}]
    assert broken(of(tmp_path, *rows, version=2)) == set()
    lost = [BOOT, infos[0], {"op": "end", "thread": "b"}]
    assert broken(of(tmp_path, *lost, version=2)) == {"no-lost-wakeup"}


def test_metadata_that_came_first_is_found_by_the_constructor_or_by_nobody(tmp_path: Path) -> None:
    """The table shows Bootstrapping for a moment, which is no lost wake-up; a poll that shows it is one."""
    early: list[Row] = [{"op": "infos", "thread": "b"}, {"op": "end", "thread": "b"}, {**BOOT, "thread": "s"}]
    poll = {"op": "poll", "status": "Bootstrapping", "thread": "s"}
    assert broken(of(tmp_path, *early, {**WAIT, "thread": "s"}, version=2)) == set()
    assert broken(of(tmp_path, *early, poll, version=2)) == {"no-lost-wakeup"}


def test_the_ghost_of_a_request_that_has_settled_is_no_pin(tmp_path: Path) -> None:
    """It is a ghost, however long it stays; a request that was not cleared is pinned."""
    late = [{**row, "room": 1, "time": 1000.0} for row in LIFE]
    moves: list[Row] = [{**row, "time": 1.0} for row in (BOOT, WAIT)]
    ghost: Row = {"op": "write", "incoming": "Transferring", "status": "Transferring", "time": 2.0}
    report = of(tmp_path, *moves, {**CLEAR, "time": 1.5}, ghost, *late)
    assert broken(report) == {"no-ghost"}
    assert report.running == 0
    assert broken(of(tmp_path, *moves, ghost, *late)) == {"no-pin", "settlement"}


def test_a_terminal_status_stays_known(tmp_path: Path) -> None:
    """Whatever a write in between has left, somebody has taken Failed away."""
    failed = {"op": "abort", "status": "Failed"}
    hidden = {"op": "write", "incoming": "Transferring"}
    assert broken(of(tmp_path, BOOT, failed, hidden, DONE)) == {"terminal-sticky", "no-resurrection"}


def test_a_table_without_transfers_beside_one_that_has_them(tmp_path: Path) -> None:
    """Decode's table has no posts: Success over Bootstrapping is judged there only if the log says it logs them."""
    sent: list[Row] = [{"op": "post", "chunk": 0, "thread": "w"}, {"op": "arrive", "chunk": 0, "thread": "w"}]
    prefill = [{**row, "node": "p"} for row in [*LIFE[:3], *sent, *LIFE[3:]]]
    decode = [{**row, "node": "d"} for row in [{**BOOT, "room": 8}, {**WAIT, "room": 8}, BOOT, DONE]]
    report = of(tmp_path, *prefill, *decode, version=2)
    assert broken(report) == set()
    [reason] = [str(one.answer) for one in report.judgements if one.law == "success-complete"]
    assert reason.startswith("room 7 on d went from Bootstrapping to Success, and transfers are logged in other tables")
    declared = of(tmp_path, *prefill, *decode, version=2, header={"ops": ["post", "arrive"]})
    assert broken(declared) == {"success-complete"}


def test_a_late_write_that_changes_nothing_decides_nothing(tmp_path: Path) -> None:
    """The first request's metadata comes again and finds the second one's Transferring; an abort that fails it does."""
    rows: list[Row] = [{**row, "request": "1"} for row in LIFE]
    rows += [{**row, "request": "2"} for row in LIFE[:3]]
    late = {"op": "write", "incoming": "WaitingForInput", "status": "Transferring", "request": "1"}
    assert broken(of(tmp_path, *rows, late, version=2)) == set()
    hidden = {"op": "write", "incoming": "Transferring", "request": "2"}
    assert broken(of(tmp_path, *rows[:-1], hidden, late, version=2)) == set()
    assert broken(of(tmp_path, *rows, {"op": "abort", "status": "Failed", "request": "1"}, version=2)) == {
        "room-reusable"
    }


# --------------------------------------------------------------------------------------------------------------------
# What decode is told


@pytest.mark.parametrize("incoming", ["Failed", "Success"])
def test_decode_is_told_once(tmp_path: Path, incoming: str) -> None:
    """Twice is found; each of two peers once is not twice; a second Failed is judged only where its request is said."""
    tell = {"op": "tell", "incoming": incoming, "peer": "d0", "request": "1"}
    assert broken(of(tmp_path, tell, tell, version=2)) == {"told-once"}
    once = of(tmp_path, tell, {**tell, "peer": "d1"}, version=2)
    assert answers(once)["told-once"] == "kept"
    nameless = {**tell, "request": None}
    verdict = {"Failed": "not judged", "Success": "broken"}[incoming]
    assert answers(of(tmp_path, nameless, nameless, version=2))["told-once"] == verdict


def test_decode_is_told_in_the_life_of_the_request(tmp_path: Path) -> None:
    """Not when the next one has been created; before that, or by a clock that says so, it is in time."""
    first: list[Row] = [{**row, "request": "1"} for row in (BOOT, {"op": "abort", "status": "Failed"}, CLEAR)]
    second = {**BOOT, "request": "2", "time": 2.0}
    tell = {"op": "tell", "incoming": "Failed", "request": "1", "time": 3.0}
    assert broken(of(tmp_path, *first, second, tell, version=2)) == {"told-once"}
    assert broken(of(tmp_path, *first, tell, second, version=2)) == set()
    assert broken(of(tmp_path, *first, second, {**tell, "time": 1.0}, version=2)) == set()
    assert broken(of(tmp_path, *first, second, {**tell, "request": "2"}, version=2)) == set()


# --------------------------------------------------------------------------------------------------------------------
# Both ends of a request

FAIL: Row = {"op": "write", "incoming": "Failed", "status": "Failed"}
ABORT: Row = {"op": "abort", "status": "Failed"}


def end_of(node: str, ended: Row, ranks: int = 1, request: str | None = None) -> list[Row]:
    """What a node logs of a request that ends like that; prefill (node p) also tells decode."""
    told: list[Row] = [{"op": "tell", "incoming": ended["status"], "peer": "d"}] if node == "p" else []
    rows = [BOOT, WAIT, ended, *told, {"op": "conclude", "incoming": ended["status"]}, CLEAR]
    name = {"request": request} if request else {}
    return [{**row, **name, "node": node, "rank": str(rank)} for rank in range(ranks) for row in rows]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("prefill", "decode", "disagree"),
    [(DONE, DONE, False), (FAIL, FAIL, False), (ABORT, FAIL, False), (DONE, FAIL, True), (DONE, ABORT, False),
     (FAIL, DONE, True), (ABORT, DONE, True), (ABORT, ABORT, False)],
)  # fmt: skip
def test_an_abort_explains_that_decode_failed_never_that_it_succeeded(
    tmp_path: Path, prefill: Row, decode: Row, ranks: int, disagree: bool
) -> None:
    """Prefill's ranks against decode's, alone or as a group, in the first request of a room and in its second."""
    both = end_of("p", prefill, ranks) + end_of("d", decode)
    assert broken(of(tmp_path, *both, version=2)) == ({"one-outcome/both-ends"} if disagree else set())
    first = end_of("p", DONE, ranks, "1") + end_of("d", DONE, 1, "1")
    second = end_of("p", prefill, ranks, "2") + end_of("d", decode, 1, "2")
    for rows in (first + second, [{**row, "request": "3"} for row in second] + first):
        assert broken(of(tmp_path, *rows, version=2)) == ({"one-outcome/both-ends"} if disagree else set())


def test_ends_that_cannot_be_paired(tmp_path: Path) -> None:
    """Requests that the nodes number otherwise, ranks that do not agree after an abort, an end that is not shown."""
    first = end_of("p", DONE, 1, "1") + end_of("p", ABORT, 1, "2")
    assert broken(of(tmp_path, *first, *end_of("d", DONE, 1, "2"), version=2)) == set()
    mixed = end_of("p", DONE, 2)[:6] + [{**row, "rank": "1"} for row in end_of("p", ABORT)]
    assert broken(of(tmp_path, *mixed, *end_of("d", DONE), version=2)) == set()
    unfinished = [row for row in end_of("p", DONE, 2) if row["op"] not in ("conclude", "tell") or row["rank"] == "0"]
    unfinished = [row for row in unfinished if row["rank"] == "0" or row.get("status") in ("Bootstrapping", None)]
    assert broken(of(tmp_path, *unfinished, *end_of("d", FAIL), version=2)) == set()
