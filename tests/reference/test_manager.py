"""The live manager is the spec's: call by call as the rows answer, and broken on real threads only where they are."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import closing, nullcontext
from queue import SimpleQueue
from random import Random
from typing import Any, Final

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvlatch.proofs import pins
from kvlatch.reference.host import Entry, Host, status_of
from kvlatch.reference.laws import NO_DEADLOCK
from kvlatch.reference.manager import DesignManager, LockLike
from kvlatch.reference.oracle.adapter import Probe
from kvlatch.reference.oracle.checks import LAWS, examine
from kvlatch.reference.oracle.explore import STAGES, explore, replay
from kvlatch.reference.oracle.inprocess import InProcess
from kvlatch.reference.oracle.moves import Bounds, Script, Seen
from kvlatch.reference.oracle.spec_manager import SpecManager
from kvlatch.spec.designs import DESIGNS, SWITCHES, Design
from kvlatch.spec.merges import KEEP, MERGES
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.schema import Atomicity
from kvlatch.spec.status import KVPoll
from tests.reference.oracle.wandering import wandered

Failed, Bootstrapping, WaitingForInput, Transferring, Success = KVPoll
LATCH: Final = DESIGNS["latch"]
BROKEN: Final = [
    (name, level) for name, design in DESIGNS.items() for level in design.atomicities if design is not LATCH
]
QUICK: Final = [("seed-control", "split"), ("fix-a", "locked"), ("sglang-0.5.23", "split"), ("latch-local", "cas")]
"""Of these, every atomicity once; the others are thorough."""


class Driven(DesignManager):
    """The manager as an adapter, which is not told when a chunk is sent: at the latest, that is when a call shows it.

    A start shows that its chunk has been sent and those before it. A poll, or an abort, of a request that runs shows
    that all ``chunks`` of it have; left at 0, that is not known.
    """

    def __init__(
        self, design: Design, level: Atomicity, host: Host, make_lock: Callable[[], LockLike], chunks: int = 0
    ) -> None:
        super().__init__(design, level, host, make_lock)
        self.total = chunks
        self.sent: dict[tuple[int, int, int], bool] = {}
        self.running: set[tuple[int, int]] = set()

    def send(self, room: int, request: int, chunks: int) -> None:
        for chunk in range(chunks):
            if (room, request, chunk) not in self.sent:
                self.sent[room, request, chunk] = self.enqueue(room, request, chunk, chunk == self.total - 1)

    def poll(self, room: int, request: int) -> KVPoll:
        self.send(room, request, self.total if (room, request) in self.running else 0)
        said = super().poll(room, request)
        if said == WaitingForInput:
            self.running.add((room, request))
        return said

    def abort(self, room: int, request: int) -> None:
        self.send(room, request, self.total if (room, request) in self.running else 0)
        super().abort(room, request)

    def start(self, room: int, request: int, chunk: int, last: bool) -> bool:
        self.send(room, request, chunk + 1)
        return self.sent[room, request, chunk] and super().start(room, request, chunk, last)


def on_threads(design: Design, level: Atomicity, manager: type[Driven] = Driven, *, held: bool = True) -> InProcess:
    """A player on threads that are held at each access to the table and at each lock."""
    return InProcess(lambda probe: manager(design, level, probe, threading.Lock), held=held)


BEYOND: Final = Bounds(network="disorderly", chunks=2, workers=2, requests=2)

# --------------------------------------------------------------------------------------------------------------------
# Broken where the proofs say so


def refuted(name: str, level: Atomicity) -> set[str]:
    """The properties with a pinned counterexample."""
    expected = pins.pinned().items()
    return {prop for (design, at, _, prop), word in expected if (design, at) == (name, level) and word != "holds"}


@pytest.mark.parametrize(
    ("name", "level"),
    [pytest.param(*one, marks=() if one in QUICK else pytest.mark.thorough, id="-".join(one)) for one in BROKEN],
)
def test_the_oracle_finds_only_what_the_proofs_refute(name: str, level: Atomicity) -> None:
    """Whatever law the oracle finds broken has a counterexample in the same design and atomicity."""
    with closing(on_threads(DESIGNS[name], level)) as player:
        report = examine(player, name, [prop.name for prop in PROPERTIES], limit=600, walks=0, seconds=None)
    assert report.looked_at["plays"] > 500
    assert set() < report.findings.keys() <= refuted(name, level)


@pytest.mark.parametrize("level", LATCH.atomicities)
def test_latch_keeps_every_law(level: Atomicity) -> None:
    """More plays, and random ones beyond the bounds, break no law of latch, locked or with compare-and-swap."""
    with closing(on_threads(LATCH, level)) as player:
        report = examine(player, "latch", tuple(LAWS), limit=450, walks=0, seconds=None)
        assert wandered(player, BEYOND, walks=5) == set()
    assert report.looked_at["plays"] > 1_000
    assert report.findings == {}


@pytest.mark.parametrize(
    ("name", "level", "laws", "bounds"),
    [
        ("seed-control", "locked", {"terminal-sticky", "no-ghost", "pages-held"}, Bounds()),
        ("fix-a", "split", {"terminal-sticky"}, Bounds()),
        ("fix-b", "locked", {"terminal-sticky"}, Bounds()),
        ("sglang-0.5.23", "split", {"no-lost-wakeup"}, Bounds(network="disorderly")),
    ],
)
def test_the_oracle_finds_what_a_design_is_known_for(
    name: str, level: Atomicity, laws: set[str], bounds: Bounds
) -> None:
    """The incident, and what its fixes leave open, happen on real threads as in the proofs."""
    with closing(on_threads(DESIGNS[name], level)) as player:
        explored = explore(player, bounds, laws, preemptions=1, limit=15_000)
    assert explored.found.keys() == laws <= refuted(name, level)


def test_fix_a_under_a_lock_ends_the_resurrection() -> None:
    """With one worker and one chunk no play of whole calls breaks fix-a where an update is one step."""
    with closing(on_threads(DESIGNS["fix-a"], "locked", held=False)) as player:
        explored = explore(player, Bounds(), ["terminal-sticky", "no-resurrection"])
    assert explored.complete
    assert explored.found == {}


# --------------------------------------------------------------------------------------------------------------------
# In step with the rows


class Whole:
    """A host whose table holds nobody, so each call is made as a whole."""

    def __init__(self, probe: Probe) -> None:
        self.release = probe.release
        self.tell = probe.tell

    def table(self) -> MutableMapping[int, Any]:
        return {}


class InStep:
    """Plays scripts on a manager and on the rows of its design, and demands that they show the same.

    With tombstones, what decode is told of a request that is over counts for nothing, and is not compared.
    """

    def __init__(self, design: Design, bounds: Bounds, manager: type[Driven] = Driven) -> None:
        self.rows = SpecManager(design)
        self.tombstones = design.clear == "tombstone"
        self.manager = InProcess(
            lambda probe: manager(design, "locked", Whole(probe), threading.Lock, chunks=bounds.chunks), held=False
        )

    def play(self, scripts: Sequence[Script]) -> list[Seen]:
        for script, ours, theirs in zip(scripts, self.manager.play(scripts), self.rows.play(scripts), strict=True):
            mine, right = self.comparable(script, ours), self.comparable(script, theirs)
            assert mine == right, f"out of step after {[step.call for step in script]}"
        return self.rows.play(scripts)

    def close(self) -> None:
        self.manager.close()

    def comparable(self, script: Script, seen: Seen) -> Seen:
        newest = max(step.call.request for step in script if step.call is not None)
        told = tuple(word for word in seen.told if word[0] == newest or not self.tombstones)
        return attrs.evolve(seen, told=told, threads=None, key=None)


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("bounds", [STAGES[1], STAGES[2], BEYOND], ids=lambda bounds: bounds.code)
def test_the_manager_answers_as_the_rows_do(name: str, bounds: Bounds) -> None:
    """In the shortest plays and in random ones, each call shows the status, answer, releases and words of the rows."""
    with closing(InStep(DESIGNS[name], bounds)) as player:
        assert explore(player, bounds, [NO_DEADLOCK], limit=240).plays > 120
        assert NO_DEADLOCK not in wandered(player, bounds, walks=4)


@pytest.mark.parametrize(
    ("design", "play", "shows"),
    [
        pytest.param(
            DESIGNS["sglang-0.5.19"],
            "orderly-2-2-1 create metadata poll send send start/0 start/1 finish/1 poll",
            Seen(Success, answer=Transferring),
            id="Success is held back while a chunk is outstanding",
        ),
        pytest.param(
            DESIGNS["seed-control"],
            "late-2-2-2 create metadata poll send send start/0 start/1 abort poll clear reuse create"
            " finish/1 poll break/0 poll",
            Seen(Failed, answer=Failed),
            id="Success of a request that was never admitted is not latched",
        ),
        pytest.param(
            attrs.evolve(LATCH, clear="absent", release="at once"),
            "late-1-1-2 create metadata poll send start/0 abort poll clear reuse create finish/0",
            Seen(Bootstrapping),
            id="the chunks of an earlier request complete nothing",
        ),
        pytest.param(
            attrs.evolve(LATCH, release="at once", tell="own", success="last"),
            "late-1-1-2 create metadata poll send start/0 abort poll clear reuse create metadata finish/0"
            " poll send start/0",
            Seen(Transferring, answer=True),
            id="an earlier request does not take the metadata of a later one away",
        ),
    ],
)
def test_a_rare_situation_is_met_as_by_the_rows(design: Design, play: str, shows: Seen) -> None:
    """What only a long play leads to is answered as the rows do, and as a maintainer would expect."""
    with closing(InStep(design, Bounds.parse(play.split(maxsplit=1)[0]))) as player:
        assert replay(player, play).seen[-1] == shows


def designs() -> st.SearchStrategy[Design]:
    """Designs with any merge, and any position of every switch that a manager can see.

    Not a merge in which Failed replaces Success where decode is told what stands: after an abort, the rows latch what
    stood before it.
    """
    free = [switch for switch in SWITCHES if switch.name not in ("atomicity", "network")]
    drawn = st.builds(
        lambda merge, **positions: Design("drawn", merge, ("locked",), **positions),
        st.sampled_from(list(MERGES.values())),
        **{switch.name: st.sampled_from(switch.labels) for switch in free},
    )
    return drawn.filter(lambda design: design.tell == "own" or design.merge(Success, Failed) in (Success, KEEP))


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(designs(), st.sampled_from([STAGES[1], STAGES[2], BEYOND]))
def test_any_design_answers_as_its_rows_do(design: Design, bounds: Bounds) -> None:
    """Every switch and merge is what it is in the spec, in designs that nobody has shipped, too."""
    with closing(InStep(design, bounds)) as player:
        assert explore(player, bounds, [NO_DEADLOCK], limit=200).plays > 60


class Ledger:
    """A host that counts what it is told."""

    def __init__(self) -> None:
        self.entries: dict[int, Any] = {}
        self.released: Counter[tuple[int, int]] = Counter()
        self.told: dict[tuple[int, int], set[KVPoll]] = {}

    def table(self) -> MutableMapping[int, Any]:
        return self.entries

    def release(self, room: int, request: int) -> None:
        self.released[room, request] += 1

    def tell(self, room: int, request: int, status: KVPoll) -> None:
        self.told.setdefault((room, request), set()).add(status)


@pytest.mark.parametrize("name", DESIGNS)
def test_only_a_request_that_bootstraps_is_timed_out(name: str) -> None:
    """If the design has a timeout, it fails a request without metadata, whose sender reports it, and no other."""
    manager = DesignManager(DESIGNS[name], "locked", Ledger())
    manager.create(1, 1)
    manager.create(2, 1)
    manager.metadata(2, 1)
    times_out = DESIGNS[name].timeout == "bootstrapping"
    assert manager.time_out(1, 1) == times_out
    assert manager.poll(1, 1) == manager.status(1) == (Failed if times_out else Bootstrapping)
    assert not manager.time_out(2, 1)
    assert manager.poll(2, 1) == WaitingForInput


# --------------------------------------------------------------------------------------------------------------------
# Planted faults


class Unlocked(Driven):
    """Its locks keep nobody out."""

    def _exclusive(self, room: int, *levels: Atomicity) -> LockLike:
        return nullcontext()


class TellsItsOwn(Driven):
    """Decode is told what was to be written, not what stands, whatever the design says."""

    def _tell(self, room: int, request: int, wrote: KVPoll, stands: KVPoll | None) -> None:
        super()._tell(room, request, wrote, wrote)


class AbortsHalf(Driven):
    """An abort writes Failed and leaves the sender's latch as it is."""

    def abort(self, room: int, request: int) -> None:
        self.update_status(room, request, Failed)


