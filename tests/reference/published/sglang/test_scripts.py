"""The sglang adapter: offline on a tiny wheel of our own, and marked `network` on real ones."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvlatch
from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang.scripts import ABSENT, Observation, Step, run, run_many
from tests.reference.published.sglang.sglang_fake import make_wheel

CREATE = Step("scheduler", "create")


def write(status: str, thread: str = "bootstrap") -> Step:
    """A plain write."""
    return Step(thread, "write", status=status)


def going_on(part: Any, status: str | None = None) -> Step:
    """A part of worker 0's write."""
    return Step("worker 0", "write", part, status)


LOST_FAILED = [
    CREATE,
    write("WaitingForInput"),
    going_on("begin", "Transferring"),
    write("Failed"),
    going_on("finish"),
]

CONN = """
import threading
import torch
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.utils import anything

print("this must not reach the answer")
lock = threading.Lock()

class CommonKVManager:
    @anything("a decorator", of=torch.Tensor)
    def update_status(self, room, status):
        if status == KVPoll.Success:
            raise ValueError("no success today")
        with lock:
            current = self.request_status.get(room, status)
            self.request_status[room] = max(current, status)

    def start_prefill_thread(self):
        def bootstrap_thread():
            while True:
                kind, room, *required = self.server_socket.recv_multipart()
                if kind == b"ABORT":
                    self.update_status(int(room), KVPoll.Failed)
                else:
                    self.transfer_infos.setdefault(int(room), {})["peer"] = kind
                    if int(required[0]) == 1:
                        self.update_status(int(room), KVPoll.WaitingForInput)
        threading.Thread(target=bootstrap_thread).start()

class CommonKVSender:
    def __init__(self, mgr, bootstrap_addr, bootstrap_room):
        self.manager, self.room = mgr, bootstrap_room
        mgr.update_status(bootstrap_room, KVPoll.Bootstrapping)

    def poll(self):
        return self.manager.request_status[self.room]

    def abort(self):
        self.manager.unheard_of.append(self.room)

    def clear(self):
        self.manager.request_status.pop(self.room, None)
"""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Version 0 is pinned and in the cache."""
    return make_wheel(tmp_path, monkeypatch, CONN)


def make_child(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Another child than ours."""
    (folder / "another_child.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(sglang, "_CHILD", "another_child")


def seen(status: str, *, value: str | None = None, error: str | None = None, stores: int, **more: Any) -> Observation:
    """An observation of an op that was not held."""
    infos, held, created = more.pop("infos", False), more.pop("held", False), more.pop("created", 1)
    return Observation(status, infos, value, held, error, stores=stores, created=created, **more)


@pytest.mark.usefixtures("wheel")
def test_whole_steps() -> None:
    """Each step is observed: the status, the infos, what a poll returned, what was raised, the stores so far."""
    script = [CREATE, Step("bootstrap", "register"), write("Success"), Step("scheduler", "poll")]
    assert run("0", "common", script) == [
        [
            seen("Bootstrapping", stores=1),
            seen("Bootstrapping", stores=1, infos=True, heard=("METADATA 7 2",)),
            seen("Bootstrapping", stores=1, infos=True, error="ValueError: no success today"),
            seen("Bootstrapping", stores=1, infos=True, value="Bootstrapping"),
        ]
    ]


@pytest.mark.usefixtures("wheel")
def test_an_error_of_the_real_code_is_observed() -> None:
    """What upstream raises is seen, and the script goes on."""
    script = [CREATE, Step("scheduler", "clear"), Step("scheduler", "poll")]
    [play] = run("0", "common", script)
    assert [o.error for o in play] == [None, None, "KeyError: 7"]
    assert play[-1].status == ABSENT


@pytest.mark.usefixtures("wheel")
def test_what_a_backend_does_not_have_is_missing() -> None:
    """An op without code behind it changes nothing and says what there is instead."""
    script = [CREATE, Step("scheduler", "send"), Step("worker 0", "work"), Step("heartbeat", "lose_prefill")]
    [play] = run("0", "common", script)
    reasons = ["the manager transfers nothing", "there is no transfer worker", "there is no heartbeat thread"]
    assert all((o.missing or "").startswith(reason) for o, reason in zip(play[1:], reasons, strict=True))
    assert {o.status for o in play} == {"Bootstrapping"}


@pytest.mark.usefixtures("wheel")
def test_a_manager_that_lacks_an_attribute_is_a_fault() -> None:
    """What we have not given the manager is our fault, not upstream's behaviour."""
    with pytest.raises(sglang.AdapterFault, match="made without unheard_of"):
        run("0", "common", [CREATE, Step("scheduler", "abort")])


def test_a_lack_of_ours_is_not_caught_by_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where upstream catches every exception."""
    asked = "self.manager.unheard_of.append(self.room)"
    caught = f"try:\n            {asked}\n        except Exception:\n            pass"
    make_wheel(tmp_path, monkeypatch, CONN.replace(asked, caught))
    with pytest.raises(sglang.AdapterFault, match="made without unheard_of"):
        run("0", "common", [CREATE, Step("scheduler", "abort")])


@pytest.mark.usefixtures("wheel")
def test_an_op_is_held_before_its_store() -> None:
    """What happens while it is held, it overwrites."""
    script = [
        CREATE,
        Step("scheduler", "clear", "begin"),
        write("Transferring"),
        Step("scheduler", "clear", "finish"),
    ]
    [play] = run("0", "common", script)
    assert [(o.status, o.held) for o in play] == [
        ("Bootstrapping", False),
        ("Bootstrapping", True),
        ("Transferring", False),
        (ABSENT, False),
    ]


@pytest.mark.usefixtures("wheel")
def test_an_op_without_a_store_is_not_held() -> None:
    """It has ended when it is finished, and finishing it does nothing."""
    script = [CREATE, Step("scheduler", "poll", "begin"), Step("scheduler", "poll", "finish")]
    [play] = run("0", "common", script)
    assert [(o.held, o.value) for o in play[1:]] == [(False, "Bootstrapping"), (False, None)]


@pytest.mark.usefixtures("wheel")
def test_a_step_does_one_access() -> None:
    """A write that reads and stores is held before the read, before the store, and then no more."""
    steps = [going_on("step", "Transferring"), *[going_on("step")] * 3, going_on("finish")]
    [play] = run("0", "common", [CREATE, *steps])
    assert [(o.status, o.held, o.stores) for o in play[1:]] == [
        ("Bootstrapping", True, 1),
        ("Bootstrapping", True, 1),
        ("Transferring", False, 2),
        ("Transferring", False, 2),
        ("Transferring", False, 2),
    ]


@pytest.mark.usefixtures("wheel")
def test_a_step_stops_at_a_read_too() -> None:
    """What another thread stores while it is held before its read, it reads."""
    poll = [Step("scheduler", "poll", part) for part in ("step", "step")]
    [play] = run("0", "common", [CREATE, poll[0], write("Transferring"), poll[1]])
    assert [(o.held, o.value) for o in play] == [
        (False, None),
        (True, None),
        (False, None),
        (False, "Transferring"),
    ]


@pytest.mark.usefixtures("wheel")
def test_repetitions_start_afresh() -> None:
    """Each has its own manager, so nothing of one is seen in the next."""
    script = [Step("bootstrap", "register"), CREATE, write("Transferring")]
    first, *others = run("0", "common", script, repeat=5)
    assert len(others) == 4
    assert all(other == first for other in others)
    assert first[0].status == ABSENT


@pytest.mark.usefixtures("wheel")
def test_a_script_may_end_while_an_op_is_held() -> None:
    """The op does not go on in the next script."""
    [first], [second] = run_many("0", "common", [LOST_FAILED[:3], [CREATE]])
    assert first[-1].held
    assert second == [seen("Bootstrapping", stores=1)]


@pytest.mark.usefixtures("wheel")
def test_a_step_that_never_ends_is_a_fault() -> None:
    """A lock that is not ours keeps a thread waiting: both are named, once the time is up."""
    script = [going_on("begin", "Transferring"), write("WaitingForInput")]
    both = "bootstrap: write came to no end in 1 s while worker 0 is held in write"
    with pytest.raises(sglang.AdapterFault, match=both):
        run("0", "common", script, timeout=2)


LOCKED = CONN.replace("with lock:", "with self.failure_lock:")


def test_a_thread_waits_for_a_lock_that_a_held_thread_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The held one goes on until it gives the lock back, as it would; so the failure is lost here no more."""
    make_wheel(tmp_path, monkeypatch, LOCKED)
    [play] = run("0", "common", LOST_FAILED)
    assert play[3].waited == ("bootstrap waits for worker 0",)
    assert [(o.status, o.held) for o in play[2:]] == [
        ("WaitingForInput", True),
        ("Transferring", False),  # the rule is max: Failed does not get in
        ("Transferring", False),
    ]


@pytest.mark.parametrize(
    ("kind", "error"), [("Lock", "Deadlock: bootstrap waits for a lock that it has itself"), ("RLock", None)]
)
def test_a_lock_may_be_taken_again_if_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: str | None
) -> None:
    """A reentrant lock that the sender makes is reentrant; any other is a deadlock."""
    conn = CONN.replace("lock = threading.Lock()", "").replace("with lock:", "with lock, lock:")
    conn = conn.replace(
        "        if status == KVPoll.Success:", f"        lock = threading.{kind}()\n        if status == 9:"
    )
    make_wheel(tmp_path, monkeypatch, conn)
    [play] = run("0", "common", [write("WaitingForInput")])
    assert play[-1].error == error


