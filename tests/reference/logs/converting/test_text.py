"""SGLang's text logs: what they decide, and that nobody is accused for what they do not show."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.converting.digest import Digest
from kvlatch.reference.logs.converting.messages import Side
from kvlatch.reference.logs.converting.read import HEADER, converted
from kvlatch.reference.logs.report import Report

PREFILL = "[2026-03-01 09:00:00] server_args=ServerArgs(model_path='m', disaggregation_mode='prefill')"
DECODE = "[2026-03-01 09:00:00] server_args={'model_path': 'm', 'disaggregation_mode': 'decode'}"
ROOM = 4618074507212012089


def stamp(seconds: float, rank: str = " TP0") -> str:
    """The head of a line, so many seconds after ten o'clock."""
    minutes, whole = divmod(int(seconds), 60)
    return f"[2026-03-01 {10 + minutes // 60:02}:{minutes % 60:02}:{whole:02}{rank}]"


def marked(at: float, room: int = ROOM) -> str:
    return f"{stamp(at)} Received abort notification for room {room}, marked as Failed"


def complete(at: float, room: int = ROOM) -> str:
    return f"{stamp(at)} {room=} is bootstrapped"


def failed(at: float, why: str, room: int = ROOM, kind: str = "Prefill bootstrap", own: str = "req") -> str:
    reason = f"KVTransferError(bootstrap_room={room}): {why}"
    return (
        f"{stamp(at)} {kind} failed for request rank=0 {own}.rid='a{room}' {own}.bootstrap_room={room} "
        f"with exception {reason}"
    )


def timed_out(at: float, seconds: float, room: int = ROOM) -> str:
    return failed(at, f"Request {room} timed out after {seconds:.1f}s in KVPoll.Bootstrapping", room)


def finished(at: float, reason: str, room: int = ROOM, host: str = "10.0.0.7") -> str:
    asked = f"GenerateReqInput(rid='a{room}', text='bootstrap_room=5 \\'), out={{', bootstrap_host={host!r}, "
    return (
        f"{stamp(at, '')} Finish: obj={asked}bootstrap_room={room}), out={{'text': \"it's {{\", "
        f"'meta_info': {{'id': 'a{room}', 'finish_reason': {reason}}}}}"
    )


DONE = "{'type': 'length', 'length': 0}"


