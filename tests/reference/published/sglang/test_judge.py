"""The judge, offline: on a tiny manager of our own that is right, and then broken in one way at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.laws import LAWS, Broken, Judgement, Kept, NotJudged, UnknownLaw
from kvlatch.reference.published.sglang.judge import examine, extract_table
from kvlatch.reference.published.sglang.observers import OBSERVERS
from kvlatch.reference.published.sglang.plays import Play, Row
from kvlatch.reference.published.sglang.scenarios import SCENARIOS, SENT
from kvlatch.reference.published.sglang.scripts import ABSENT, Observation, Step, run
from kvlatch.spec import merges
from kvlatch.spec.status import KVPoll
from tests.reference.published.sglang.sglang_fake import make_wheel

# A manager that keeps every law that can be kept without a nonce on the wire: a lock around each step, the first
# terminal status wins, chunks belong to a life, an end is reported when nothing is in flight any more, and told once.
LAWFUL = """
import threading
import time
from sglang.srt.disaggregation.base.conn import KVPoll

TERMINAL = (KVPoll.Failed, KVPoll.Success)

class Life:
    def __init__(self):
        self.outstanding, self.told, self.lost = 0, False, False

class Chunk:
    def __init__(self, room, last, life):
        self.room, self.last, self.life = room, last, life

class CommonKVManager:
    def __init__(self, args, mode, server_args, is_mla):
        self.lock = threading.RLock()
        self.lives = {}

    def open(self, room):
        with self.lock:
            if self.request_status.get(room) == KVPoll.Failed:
                self.transfer_infos.pop(room, None)  # those of a request that nobody has cleared
            self.request_status[room] = KVPoll.WaitingForInput if self.complete(room) else KVPoll.Bootstrapping
            self.lives[room] = Life()
            return self.lives[room]

    def complete(self, room):
        infos = self.transfer_infos.get(room)
        return infos is not None and len(infos) >= infos["decode"]

    def update_status(self, room, status):
        with self.lock:
            current = self.request_status.get(room)
            if current is None and status == KVPoll.Bootstrapping:
                current = status
            if current is None or current in TERMINAL:
                return
            self.request_status[room] = KVPoll.Failed if status == KVPoll.Failed else max(current, status)

    def clear(self, room):
        with self.lock:
            self.request_status.pop(room, None)
            self.transfer_infos.pop(room, None)
            self.lives.pop(room, None)

    def fail(self, room):
        with self.lock:
            self.update_status(room, KVPoll.Failed)
            self.tell(room)

    def tell(self, room):
        with self.lock:
            life = self.lives.get(room)
            if life and (life.outstanding or self.request_status.get(room) not in TERMINAL):
                return
            if life and not life.told:
                life.told = True
                frames = [str(room).encode(), str(self.request_status.get(room)).encode(), b"0"]
                self._connect("decode").send_multipart(frames)

    def start_prefill_thread(self):
        def bootstrap_thread():
            while True:
                kind, room, *rest = self.server_socket.recv_multipart()
                self.hear(kind, int(room), *map(int, rest))
        threading.Thread(target=bootstrap_thread).start()

    def hear(self, kind, room, ranks=1):
        with self.lock:
            if kind == b"ABORT":
                if room in self.lives:
                    self.lives[room].told = True
                self.update_status(room, KVPoll.Failed)
            else:
                self.transfer_infos[room] = {"decode": ranks}
                if self.complete(room):
                    self.update_status(room, KVPoll.WaitingForInput)

    def _handle_node_failure(self, address):
        for room in self.addr_to_rooms_tracker[address]:
            self.update_status(room, KVPoll.Failed)

    def add_transfer_request(self, room, last, life):
        with self.lock:
            if self.lives.get(room) is life and self.request_status.get(room) not in TERMINAL:
                life.outstanding += 1
                self.transfer_queues[0].put(Chunk(room, last, life))

    def send_kvcache(self, chunk):
        return 0

    def transfer_worker(self, queue):
        while True:
            chunk = queue.get()
            with self.lock:
                mine = self.lives.get(chunk.room) is chunk.life
                goes = mine and self.request_status.get(chunk.room) not in TERMINAL
                goes = goes and chunk.room in self.transfer_infos
                if goes:
                    self.update_status(chunk.room, KVPoll.Transferring)
            ended_well = self.send_kvcache(chunk) == 0 if goes else False
            with self.lock:
                chunk.life.outstanding -= 1
                if self.lives.get(chunk.room) is chunk.life:
                    self.conclude(chunk, ended_well)
                    self.tell(chunk.room)

    def conclude(self, chunk, ended_well):
        if not ended_well:
            self.fail(chunk.room)
        elif chunk.last:
            self.update_status(chunk.room, KVPoll.Success)
            self.tell(chunk.room)

