"""The laws, offline: on a tiny manager of our own, which is broken in one way at a time."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from kvlatch.reference.published.sglang import laws as sglang_laws
from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang.laws import LAWS, Play, Row, extract_table, judge
from kvlatch.reference.published.sglang.scripts import ABSENT, Observation, Step
from kvlatch.spec import merges
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.status import KVPoll
from tests.reference.published.sglang.sglang_fake import make_wheel

# A manager that keeps every law that a table without generations can keep: a lock around each update, the first
# terminal status wins, only Bootstrapping creates an entry, and a conclusion looks at what stands.
LAWFUL = """
from sglang.srt.disaggregation.base.conn import KVPoll

TERMINAL = (KVPoll.Failed, KVPoll.Success)

class Chunk:
    def __init__(self, room, last):
        self.room, self.last = room, last

class CommonKVManager:
    def create(self, room):
        with self.failure_lock:
            self.request_status[room] = KVPoll.WaitingForInput if room in self.transfer_infos else KVPoll.Bootstrapping

    def update_status(self, room, status):
        with self.failure_lock:
            current = self.request_status.get(room)
            if current is None and status == KVPoll.Bootstrapping:
                current = status
            if current is None or current in TERMINAL:
                return
            self.request_status[room] = KVPoll.Failed if status == KVPoll.Failed else max(current, status)

    def clear(self, room):
        with self.failure_lock:
            self.request_status.pop(room, None)
            self.transfer_infos.pop(room, None)
            self.failure_records.pop(room, None)

    def record_failure(self, room, reason):
        self.failure_records[room] = reason

    def _handle_node_failure(self, address):
        for room in self.addr_to_rooms_tracker[address]:
            self.update_status(room, KVPoll.Failed)

    def add_transfer_request(self, room, last):
        self.transfer_queues[0].put(Chunk(room, last))

    def send_kvcache(self, chunk):
        return 0

    def transfer_worker(self, queue):
        while True:
            chunk = queue.get()
            if chunk.room in self.transfer_infos:
                self.send_kvcache(chunk)
                if chunk.last:
                    self.conclude(chunk.room)
            else:
                self.update_status(chunk.room, KVPoll.Failed)

    def conclude(self, room):
        self.update_status(room, KVPoll.Failed if room in self.failure_records else KVPoll.Success)
        with self.failure_lock:
            status = self.request_status.get(room)
        if status is not None:
            self._connect("decode").send_multipart([str(room).encode(), str(status).encode(), b"0"])

class CommonKVSender:
    curr_idx = 0

    def __init__(self, mgr, bootstrap_addr, bootstrap_room):
        self.manager, self.room = mgr, bootstrap_room
        mgr.create(bootstrap_room)

    def init(self, total, aux_index):
        self.total = total

    def send(self, indices):
        self.curr_idx += len(indices)
        self.manager.add_transfer_request(self.room, self.curr_idx == self.total)

    def poll(self):
        return self.manager.request_status.get(self.room, KVPoll.Failed)

    def abort(self):
        self.manager.record_failure(self.room, "aborted")
        self.manager.update_status(self.room, KVPoll.Failed)

    def clear(self):
        self.manager.clear(self.room)
"""

GUARD = "if current is None or current in TERMINAL:"
CREATES = (f"{GUARD}\n                return", "current = current or 0")
POLLED = "return self.manager.request_status.get(self.room, KVPoll.Failed)"
LOOP = "        for room in self.addr"
REDUCES_NOTHING = """
from sglang.srt.disaggregation import utils
utils.poll_and_all_reduce = lambda pollers, group: [pollers[0].poll()]
"""
MUTANTS = {
    "terminal-sticky": (GUARD, "if current is None:"),
    "no-lost-wakeup": ("KVPoll.WaitingForInput if room in self.transfer_infos else ", ""),
    "success-not-overwritten-decode": (LOOP, f"        self.request_status[7] = KVPoll.Failed\n{LOOP}"),
    "terminal-sticky-in-flight": (POLLED, "return KVPoll.Success"),
    "no-ghost-in-flight": CREATES,
    "room-reusable-uncleared": ("with self.failure_lock:", "if room not in self.request_status:"),
    "worker-survives-clear": ("self.send_kvcache(chunk)", "self.send_kvcache(self.request_status[chunk.room])"),
    "no-pin": ("self.update_status(chunk.room, KVPoll.Failed)", "pass"),
    "one-outcome": ("status = self.request_status.get(room)", "status = 4 if room in self.request_status else None"),
    "no-ghost-late-metadata": CREATES,
    "room-reusable-stale-record": ("self.failure_records.pop(room, None)", "pass"),
    "no-pin-two-senders": (POLLED, POLLED.replace("KVPoll.Failed", "KVPoll.WaitingForInput")),
    "success-not-overwritten": (GUARD, "if current is None or current == KVPoll.Failed:"),
    "failed-wins-over-ranks": ("class Chunk:", f"{REDUCES_NOTHING}\nclass Chunk:"),
    "other-rooms-untouched": ("current = self", "self.request_status.get(room + 1)\n            current = self"),
}
"""One change each, by the law that it is to break. The split laws need no mutant but the lock's absence."""