def read(
    folder: Path, digest: Digest | None = None, side: Side | None = None, **logs: Sequence[str]
) -> tuple[Report, Digest]:
    """What ``kvlatch check`` says of converted text logs."""
    digest = digest or Digest("line")
    paths = []
    for name, lines in logs.items():
        paths.append(folder / f"{name}.log")
        paths[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    log = folder / "log.ndjson"
    said = list(converted(paths, None, side, digest))
    log.write_text("".join(f"{json.dumps(one)}\n" for one in [HEADER, *said]), encoding="utf-8")
    return check(log), digest


def laws(report: Report) -> set[str]:
    assert report.error is None
    return {finding.law for finding in report.findings}


# --------------------------------------------------------------------------------------------------------------------
# What is found


def test_a_wake_up_that_was_lost_is_found(tmp_path: Path) -> None:
    """Metadata was complete while the sender lived, and it timed out in Bootstrapping all the same."""
    report, _ = read(tmp_path, prefill=[complete(5), timed_out(303, 300)])
    assert laws(report) == {"no-lost-wakeup"}


def test_an_abort_that_was_undone_is_found(tmp_path: Path) -> None:
    report, _ = read(tmp_path, prefill=[marked(100), timed_out(303, 300)])
    assert laws(report) == {"terminal-sticky"}


@pytest.mark.parametrize("prefill", [failed(50, "KV transfer failed", kind="Prefill transfer"), finished(50, DONE)])
def test_ends_that_disagree_are_found(tmp_path: Path, prefill: str) -> None:
    """Prefill failed and decode finished, or the other way round when prefill had told decode of a failure."""
    told = failed(60, "Failed to get kvcache from prefill instance, it might be dead", kind="Decode transfer",
                  own="decode_req.req")  # fmt: skip
    decode = finished(60, "{'type': 'stop', 'matched': 2}") if "failed" in prefill else told
    report, _ = read(tmp_path, prefill=[PREFILL, prefill], decode=[DECODE, decode])
    assert laws(report) == {"one-outcome"}


@pytest.mark.parametrize(
    "lines",
    [
        (f"{stamp(7)} prefill bootstrap_thread died on engine_rank=0; requests to this rank will time out",
         "Traceback (most recent call last):", '  File "conn.py", line 3, in run', "AssertionError: foreign traffic"),
        ("Exception in thread Thread-9 (transfer_worker):", "Traceback (most recent call last):",
         "    raise RuntimeError(", "AssertionError: foreign traffic"),
    ],
)  # fmt: skip
def test_a_thread_that_died_is_found(tmp_path: Path, lines: tuple[str, ...]) -> None:
    """With what it died of, from the traceback that follows."""
    report, _ = read(tmp_path, prefill=[PREFILL, complete(5), *lines, complete(9, 8)])
    (finding,) = report.findings
    assert finding.law == "no-crash"
    assert "AssertionError: foreign traffic" in finding.sentence


# --------------------------------------------------------------------------------------------------------------------
# Nobody is accused


@pytest.mark.parametrize(
    "lines",
    [
        [complete(5), timed_out(400, 300)],  # the metadata of an earlier request with that id
        [marked(5), timed_out(400, 300)],
        [timed_out(300, 300), complete(301)],
        [complete(302), timed_out(303, 300)],  # it came while the sender gave up: two lines, in either order
        [marked(303), timed_out(303, 300)],
        [timed_out(303, 300), marked(303)],
        [marked(100), failed(100, "Aborted by decode-side abort notification.")],
        [marked(100), marked(101)],  # written twice, looked at never
        [complete(5, 8), timed_out(303, 300, 9)],
        [complete(5).replace("TP0", "TP1"), timed_out(303, 300)],  # another rank's table
        [complete(5), "Exception in thread Thread-3 (somebody_elses):", "ValueError: his"],
        [f"{stamp(5)} Skipping chunk for room {ROOM} because it has been cleared", complete(6), timed_out(900, 300)],
        [marked(100), PREFILL, timed_out(303, 300)],  # started again
        [marked(3500), complete(3501), complete(20, 3), timed_out(3510, 300)],  # the clock was set back by an hour
        [complete(5, 2**64), complete(6, 10**30), finished(7, DONE, 2**64)],  # no ids
        [complete(5), complete(400), failed(500, "Aborted by AbortReq.", kind="Prefill transfer")],
    ],
)
def test_what_may_be_healthy_is_not_accused(tmp_path: Path, lines: list[str]) -> None:
    report, _ = read(tmp_path, prefill=[PREFILL, *lines])
    assert not laws(report)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (finished(60, DONE), failed(360, f"Request {ROOM} timed out after 300.1s in KVPoll.WaitingForInput",
                                    kind="Decode transfer", own="decode_req.req")),  # told too late, or not at all
        (failed(50, "Aborted by AbortReq.", kind="Prefill transfer"), finished(60, "{'type': 'stop', 'matched': 2}")),
        (finished(60, DONE), finished(90, "{'type': 'abort', 'message': 'Aborted'}")),
        (failed(50, "boom"), finished(60, DONE, host="2.2.2.2")),  # decode's own warm-up
        (failed(50, "boom"), failed(51, "Failed to get kvcache from prefill instance", kind="Decode transfer",
                                    own="decode_req.req")),
    ],
)  # fmt: skip
def test_ends_that_may_differ_do(tmp_path: Path, prefill: str, decode: str) -> None:
    report, _ = read(tmp_path, prefill=[PREFILL, prefill], decode=[DECODE, decode])
    assert not laws(report)


def test_failures_alone_earn_nothing(tmp_path: Path) -> None:
    """A log that cannot show a Success cannot show that two ends disagree; nor is anything else kept."""
    report, _ = read(
        tmp_path,
        prefill=[failed(50, "boom"), failed(51, "boom", 8), marked(52), marked(53), failed(60, "boom")],
        decode=[failed(51, "Failed to get kvcache", kind="Decode transfer", own="decode_req.req")],
    )
    assert {judgement.verdict for judgement in report.judgements} == {"not judged"}
    assert report.exit_code == 3