class KeepsMetadata(Driven):
    """A clear forgets the status and nothing else."""

    def clear(self, room: int, request: int) -> None:
        self._clear_status(room, request)
        self._leave(room, request, cleared=True)


class CountsTheLast(Driven):
    """Whoever transfers the last chunk concludes Success, whatever the design says."""

    def _is_last_to_arrive(self, room: int, request: int, chunk: int, last: bool) -> bool:
        return last


@pytest.mark.parametrize("level", LATCH.atomicities)
def test_the_oracle_finds_that_locks_are_missing(level: Atomicity) -> None:
    """Without its locks, latch is broken on real threads, where an update is one step as where it is a swap."""
    with closing(on_threads(LATCH, level, Unlocked)) as player:
        explored = explore(player, Bounds(), ["no-resurrection"], preemptions=1, limit=8_000)
    assert explored.found.keys() == {"no-resurrection"}


@pytest.mark.parametrize(
    ("manager", "name", "bounds"),
    [
        (AbortsHalf, "seed-control", STAGES[1]),
        (KeepsMetadata, "seed-control", STAGES[2]),
        (CountsTheLast, "latch", STAGES[4]),
        (TellsItsOwn, "latch", STAGES[0]),
    ],
)
def test_a_planted_fault_falls_out_of_step(manager: type[Driven], name: str, bounds: Bounds) -> None:
    """A manager with one method changed answers otherwise than the rows in some play."""
    with (
        closing(InStep(DESIGNS[name], bounds, manager)) as player,
        pytest.raises(AssertionError, match="out of step"),
    ):
        explore(player, bounds, [NO_DEADLOCK], limit=1_500)