def test_a_wheel_that_never_loads_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit holds for the loading, too."""
    make_wheel(tmp_path, monkeypatch, CONN + "while True: pass")
    with pytest.raises(sglang.AdapterFault, match=r"no answer in 0\.5 s"):
        run("0", "common", [CREATE], timeout=0.5)


def test_a_wheel_that_cannot_be_loaded_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the import is the reason."""
    make_wheel(tmp_path, monkeypatch, CONN + "1 / 0")
    with pytest.raises(sglang.AdapterFault, match="sglang 0 common: ZeroDivisionError"):
        run("0", "common", [CREATE])


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(
    ("child", "reason"),
    [
        ("import sys; sys.exit('out of luck')", "exit status 1: out of luck"),
        ("print('Hello')", "unusable answer"),
        ("print('[]')", "unusable answer"),
        ("print('{}')", "unusable answer"),
        ("import json; print(json.dumps({'runs': []}))", "does not fit"),
        ("import json; print(json.dumps({'runs': [[]]}))", "does not fit"),
        ("import json; print(json.dumps({'runs': [[{'seen': []}]]}))", "does not fit"),
        ("import json; print(json.dumps({'runs': [[[7]]]}))", "unusable answer"),
        ("import json; print(json.dumps({'runs': [[{'seen': [{'status': 'Fine'}]}]]}))", "unusable answer"),
        ("import os; os.abort()", "exit status -6"),
    ],
)
def test_garbage_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: str, reason: str) -> None:
    """Whatever the child answers, it is an observation of each step or a fault."""
    make_child(tmp_path, monkeypatch, child)
    with pytest.raises(sglang.AdapterFault, match=reason):
        run("0", "common", [CREATE])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([Step("scheduler", "poll")], "step 0, scheduler poll: no sender"),
        ([Step("scheduler", "create", "begin"), Step("a", "poll")], "step 1, a poll: no sender"),
        ([Step("a", "write", "finish")], "not begun"),
        ([Step("a", "write", "step")], "needs a status"),
        ([Step("a", "write", "begin", "Failed"), Step("a", "register")], "has not finished write"),
        ([Step("a", "write", "step", "Failed"), Step("a", "register", "step")], "has not finished write"),
        ([Step("a", "write", "begin", "Failed"), Step("a", "register", "finish")], "not begun"),
    ],
)
def test_a_senseless_script_is_refused(script: list[Step], reason: str) -> None:
    """Before anything is run, with the step's number."""
    with pytest.raises(ValueError, match=reason):
        run("0", "common", script)