def test_agreement_is_earned(tmp_path: Path) -> None:
    """Of two ends that both finished, where either could have failed."""
    report, _ = read(tmp_path, prefill=[PREFILL, finished(50, DONE)], decode=[DECODE, finished(60, DONE)])
    assert [j.law for j in report.judgements if j.verdict == "kept"] == ["one-outcome"]


def test_a_clock_that_goes_back_orders_nothing_anew(tmp_path: Path) -> None:
    """Local time goes back once a year; the lines stay as they are, and no silence comes of it."""
    report, _ = read(tmp_path, prefill=[complete(4000), marked(400, 8), timed_out(4100, 60)])
    assert not laws(report)
    assert not report.disorder


# --------------------------------------------------------------------------------------------------------------------
# What is told beside the events


def test_requests_without_an_end_are_listed(tmp_path: Path) -> None:
    """An abort that was marked and never came out, and a request that prefill never finished."""
    asked = finished(10, DONE, 8).replace("Finish:", "Receive:").partition(", out={'text'")[0]
    again = finished(10, DONE, 9).replace("Finish:", "Receive:").partition(", out={'text'")[0]
    _, digest = read(
        tmp_path,
        prefill=[PREFILL, marked(5), marked(6, 7), failed(7, "Aborted by decode", 7), asked, again,
                 finished(11, DONE, 9), complete(900, 1)],
    )  # fmt: skip
    (aborts, requests) = digest.open.items()
    assert "marked as Failed" in aborts[0]
    assert [place.room for place in aborts[1]] == [ROOM]
    assert [place.room for place in requests[1]] == [8]
    assert any(f"room {ROOM}" in line for line in digest.lines())
    assert json.dumps(digest.members())


def test_a_wake_up_that_may_be_lost_is_listed(tmp_path: Path) -> None:
    """The metadata came before the sender: the overwritten wake-up of the incident, or an id that is used again."""
    _, digest = read(tmp_path, prefill=[complete(5), timed_out(400, 300)])
    assert any("complete metadata" in says for says in digest.open)


def test_an_engine_that_does_not_say_what_it_is(tmp_path: Path) -> None:
    """Its requests are left out, and counted, unless the side is named; so are those of two engines in one file."""
    for start in ([], [PREFILL, DECODE]):
        _, digest = read(tmp_path, one=[*start, finished(5, DONE)])
        assert sum(digest.left_out.values()) == 1
        assert not digest.events
    _, digest = read(tmp_path, side="decode", one=[finished(5, DONE)])
    assert digest.events == 1


# --------------------------------------------------------------------------------------------------------------------
# Files


def test_rotated_files_come_in_the_order_of_time(tmp_path: Path) -> None:
    """However they are named: ``server.log`` is the newest, and the shell puts it first."""
    newer, older = tmp_path / "server.log", tmp_path / "server.log.1.gz"
    newer.write_text(f"{timed_out(303, 300)}\n", encoding="utf-8")
    older.write_bytes(gzip.compress(f"{complete(5)}\n".encode()))
    said = list(converted([newer, older], None, None, Digest("line")))
    assert [one["op"] for one in said] == ["infos", "write", "end", "create", "poll", "write", "conclude"]
    assert {one["node"] for one in said} == {"prefill@server"}


def test_engines_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    paths = [tmp_path / host / "server.log" for host in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(f"{complete(5)}\n", encoding="utf-8")
    assert len({one["node"] for one in converted(paths, None, None, Digest("line"))}) == 2


@pytest.mark.parametrize("before", ["prefill-1  | ", "2026-03-01T10:00:00Z stderr F ", "\x1b[32m"])
def test_what_a_container_puts_before_a_line(tmp_path: Path, before: str) -> None:
    path = tmp_path / "pod.log"
    path.write_bytes(f"{before}{complete(5)}\r\n".encode() + b"\xff\xfe broken \x00 bytes\n" + b"x" * 3_000_000)
    assert [one["op"] for one in converted([path], None, None, Digest("line"))] == ["infos", "write", "end"]


def test_milliseconds_are_taken(tmp_path: Path) -> None:
    """As SGLANG_LOG_MS has them."""
    path = tmp_path / "pod.log"
    path.write_text(complete(5).replace(" TP0]", ".250 DP1 TP0]") + "\n", encoding="utf-8")
    first = next(converted([path], None, None, Digest("line")))
    assert (first["time"] % 1, first["rank"]) == (0.25, "DP1 TP0")