# --------------------------------------------------------------------------------------------------------------------
# Many rooms at once


class Meanwhile(dict[int, Any]):
    """A status table in which something happens right after the next read."""

    happens: Callable[[], None] | None = None

    def get(self, room: int, default: Any = None) -> Any:
        entry = super().get(room, default)
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return entry


def test_metadata_that_meets_a_clear_is_not_kept() -> None:
    """A bootstrap thread that has looked before the request is cleared, and goes on after, leaves nothing behind."""
    ledger = Ledger()
    ledger.entries = table = Meanwhile()
    manager = DesignManager(LATCH, "cas", ledger)
    manager.create(7, 1)
    table.happens = functools.partial(manager.clear, 7, 1)
    manager.metadata(7, 1)
    assert table == {7: Entry(1, None)}
    assert books(manager) == []


@pytest.mark.parametrize("name", DESIGNS)
def test_a_request_that_is_over_stays_over(name: str) -> None:
    """To clear a request again releases nothing, and nothing is kept of it."""
    ledger = Ledger()
    manager = DesignManager(DESIGNS[name], "locked", ledger)
    manager.create(7, 1)
    manager.clear(7, 1)
    manager.clear(7, 1)
    assert ledger.released == {(7, 1): 1}
    assert books(manager) == []


def books(manager: DesignManager) -> list[object]:
    """Whatever has something kept of it beside the status table."""
    return [*manager._requests, *manager._newest, *manager._infos, *manager._outstanding]