@pytest.mark.parametrize(
    "arguments",
    [
        ("a", "vanish"),
        ("a", "write", "some"),
        ("a", "write"),
        ("a", "write", "begin", "Absent"),
        ("a", "poll", "whole", "Failed"),
        ("a", "reduce"),
    ],
)
def test_a_senseless_step_is_refused(arguments: tuple[Any, ...]) -> None:
    """An unknown op, part or status, and a status too many or too few."""
    with pytest.raises(ValueError, match=r"."):
        Step(*arguments)


@pytest.mark.usefixtures("wheel")
def test_unknown_backend() -> None:
    """A backend that the version does not have is refused, with those that it has."""
    with pytest.raises(sglang.UnknownBackend, match="'pigeon'; known: common") as caught:
        run("0", "pigeon", [CREATE])
    assert caught.value.exit_code == 2


def test_the_child_imports_the_standard_library_only() -> None:
    """Of kvlatch it imports its own modules, and of site-packages nothing."""
    path = Path(kvlatch.__file__).parents[1]
    child = "kvlatch.reference.published.sglang.child"
    code = f"import sys; sys.path.append({str(path)!r}); import {child}.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    foreign = {name for name in loaded.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    own = {f"{child}{part}" for part in ("", ".__main__", ".construct", ".parts", ".room", ".threads", ".upstream")}
    above = {"kvlatch", "kvlatch.reference", "kvlatch.reference.published", "kvlatch.reference.published.sglang"}
    assert foreign - {"__main__"} == {*above, "kvlatch.reference.published.stand_ins", *own}