class CommonKVSender:
    curr_idx = 0

    def __init__(self, mgr, bootstrap_addr, bootstrap_room):
        self.manager, self.room = mgr, bootstrap_room
        self.life = mgr.open(bootstrap_room)
        self.init_time = time.time()

    def init(self, total, aux_index):
        self.total = total

    def send(self, indices):
        self.curr_idx += len(indices)
        self.manager.add_transfer_request(self.room, self.curr_idx == self.total, self.life)

    def poll(self):
        with self.manager.lock:
            if self.manager.lives.get(self.room) is not self.life:
                return KVPoll.Failed
            if self.manager.request_status.get(self.room) == KVPoll.Bootstrapping:
                if time.time() - self.init_time > self.manager.bootstrap_timeout:
                    self.manager.fail(self.room)
            status = self.manager.request_status.get(self.room, KVPoll.Failed)
            return KVPoll.Transferring if status in TERMINAL and self.life.outstanding else status

    def abort(self):
        self.manager.fail(self.room)

    def clear(self):
        with self.manager.lock:
            if self.manager.lives.get(self.room) is self.life:
                self.manager.clear(self.room)
"""

REDUCES_NOTHING = """
from sglang.srt.disaggregation import utils
utils.poll_and_all_reduce = lambda pollers, group: [pollers[0].poll()]
"""
FIRST_WINS = "if current is None or current in TERMINAL:"
CREATES = (f"{FIRST_WINS}\n                return", "current = current or 0")
MINE = "if self.lives.get(chunk.room) is chunk.life:"
DRAIN = "return KVPoll.Transferring if status in TERMINAL and self.life.outstanding else status"
MUTANTS = {
    "terminal-sticky/plain": (FIRST_WINS, "if current is None:"),
    "terminal-sticky/two-writers": ("self.lock = threading.RLock()", "self.lock = nullcontext()"),
    "terminal-sticky/in-flight": (FIRST_WINS, "if current is None:"),
    "no-resurrection/under-worker": ("self.lock = threading.RLock()", "self.lock = nullcontext()"),
    "success-not-overwritten/plain": (FIRST_WINS, "if current is None or current == KVPoll.Failed:"),
    "success-not-overwritten/decode": (
        "self.update_status(room, KVPoll.Failed)\n\n    def add",
        "self.request_status[room] = KVPoll.Failed\n\n    def add",
    ),
    "success-complete/first-chunk": ("elif chunk.last:", "else:"),
    "success-complete/broken-chunk": ("self.send_kvcache(chunk) == 0", "self.send_kvcache(chunk) in (0, 1)"),
    "success-complete/two-ranks": ("len(infos) >= infos", "len(infos) <= infos"),
    "settlement/no-incident": (
        "if time.time() - self.init_time > self.manager.bootstrap_timeout:",
        "if time.time() - self.init_time >= 0:",
    ),
    "no-pin/no-infos": (
        "if not ended_well:\n            self.fail(chunk.room)",
        "if not ended_well:\n            return",
    ),
    "settlement/broken-transfer": ("self.fail(chunk.room)\n        elif", "return\n        elif"),
    "no-ghost/two-writers": ("self.lock = threading.RLock()", "self.lock = nullcontext()"),
    "no-ghost/in-flight": (MINE, "if True:\n                    self.request_status[chunk.room] = 4"),
    "no-ghost/late-metadata": CREATES,
    "pages-held/aborted-in-flight": (DRAIN, "return status"),
    "pages-held/polled-in-flight": (
        DRAIN,
        f"self.asked = getattr(self, 'asked', 0) + 1; {DRAIN.replace('self.life', 'self.asked == 1 and self.life')}",
    ),
    "one-outcome/aborted": ('str(self.request_status.get(room)).encode(), b"0"', 'b"4", b"0"'),
    "one-outcome/ranks": ("class Life:", f"{REDUCES_NOTHING}\nclass Life:"),
    "no-lost-wakeup/early-metadata": ("KVPoll.WaitingForInput if self.complete(room) else ", ""),
    "room-reusable/uncleared": (
        "self.request_status[room] = KVPoll.WaitingForInput if self",
        "if room not in self.lives:\n                self.request_status[room] = KVPoll.WaitingForInput if self",
    ),
    "room-reusable/old-chunk-cleared": (MINE, "if chunk.room in self.lives:"),
    "room-reusable/old-chunk-uncleared": (
        MINE,
        f"self.update_status(chunk.room, KVPoll.Transferring)\n{' ' * 16}{MINE}",
    ),
    "room-reusable/queued-chunk": ("mine = self.lives.get(chunk.room) is chunk.life", "mine = True"),
    "room-reusable/stale-clear": (
        "if self.manager.lives.get(self.room) is self.life:\n                self",
        "if True:\n                self",
    ),
    "no-crash/worker": ("chunk.life.outstanding -= 1", "self.lives[chunk.room].outstanding -= 1"),
    "no-crash/abort-notice": ('if kind == b"ABORT":', 'assert kind != b"ABORT"\n            if False:'),
    "no-deadlock/itself": ("threading.RLock()", "threading.Lock()"),
    "told-once/broken-transfer": (
        "if life and not life.told:",
        "if life and not life.told and self.request_status.get(room) == KVPoll.Success:",
    ),
    "told-once/aborted": ("if life and not life.told:", "if life:"),
}
"""One change each, by the scenario that it is to break."""


@pytest.fixture
def lawful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 0 is the manager above."""
    make_wheel(tmp_path, monkeypatch, LAWFUL)


