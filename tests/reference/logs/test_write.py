"""A log that is written is read, whatever becomes of its writer."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.events import Event
from kvlatch.reference.logs.read import open_log
from kvlatch.reference.logs.runs import Recording
from kvlatch.reference.logs.write import LogWriter
from kvlatch.spec.status import KVPoll
from tests.test_bugs import IN_A_ROOM, play


def events_of(path: Path) -> list[Event]:
    return [event for batch in open_log(path).batches() for event in batch.events]


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    """Every field of a run of the spec comes back, and so does the verdict."""
    told = IN_A_ROOM[0]
    events = list(Recording(told.machine, 7, "prefill", "1").events(play(told), polled=True))
    clock = iter(event.time or 0.0 for event in events)
    with LogWriter(tmp_path / "log", node="prefill", rank="1", clock=lambda: next(clock)) as log:
        for event in events:
            fields = {"incoming": event.incoming, "request": event.request, "chunk": event.chunk, "peer": event.peer}
            known = {name: value for name, value in fields.items() if value is not None}
            log.event(event.op, event.room, event.status or "", thread=event.thread, last=event.last, **known)
    read = events_of(tmp_path / "log")
    assert read == [event._replace(line=line) for line, event in enumerate(events, 2)]
    assert told.prop in check(tmp_path / "log").laws


def test_statuses_of_ours_and_no_entry(tmp_path: Path) -> None:
    """A KVPoll is written by its name, None as Absent, and nothing where nobody looked."""
    with LogWriter(tmp_path / "log") as log:
        log.event("write", 2**64 - 1, KVPoll.Success, incoming=KVPoll.Success)
        log.event("clear", "chatcmpl-1", None)
        log.event("poll", 7)
    assert [event.status for event in events_of(tmp_path / "log")] == ["Success", "Absent", None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fly", 7), "'fly' is not among the operations"),
        (("poll", -1), "-1 is not a room id"),
        (("poll", 7, "Faild"), "'Faild' is not a status"),
        (("take", 7), "'take' says which 'chunk'"),
        (("tell", 7), "'tell' says which 'incoming'"),
    ],
)
def test_what_no_reader_would_take_is_not_written(tmp_path: Path, arguments: Any, message: str) -> None:
    """The log stays readable."""
    with LogWriter(tmp_path / "log") as log, pytest.raises(ValueError, match=message):
        log.event(*arguments)
    assert events_of(tmp_path / "log") == []
    with pytest.raises(ValueError, match="no operation is called 'fly'"):
        LogWriter(tmp_path / "other", ["fly"])
    with pytest.raises(FileExistsError):
        LogWriter(tmp_path / "log")


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    """Each line is one write."""
    with LogWriter(tmp_path / "log") as log:

        def write(room: int) -> None:
            for _ in range(300):
                log.event("poll", room, KVPoll.Transferring, note="x" * 200)

        threads = [threading.Thread(target=write, args=(room,)) for room in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(events_of(tmp_path / "log")) == 1200


def test_a_killed_process_leaves_what_it_has_written(tmp_path: Path) -> None:
    """SIGKILL after a hundred events: a hundred are read, and the last line is whole."""
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom kvlatch.reference.logs.write import LogWriter\n"
        "log = LogWriter(Path(sys.argv[1]))\n"
        "for room in range(100):\n    log.event('create', room, 'Bootstrapping')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "log"], check=False, timeout=60, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    report = check(tmp_path / "log")
    assert (report.events, report.error) == (100, None)