# --- The published wheels -------------------------------------------------------------------------

TIMES = 100


@functools.cache
def reason_without_wheel(version: str) -> str | None:
    """Asked once a version: without a network, each attempt takes pip a while."""
    try:
        sglang.fetch(version)
    except sglang.CannotFetch as error:
        return str(error)
    return None


def skip_unless_fetched(version: str) -> None:
    """Skips where the wheel cannot be had."""
    if reason := reason_without_wheel(version):
        pytest.skip(reason)


@pytest.mark.network
@pytest.mark.parametrize(
    ("version", "status", "polled"),
    [("0.5.15.post1", "Transferring", "Failed"), ("0.5.23", "Failed", "Failed")],
)
def test_seed_race(version: str, status: str, polled: str) -> None:
    """Abort, then a worker's write: the failed room is resurrected where Failed is not sticky."""
    skip_unless_fetched(version)
    script = [
        CREATE,
        Step("bootstrap", "metadata"),
        Step("scheduler", "abort"),
        write("Transferring", "worker 0"),
        Step("scheduler", "poll"),
    ]
    [play] = run(version, "mooncake", script)
    assert [o.status for o in play[:3]] == ["Bootstrapping", "WaitingForInput", "Failed"]
    assert [o.infos for o in play[:2]] == [False, True]
    assert all(o.error is None for o in play)
    assert (play[3].status, play[4].value) == (status, polled)


@pytest.mark.network
@pytest.mark.parametrize(("version", "dead"), [("0.5.12", ()), ("0.5.15.post1", ("bootstrap",)), ("0.5.16", ())])
def test_an_abort_by_decode(version: str, dead: tuple[str, ...]) -> None:
    """The frames of the real receiver kill the real bootstrap thread, from 0.5.13 to 0.5.15.post1."""
    skip_unless_fetched(version)
    [play] = run(version, "nixl", [CREATE, Step("bootstrap", "abort_notice"), Step("bootstrap", "metadata")])
    assert play[-1].dead == dead
    assert play[-1].status == ("Bootstrapping" if dead else play[-1].status)
    assert (play[1].missing is None) == (version != "0.5.12")
    assert not dead or play[1].heard == ("ABORT 7 127.0.0.1 1",)


@pytest.mark.network
def test_repeating_a_split_write_gives_the_same_each_time() -> None:
    """The lost failure needs no luck: a hundred times of a hundred."""
    version = sglang.versions()[-1]
    skip_unless_fetched(version)
    plays = run(version, "nixl", LOST_FAILED, repeat=TIMES)
    expected = [("WaitingForInput", True), ("Failed", False), ("Transferring", False)]
    assert [[(o.status, o.held) for o in play[2:]] for play in plays] == [expected] * TIMES


@pytest.mark.network
@pytest.mark.parametrize("backend", ["nixl", "mooncake", "mori"])
def test_a_transfer_is_held_while_it_is_in_flight(backend: str) -> None:
    """The real worker waits in its transfer, then concludes and tells decode; the real queue lets the request go."""
    version = sglang.versions()[-1]
    skip_unless_fetched(version)
    script = [
        CREATE,
        Step("bootstrap", "metadata"),
        Step("scheduler", "send_last"),
        Step("worker 0", "work", "post"),
        Step("scheduler", "settle"),
        Step("worker 0", "work", "finish"),
        Step("scheduler", "settle"),
    ]
    [play] = run(version, backend, script)
    assert all(o.error is None for o in play)
    assert [o.held for o in play] == [False, False, False, True, False, False, False]
    assert [o.inflight for o in play[2:]] == [1, 1, 1, 1, 0]
    assert play[-2].status == "Success"
    assert play[-1].status == ABSENT
    assert play[-1].told == ((1, "Success"),)
    assert (play[-1].ended, play[-1].released) == (((1, "Success"),), (1,))