def judged(*only: str) -> dict[str, Judgement]:
    """What is said of version 0, by scenario."""
    return {one.name: one for one in examine("0", "common", only).judgements}


def broken(*only: str) -> dict[str, str]:
    """The scenarios that version 0 breaks, with what is seen."""
    return {name: str(one.answer) for name, one in judged(*only).items() if one.verdict == "broken"}


def test_the_catalogue() -> None:
    """Names are unique, every law has an observer and a scenario, and every known violation its own."""
    names = [scenario.full_name for scenario in SCENARIOS]
    assert len({*names}) == len(names)
    assert {scenario.law for scenario in SCENARIOS} == {*LAWS} == {*OBSERVERS}
    numbers = {number for scenario in SCENARIOS for number in scenario.numbers}
    assert numbers == {f"D{n}" for n in range(1, 16) if n != 11} | {"D3b"}
    assert all(scenario.says.endswith(".") and scenario.scripts for scenario in SCENARIOS)


@pytest.mark.usefixtures("lawful")
def test_a_lawful_manager_breaks_only_what_needs_a_nonce() -> None:
    """Metadata that comes early is not lost; then metadata that comes late is adopted. All else is kept."""
    examination = examine("0", "common")
    verdicts = {one.name: one.verdict for one in examination.judgements}
    assert [name for name, verdict in verdicts.items() if verdict == "broken"] == ["room-reusable/stale-metadata"]
    assert [name for name, verdict in verdicts.items() if verdict == "not judged"] == []
    assert examination.waited > 0
    for one in examination.judgements:
        assert isinstance(one.answer, (Kept, Broken, NotJudged))
        assert not isinstance(one.answer, Kept) or one.answer.looks > 0