@pytest.fixture
def lawful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 0 is the manager above."""
    make_wheel(tmp_path, monkeypatch, LAWFUL)


def broken(*only: str) -> dict[str, str]:
    """The laws that version 0 breaks, with what is seen."""
    return {f.law: f.sentence for f in judge("0", "common", only) if f.verdict == "broken"}


def test_the_catalogue() -> None:
    """Names are unique, every known violation has its law, and a law that is a property of the spec says which."""
    names = [law.name for law in LAWS]
    assert len({*names}) == len(names)
    numbers = {number for law in LAWS for number in law.numbers}
    assert numbers == {f"D{n}" for n in range(1, 16) if n != 11} | {"D3b"}
    for law in LAWS:
        assert law.says.endswith(".")
        assert law.prop is None or law.name == law.prop or law.name.startswith(f"{law.prop}-")
        assert (law.prop is None) == (not any(law.name.startswith(name) for name in BY_NAME))


def test_a_law_of_no_property_is_refused() -> None:
    """A typing error in a property's name is seen when the catalogue is made."""
    with pytest.raises(ValueError, match="no property terminal-stickyness"):
        attrs.evolve(LAWS[0], prop="terminal-stickyness")


@pytest.mark.usefixtures("lawful")
def test_a_lawful_manager_keeps_every_law_but_late_ones() -> None:
    """Metadata that comes early is not lost; then metadata that comes late is adopted: that would need a generation."""
    findings = judge("0", "common")
    assert [f.law for f in findings] == [law.name for law in LAWS]
    assert [f.law for f in findings if f.verdict != "kept"] == ["room-reusable-stale-metadata"]
    assert all(f.trace == () and f.sentence == law.says for f, law in zip(findings, LAWS, strict=True) if f.trace == ())


UNLOCKED = LAWFUL.replace("with self.failure_lock:", "if True:")


def test_without_its_lock_it_is_lawful_until_two_threads_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rule without the lock keeps the plain laws and breaks the split ones, each in a trace of its own."""
    make_wheel(tmp_path, monkeypatch, UNLOCKED)
    findings = {f.law: f for f in judge("0", "common", ["terminal-sticky", "terminal-sticky-split", "no-ghost-split"])}
    assert findings["terminal-sticky"].verdict == "kept"
    assert findings["terminal-sticky-split"].trace == (
        Row("scheduler", "create", "Bootstrapping", ""),
        Row("worker 0", "write Transferring, held before access 2", "Bootstrapping", ""),
        Row("bootstrap", "write Failed", "Failed", ""),
        Row("worker 0", "write goes on to its end", "Transferring", ""),
    )
    assert findings["terminal-sticky-split"].steps == 3
    assert findings["no-ghost-split"].sentence == "the room was cleared and its entry is Transferring again"


def test_two_steps_break_terminal_sticky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the room's creation on, the shortest trace is the abort and the late write."""
    make_wheel(tmp_path, monkeypatch, LAWFUL.replace(" or current in TERMINAL", ""))
    [finding] = judge("0", "common", ["terminal-sticky"])
    assert (finding.verdict, finding.steps) == ("broken", 2)
    assert [(row.op, row.status) for row in finding.trace] == [
        ("create", "Bootstrapping"),
        ("write Failed", "Failed"),
        ("write Transferring", "Transferring"),
    ]


@pytest.mark.usefixtures("lawful")
def test_the_table_of_the_real_rule() -> None:
    """It is extracted by running it, and what is kept is not what is stored again."""

    def rule(current: KVPoll | None, incoming: KVPoll) -> KVPoll | merges.Kept:
        if current is None:
            return incoming if incoming == KVPoll.Bootstrapping else merges.KEEP
        return merges.first_terminal_wins(current, incoming)

    assert extract_table("0", "common") == merges.table(rule)


def test_a_write_that_raises_has_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that raises is a fault with its cell."""
    make_wheel(tmp_path, monkeypatch, LAWFUL.replace("current = self", "1 / status\n            current = self", 1))
    with pytest.raises(sglang.AdapterFault, match="Failed <- Failed: ZeroDivisionError"):
        extract_table("0", "common")


def test_what_a_backend_does_not_have_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent, with the reason; never kept."""
    without = LAWFUL.replace("def add_transfer_request", "def no").replace("def clear(self)", "def no(self)")
    make_wheel(tmp_path, monkeypatch, without)
    [ghost, worker] = judge("0", "common", ["worker-survives-clear", "no-ghost-split"])
    assert (ghost.verdict, ghost.sentence) == ("absent", "the sender has no clear")
    assert (worker.verdict, worker.sentence) == ("absent", "the manager transfers nothing")


def test_a_transfer_that_does_not_settle_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is judged of a backend that cannot carry out a request without incident."""
    make_wheel(tmp_path, monkeypatch, LAWFUL.replace("self.conclude(chunk.room)", "pass"))
    with pytest.raises(sglang.AdapterFault, match="a request without incident does not settle: the request stays"):
        judge("0", "common", ["terminal-sticky"])


@pytest.mark.usefixtures("lawful")
def test_an_unknown_law() -> None:
    """It is refused with those that there are."""
    with pytest.raises(sglang_laws.UnknownLaw, match="terminal-slippery; known: terminal-sticky") as caught:
        judge("0", "common", ["terminal-slippery"])
    assert caught.value.exit_code == 2


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


@pytest.mark.parametrize("law", MUTANTS)
def test_a_mutant_breaks_its_law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, law: str) -> None:
    """The law can fail: a manager that is changed in one place breaks it."""
    old, new = MUTANTS[law]
    assert old in LAWFUL
    make_wheel(tmp_path, monkeypatch, LAWFUL.replace(old, new, 1))
    assert law in broken(law)
