"""``kvlatch check LOG --design NAME``: which rooms are runs of that design, and which event no run explains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvlatch.commands.exits import Failure
from kvlatch.commands.main import cli
from kvlatch.spec.designs import DESIGNS
from tests.proofs.test_validate_threads import Server, incident

STATUSES_ONLY = Path(__file__).parents[1] / "logs" / "seed.ndjson"


def check(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["check", *map(str, arguments)], standalone_mode=False)


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The incident, on threads of seed-control: Transferring is written over Failed."""
    log = tmp_path_factory.mktemp("log") / "pinned.ndjson"
    incident(DESIGNS["seed-control"], "split", log)
    return log


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty rooms of latch, with aborts."""
    log = tmp_path_factory.mktemp("log") / "healthy.ndjson"
    Server(DESIGNS["latch"], "locked", log, rooms=20, seed=1).run()
    return log


def test_a_log_of_the_design_is_a_run_in_every_room(healthy: Path) -> None:
    done = check(healthy, "--design", "latch", "--only", "run-of-design")
    assert done.return_value == 0
    assert "kept        run-of-design: 20 rooms, each a run of latch, could have broken it" in done.output


def test_the_event_that_no_run_explains_is_named_with_what_could_have_come(pinned: Path) -> None:
    """As the log names its threads; on stdout, in JSON, and with the command that shows the room."""
    assert check(pinned, "--design", "seed-control", "--only", "run-of-design").return_value == 0
    done = check(pinned, "--design", "latch", "--only", "run-of-design", "--json")
    assert done.return_value == 1
    found = json.loads(done.output)
    (room,) = found["run_of_design"]["no_runs"]
    lines = pinned.read_text(encoding="utf-8").splitlines()
    said = json.loads(lines[room["line"] - 1])
    assert (said["op"], said["incoming"], said["status"]) == ("write", "Transferring", "Transferring")
    assert room["event"] == "worker 0 write Transferring: Transferring"
    assert (
        "worker 0 write Transferring: Failed" in room["possible"] or "worker 0 write Transferring" in room["possible"]
    )
    (judged,) = found["judgements"]
    assert (judged["law"], judged["verdict"], judged["line"]) == ("run-of-design", "broken", room["line"])
    assert judged["again"] == f"kvlatch show {pinned} --room 7"


def test_what_could_have_come_is_said_in_the_words_of_the_log(pinned: Path, tmp_path: Path) -> None:
    """Threads have the log's names, chunks its numbers."""
    renamed = tmp_path / "log"
    text = pinned.read_text(encoding="utf-8").replace('"worker 0"', '"kv-sender-3"')
    renamed.write_text(text.replace('"chunk":1', '"chunk":11').replace('"chunk": 1', '"chunk": 11'), encoding="utf-8")
    (room,) = json.loads(check(renamed, "--design", "latch", "--json").output)["run_of_design"]["no_runs"]
    assert any(line.startswith("kv-sender-3 write Transferring") for line in room["possible"])
    assert not any(line.startswith("worker") for line in room["possible"])


def test_the_laws_are_answered_as_well(pinned: Path) -> None:
    """A run of a design that breaks a law breaks it: whether a log is a run says nothing about that."""
    done = check(pinned, "--design", "seed-control")
    assert done.return_value == 1
    assert "broken      terminal-sticky" in done.output
    assert "kept        run-of-design: 1 room, each a run of seed-control" in done.output


def test_of_several_logs_the_line_is_that_of_its_log(pinned: Path, healthy: Path) -> None:
    (alone,) = json.loads(check(pinned, "--design", "latch", "--json").output)["run_of_design"]["no_runs"]
    moved = pinned.with_name("moved.ndjson")
    moved.write_text(
        pinned.read_text(encoding="utf-8").replace('"room":7', '"room":777').replace('"room": 7', '"room": 777')
    )
    (second,) = json.loads(check(healthy, moved, "--design", "latch", "--json").output)["run_of_design"]["no_runs"]
    assert (second["log"], second["line"]) == (str(moved), alone["line"])


def test_one_room_only_and_one_atomicity_only(pinned: Path) -> None:
    """Without a lock Fix A does what the incident shows, with one it does not."""
    only = ("--only", "run-of-design", "--room", 7)
    assert check(pinned, "--design", "fix-a", *only).return_value == 0
    assert check(pinned, "--design", "fix-a", "--atomicity", "split", *only).return_value == 0
    assert check(pinned, "--design", "fix-a", "--atomicity", "locked", *only).return_value == 1
    assert check(pinned, "--design", "fix-a", "--only", "run-of-design", "--room", 8).return_value == 3


def test_a_log_that_tells_too_little_is_not_judged() -> None:
    done = check(STATUSES_ONLY, "--design", "latch", "--only", "run-of-design")
    assert done.return_value == 3
    assert "not judged  run-of-design: the log has no infos, enqueue, take, tell" in done.output


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--atomicity", "split"), "--atomicity has no effect without --design"),
        (("--design", "latch", "--since", 3), "--since has no effect with --design"),
        (("--design", "latch", "--follow"), "--follow has no effect with --design"),
        (("--design", "latch", "--atomicity", "split"), "latch is no design of split updates, but of locked or cas"),
        (("--design", "two-ranks"), "two-ranks"),
        (("--only", "run-of-design"), "no law is called 'run-of-design'"),
    ],
)
def test_bad_usage_is_one_line(pinned: Path, options: tuple[object, ...], why: str) -> None:
    done = check(pinned, *options)
    assert isinstance(done.exception, Failure)
    assert done.exception.code == 2
    assert why in str(done.exception)


def test_a_pipe_cannot_be_read_twice() -> None:
    done = CliRunner().invoke(
        cli, ["check", "-", "--design", "latch"], input='{"kvlatch-log": 2}\n', standalone_mode=False
    )
    assert isinstance(done.exception, Failure)
    assert "a pipe" in str(done.exception)