@pytest.mark.usefixtures("lawful")
def test_a_law_selects_its_scenarios() -> None:
    """By the law's name all of them, by a scenario's name that one, and by any other name nothing: an error."""
    assert [*judged("terminal-sticky")] == [
        "terminal-sticky/plain", "terminal-sticky/two-writers", "terminal-sticky/in-flight",
    ]  # fmt: skip
    assert [*judged("no-pin/no-infos")] == ["no-pin/no-infos"]
    with pytest.raises(UnknownLaw, match="'terminal-slippery': they are terminal-sticky/plain"):
        judged("terminal-slippery")


UNLOCKED = LAWFUL.replace("self.lock = threading.RLock()", "self.lock = nullcontext()").replace(
    "import threading", "import threading\nfrom contextlib import nullcontext"
)


def test_without_its_lock_it_is_lawful_until_two_threads_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rule without the lock keeps the plain scenarios and breaks the others, each in a run of its own."""
    make_wheel(tmp_path, monkeypatch, UNLOCKED)
    examination = examine("0", "common", ["terminal-sticky", "no-ghost/two-writers"])
    found = {one.name: one.answer for one in examination.judgements}
    assert isinstance(found["terminal-sticky/plain"], Kept)
    split = found["terminal-sticky/two-writers"]
    assert isinstance(split, Broken)
    assert "write Transferring, held before access 2" in split.text
    assert examination.steps["terminal-sticky/two-writers"] == 3
    assert str(found["no-ghost/two-writers"]) == "the room was cleared and its entry is Transferring again"


def test_two_steps_break_terminal_sticky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the room's creation on, the shortest trace is the abort and the late write."""
    make_wheel(tmp_path, monkeypatch, LAWFUL.replace(" or current in TERMINAL", ""))
    examination = examine("0", "common", ["terminal-sticky/plain"])
    assert examination.steps == {"terminal-sticky/plain": 2}


@pytest.mark.usefixtures("lawful")
def test_the_table_of_the_real_rule() -> None:
    """It is extracted by running it, and what is kept is not what is stored again."""

    def rule(current: KVPoll | None, incoming: KVPoll) -> KVPoll | merges.Kept:
        if current is None:
            return incoming if incoming == KVPoll.Bootstrapping else merges.KEEP
        return merges.first_terminal_wins(current, incoming)

    assert extract_table("0", "common") == merges.table(rule)


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        ("1 / status", "Failed <- Failed: ZeroDivisionError"),
        ("self.request_status.get(room + 1)", "Failed <- Failed looks at another room's entry"),
    ],
)
def test_a_write_that_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instead: str, reason: str) -> None:
    """A rule that raises, or that looks at another room, is a fault with its cell."""
    read = "current = self.request_status"
    make_wheel(tmp_path, monkeypatch, LAWFUL.replace(read, f"{instead}\n            {read}", 1))
    with pytest.raises(AdapterFault, match=reason):
        extract_table("0", "common")


def test_what_a_backend_does_not_have_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not judged, with the reason; never kept."""
    without = LAWFUL.replace("def add_transfer_request", "def no").replace("def clear(self)", "def no(self)")
    make_wheel(tmp_path, monkeypatch, without)
    found = judged("no-crash/worker", "no-ghost/two-writers")
    assert found["no-ghost/two-writers"].answer == NotJudged("the sender has no clear")
    assert found["no-crash/worker"].answer == NotJudged("the manager transfers nothing")


def test_a_transfer_that_does_not_settle_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is judged of a backend that cannot carry out a request without incident."""
    make_wheel(tmp_path, monkeypatch, LAWFUL.replace("self.conclude(chunk, ended_well)", "pass"))
    with pytest.raises(AdapterFault, match="a request without incident does not settle: the request stays"):
        judged("terminal-sticky")