class Storm:
    """A scheduler, a bootstrap thread and transfer workers, none of which waits for another: rooms 1 to 80, once."""

    CHUNKS: Final = 3

    def __init__(self, manager: DesignManager, request: int) -> None:
        self.manager = manager
        self.request = request
        self.random = Random(request)  # noqa: S311  # chooses a storm, no secret
        self.outcomes: dict[int, KVPoll] = {}
        self.messages: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.queue: SimpleQueue[tuple[int, int] | None] = SimpleQueue()

    def run(self) -> dict[int, KVPoll]:
        """What the sender of each room has reported in the end."""
        threads = [threading.Thread(target=self.bootstrap), *(threading.Thread(target=self.work) for _ in range(4))]
        for thread in threads:
            thread.start()
        try:
            self.schedule()
        finally:
            self.messages.put(None)
            for _ in threads[1:]:
                self.queue.put(None)
            for thread in threads:
                thread.join()
        return self.outcomes

    def schedule(self) -> None:
        running: set[int] = set()
        left = set(range(1, 81))
        impatient = {room for room in left if self.random.random() < 0.3}
        for room in left:
            self.manager.create(room, self.request)
            self.messages.put(functools.partial(self.manager.metadata, room, self.request))
        deadline = time.monotonic() + 30
        while left and time.monotonic() < deadline:
            for room in sorted(left):
                said = self.manager.poll(room, self.request)
                if said == Failed or (said == Success and room in running):
                    self.outcomes[room] = said
                    self.manager.clear(room, self.request)
                    left.discard(room)
                elif said == WaitingForInput and room not in running:
                    running.add(room)
                    if self.random.random() < 0.4:
                        self.messages.put(functools.partial(self.manager.abort_notice, room, self.request))
                    for chunk in range(self.CHUNKS):
                        if self.manager.enqueue(room, self.request, chunk, chunk == self.CHUNKS - 1):
                            self.queue.put((room, chunk))
                elif room in running and room in impatient and self.random.random() < 0.02:
                    self.manager.abort(room, self.request)

    def bootstrap(self) -> None:
        while (message := self.messages.get()) is not None:
            message()

    def work(self) -> None:
        while (job := self.queue.get()) is not None:
            room, chunk = job
            last = chunk == self.CHUNKS - 1
            if self.manager.start(room, self.request, chunk, last):
                self.manager.finish(room, self.request, chunk, last, room % 5 > 0)


@pytest.fixture
def _often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("level", LATCH.atomicities)
def test_a_storm_leaves_nothing_but_tombstones(level: Atomicity) -> None:
    """Among free threads, on ids used twice, each request of latch settles, is released once and ends in one way."""
    ledger = Ledger()
    manager = DesignManager(LATCH, level, ledger)
    for request in (1, 2):
        outcomes = Storm(manager, request).run()
        assert outcomes.keys() == set(range(1, 81))
        assert {Failed, Success} == set(outcomes.values())
        for room, outcome in outcomes.items():
            assert ledger.told.get((room, request), {outcome}) == {outcome}
    assert ledger.released == Counter((room, request) for room in range(1, 81) for request in (1, 2))
    assert ledger.entries == {room: Entry(2, None) for room in range(1, 81)}
    assert {status_of(entry) for entry in ledger.entries.values()} == {None}
    assert books(manager) == []