def test_threads_that_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two locks that are taken in two orders are a deadlock, and both threads are named."""
    conn = LAWFUL.replace("self.lives = {}", "self.lives, self.other = {}, threading.Lock()", 1)
    conn = conn.replace("with self.lock:\n                mine", "with self.other, self.lock:\n                mine")
    conn = conn.replace(
        "self.update_status(room, KVPoll.Failed)\n            else:",
        "self.update_status(room, KVPoll.Failed)\n                with self.other: pass\n            else:",
    )
    make_wheel(tmp_path, monkeypatch, conn)
    notice = Step("bootstrap", "abort_notice", "step")
    [play] = run("0", "common", [*SENT, notice, notice, Step("worker 0", "work")])  # it has the lock, and then reads
    assert play[-1].error == "Deadlock: worker 0 waits for bootstrap and bootstrap waits for worker 0"
    assert [*broken("no-deadlock")] == ["no-deadlock/two-threads"]
    [play] = run("0", "common", [*SENT])  # the threads that are stuck are not used again
    assert play[-1].status == "WaitingForInput"


def test_what_is_heard_may_be_left_to_the_next_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that takes metadata in when it is polled loses no wake-up; one that never does, does."""
    lazy = LAWFUL.replace("KVPoll.WaitingForInput if self.complete(room) else ", "")
    lazy = lazy.replace("                if self.complete(room):\n", "                if False:\n")
    poll = "        with self.manager.lock:\n            if self.manager.lives.get(self.room) is not self.life:\n"
    takes_in = "self.manager.complete(self.room) and self.manager.update_status(self.room, KVPoll.WaitingForInput)\n"
    assert lazy.count(poll) == 1
    make_wheel(tmp_path, monkeypatch, lazy.replace(poll, f"        {takes_in}{poll}"))
    assert broken("no-lost-wakeup", "settlement") == {}
    make_wheel(tmp_path, monkeypatch, lazy)
    assert [*broken("no-lost-wakeup")] == ["no-lost-wakeup/early-metadata"]


def test_a_manager_that_always_raises_breaks_laws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is missing for what it raises, it is judged, and no scenario stumbles over it."""
    make_wheel(tmp_path, monkeypatch, LAWFUL.replace("self.life = mgr.open(bootstrap_room)", "raise RuntimeError"))
    found = {one.name: one.verdict for one in examine("0", "common").judgements}
    assert found["no-crash/no-incident"] == "broken"
    assert {law for law, verdict in found.items() if verdict == "broken"} <= {
        "no-crash/no-incident", "no-crash/worker", "no-crash/abort-notice", "no-crash/broken-transfer",
        "no-crash/metadata",
    }  # fmt: skip


def test_a_trace_as_a_person_reads_it() -> None:
    """Accesses that were led on one by one are one line, and so is what an op came to."""

    def seen(status: str, *, held: bool = False, value: str | None = None, error: str | None = None) -> Observation:
        return Observation(status, infos=False, value=value, held=held, error=error)

    work = [Step("worker 0", "work", part) for part in ("step", "step", "finish")]
    script = [*work[:2], Step("scheduler", "poll"), work[2], Step("worker 0", "work", "post")]
    plays = [
        seen(ABSENT, held=True),
        seen("Transferring", held=True),
        seen("Transferring", value="Failed"),
        seen(ABSENT, error="KeyError: 7"),
        seen(ABSENT, held=True),
    ]
    assert Row.of(Play(script, plays)) == (
        Row("worker 0", "work, held before access 2", "Transferring", ""),
        Row("scheduler", "poll", "Transferring", "polls Failed"),
        Row("worker 0", "work goes on to its end", ABSENT, "KeyError: 7"),
        Row("worker 0", "work, held in its transfer", ABSENT, ""),
    )


@pytest.mark.parametrize("scenario", MUTANTS)
def test_a_mutant_breaks_its_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str) -> None:
    """Each scenario can fail: a manager that is changed in one place breaks it."""
    old, new = MUTANTS[scenario]
    assert old in LAWFUL
    source = LAWFUL.replace(old, new, 1).replace(
        "import threading", "import threading\nfrom contextlib import nullcontext", 1
    )
    make_wheel(tmp_path, monkeypatch, source)
    assert scenario in broken(scenario)
