"""One examination: explore, walk at random, fill a manager with a thousand rooms; then a verdict for each law.

Plays without a preemption come first, then random ones, then plays with one preemption and with two. Whatever has been
looked at is counted, and a law that nothing has looked at is not judged.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.laws import NO_DEADLOCK, Judgement, Kept, NotJudged
from kvlatch.reference.oracle.budget import Budget, Enough, never
from kvlatch.reference.oracle.crowd import crowd, numbered_anew, with_fewer_rooms
from kvlatch.reference.oracle.explore import PREEMPTIONS, STAGES, Exploration, Play, TooMany, parse
from kvlatch.reference.oracle.findings import Finding
from kvlatch.reference.oracle.formulas import broken
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.looks import LOOKS, looked_at
from kvlatch.reference.oracle.moves import Bounds, Holds, Move, Player, RoomId, Seen
from kvlatch.reference.oracle.wander import WIDEST, Drawn, Run, Sessions, as_play, breaking, shortened, walk

SECONDS: Final = 8.0
"""How much work an examination does, in seconds: counted, not timed (``budget.py``)."""
LIMIT: Final = 3_000
"""How many plays are made in one stage, unless it is done before."""
WALKS: Final = 400
_MOST_RESTARTS: Final = 6
_TO_SHORTEN: Final = 1.0
"""How much more work, in seconds, may be done to make one finding short."""
_TO_CROWD: Final = 4.0
"""A thousand rooms are tried only if the budget is at least this many seconds."""


@attrs.frozen
class Report:
    """What the oracle has found out about one manager: a judgement for each law, and what they rest on."""

    subject: str
    judgements: tuple[Judgement, ...]
    findings: Mapping[str, Finding]
    looked_at: Mapping[str, int]
    notes: tuple[str, ...]
    """What was not looked at, and why, in sentences."""
    complete: bool
    """No play within the stages' bounds was left out."""
    seed: int

    @property
    def laws(self) -> tuple[str, ...]:
        """The laws that were asked about."""
        return tuple(one.law for one in self.judgements)

    @property
    def summary(self) -> str:
        """What was judged and what was looked at, in a line."""
        counts = Counter(one.verdict for one in self.judgements)
        said = [f"{counts[verdict]} {verdict}" for verdict in ("kept", "broken", "not judged") if counts[verdict]]
        looks = ", ".join(f"{what}: {count:,}" for what, count in self.looked_at.items())
        return "; ".join([f"{self.subject}: laws: {', '.join(said)}", f"looked at {looks}", *self.notes])

    @property
    def kept(self) -> tuple[str, ...]:
        """The laws that were looked at, and that no play broke."""
        return tuple(one.law for one in self.judgements if one.verdict == "kept")


def examine(
    player: Player,
    subject: str,
    laws: Collection[str],
    *,
    limit: int = LIMIT,
    seed: int = 0,
    walks: int = WALKS,
    seconds: float | None = SECONDS,
    sequential: bool = False,
    known: Collection[str] = (),
    learnt: Callable[[Report], None] | None = None,
) -> Report:
    """Hold whatever can be played against some laws; AdapterFault if it cannot be played.

    ``limit`` bounds the plays of each stage, ``walks`` the random ones, ``seconds`` all of the work, which is counted:
    so much takes about so long on a quiet core, and is the same on any machine (None: no limit).
    ``sequential`` promises that one thread at a time calls the manager. ``known`` are texts of plays to begin with.
    ``learnt`` is told what is known whenever another law is broken, in case the end is never reached.
    """
    budget = Budget(player, seconds)
    search = _Search(player, subject, tuple(laws), limit, seed, walks, sequential, budget, learnt)
    search.again(known)
    search.run()
    return search.report()


def judged(play: Play, subject: str, laws: Collection[str]) -> tuple[Judgement, ...]:
    """A judgement for each law from one play: what its end breaks, what it has looked at."""
    looks: Counter[str] = Counter()
    for before, move, seen, after in zip(play.worlds, play.moves, play.seen, play.worlds[1:], strict=False):
        looks.update(looked_at(before, move, seen, after))
    broke = play.broken()
    return tuple(
        Judgement(
            law,
            Finding(law, subject, play).answer
            if law in broke
            else Kept(looks[law], LOOKS[law].unit)
            if looks[law]
            else NotJudged(f"in this play {LOOKS[law].missing}"),
        )
        for law in laws
    )


@attrs.define
class _Search:
    player: Player
    subject: str
    laws: tuple[str, ...]
    limit: int
    seed: int
    walks: int
    sequential: bool
    budget: Budget
    learnt: Callable[[Report], None] | None = None
    found: dict[str, Finding] = attrs.field(factory=dict)
    looks: Counter[str] = attrs.field(factory=Counter)
    counts: Counter[str] = attrs.field(factory=Counter)
    ids: set[RoomId] = attrs.field(factory=set)
    explorations: list[Exploration] = attrs.field(factory=list)
    joined_by_key: bool = True
    words: str = ""
    """Whether the manager takes room ids that are strings: yes, no, or not tried yet."""

    # --- What is played ---

    def again(self, known: Collection[str]) -> None:
        """Play what broke a law the last time."""
        for text in known:
            try:
                bounds, places, moves = parse(text)
            except ValueError:
                continue
            if places and not (isinstance(self.player, Holds) and set(places) <= set(self.player.places)):
                continue
            for law in self.left:
                found = breaking(self.player, bounds, moves, law)
                if found is not None:
                    self._keep(law, bounds, found, None)

    def run(self) -> None:
        """All of it, for as long as there is work left and some law is not broken."""
        deepest = 0 if self.sequential else PREEMPTIONS
        until = self.budget.until
        self._explore(0, until(0.15))
        self._wander(self.walks // 2, until(0.3))
        for bound in range(1, deepest + 1):
            self._explore(bound, until(0.55 + 0.05 * bound))
        self._crowd(until(0.92))
        self._wander(self.walks - self.walks // 2, until(1.0))

    @property
    def left(self) -> list[str]:
        """The laws of which no play is known that breaks them."""
        return [law for law in self.laws if law not in self.found]

    def _explore(self, bound: int, enough: Enough) -> None:
        """Deepen every stage up to ``bound`` preemptions; begin again where threads have to be held at more places."""
        for _ in range(_MOST_RESTARTS):
            if not self.explorations:
                self.explorations = [Exploration(self.player, bounds, self.limit) for bounds in STAGES]
            for exploration in self.explorations:
                exploration.enough = enough
                self._deepen(exploration, bound)
            if not (isinstance(self.player, Holds) and self.player.learn()):
                return
            self._begin_again()

    def _begin_again(self) -> None:
        """Threads have to be held at more places: what has been explored is not all there is."""
        self.counts["plays"] += sum(one.plays for one in self.explorations)
        self.explorations = []

    def _deepen(self, exploration: Exploration, bound: int) -> None:
        try:
            while self.left and exploration.preemptions < bound:
                for play in exploration.deepen():
                    self._count(play.worlds[-2], play.moves[-1], play.seen[-1], play.world)
                    for law in play.broken():
                        if law in self.left:
                            self._found(Finding(law, self.subject, attrs.evolve(play, places=self._places)))
                    if not self.left:
                        return
        except TooMany:
            return

    def _wander(self, walks: int, enough: Enough) -> None:
        """Random plays."""
        chance = random.Random(f"{self.seed} {self.counts['random plays']}")  # noqa: S311  # plays, no secrets
        for _ in range(walks):
            if not self.left or enough():
                return
            drawn = Drawn.of(chance, _widest(self.player), words=self._takes_words, sequential=self.sequential)
            self.counts["random plays"] += 1
            for law, moves in self._first_broken(walk(self.player, chance, drawn)):
                tries = self.budget.further(_TO_SHORTEN)
                bounds, short = shortened(self.player, drawn.bounds, moves, law, whole=drawn.whole, enough=tries)
                self._keep(law, bounds, short, self.seed, whole=drawn.whole)
            if isinstance(self.player, Holds) and self.player.learn():
                self._begin_again()

    def _first_broken(
        self, plays: Generator[tuple[Run, World, Seen]], enough: Enough = never
    ) -> list[tuple[str, list[Move]]]:
        """Go on until some law is broken that was not before; each with the moves. The play has ended by then."""
        with closing(plays):
            for run, before, seen in plays:
                self._count(before, run.moves[-1], seen, run.world)
                if broke := [law for law in broken(run.world) if law in self.left]:
                    return [(law, list(run.moves)) for law in broke]
                if enough():
                    break
        return []

    def _keep(self, law: str, bounds: Bounds, moves: Sequence[Move], seed: int | None, *, whole: bool = False) -> None:
        play = as_play(self.player, bounds, moves, self._places, whole=whole)
        if law in play.broken():
            self._found(Finding(law, self.subject, play, seed))

    def _found(self, finding: Finding) -> None:
        self.found[finding.law] = finding
        if self.learnt is not None:
            self.learnt(self.report())

    def _crowd(self, enough: Enough) -> None:
        """A thousand rooms in one life of the manager."""
        many = isinstance(self.player, Sessions) and len(_widest(self.player).rooms) > 1
        if not many or not self.left or not self.walks or not self.budget.has(_TO_CROWD):
            return
        for law, moves in self._first_broken(crowd(self.player), enough):
            self._keep(law, *numbered_anew(with_fewer_rooms(self.player, moves, law)), None, whole=True)

    @property
    def _takes_words(self) -> bool:
        """Whether the manager takes room ids that are strings: it says so by not failing with one."""
        if len(_widest(self.player).rooms) == 1 or not getattr(self.player, "words", True):
            return False
        if not self.words:
            bounds = Bounds(rooms=("a_room",))
            run = Run.begin(self.player, bounds)
            try:
                for move in map(
                    Move.parse, ["create", "metadata", "poll", "send", "start/0", "finish/0", "poll", "clear"]
                ):
                    if run.world.possible(move):
                        run.make(move, whole=True)
                self.words = "no" if run.world.crashed or run.world.hung else "yes"
            except AdapterFault:
                self.words = "no"
            finally:
                run.session.close()
        return self.words == "yes"

    # --- What is counted ---

    @property
    def _places(self) -> tuple[str, ...]:
        return self.player.places if isinstance(self.player, Holds) else ()

    def _count(self, before: World, move: Move, seen: Seen, after: World) -> None:
        self.counts["moves"] += 1
        self.counts["threads held"] += seen.held is not None
        for what, size in (
            ("rooms", len(after.lives)),
            ("rooms in one life", after.room + 1),
            ("uses of an id", after.life.request),
            ("chunks", after.bounds.chunks),
            ("workers", after.bounds.workers),
            ("preemptions", after.preemptions),
        ):
            self.counts[what] = max(self.counts[what], size)
        self.ids.add(after.life.room)
        if move.told and seen.key is None:
            self.joined_by_key = False
        self.looks.update(looked_at(before, move, seen, after))

    # --- What is said ---

    def report(self) -> Report:
        """A judgement for each law."""
        seconds = self.budget.took / max(1, len(self.laws))
        in_order = {law: self.found[law] for law in self.laws if law in self.found}
        judgements = tuple(
            Judgement(law, in_order[law].answer if law in in_order else self._unbroken(law), seconds=seconds)
            for law in self.laws
        )
        complete = bool(self.explorations) and all(one.left_out == 0 for one in self.explorations)
        return Report(self.subject, judgements, in_order, self._looked_at(), tuple(self._notes()), complete, self.seed)

    def _unbroken(self, law: str) -> Kept | NotJudged:
        if self._never_held:
            return NotJudged(
                "no thread was ever held inside a call, so nothing is known of calls that overlap; --sequential says "
                "that none do"
            )
        if law == NO_DEADLOCK and (self.sequential or not _splits(self.player)):
            return NotJudged("no two calls overlapped")
        look = LOOKS[law]
        looks = self.looks[law]
        return Kept(looks, look.unit) if looks else NotJudged(look.missing)

    @property
    def _never_held(self) -> bool:
        seen = self.counts["threads held"] or self._places  # where all is under one lock, nobody is ever held
        return isinstance(self.player, Holds) and not self.sequential and not seen

    def _looked_at(self) -> dict[str, int]:
        plays = self.counts["plays"] + sum(one.plays for one in self.explorations)
        left_out = sum(one.left_out for one in self.explorations)
        counts = {"plays": plays, "random plays": self.counts["random plays"], "moves": self.counts["moves"]}
        if _splits(self.player):
            counts |= {"threads held": self.counts["threads held"], "places": len(self._places)}
            counts |= {"preemptions": self.counts["preemptions"]}
        sizes = ("rooms", "rooms in one life", "uses of an id", "chunks", "workers")
        counts |= {"room ids": len(self.ids)} | {size: self.counts[size] for size in sizes if self.counts[size]}
        return counts | {"plays left out": left_out}

    def _notes(self) -> Iterator[str]:
        if not _splits(self.player):
            yield "no call was ever split: nothing is known of calls that overlap"
        elif self.sequential:
            yield "taken as sequential: no call was held while another one ran"
        if self.budget.cut:
            yield self.budget.cut
        if not self.joined_by_key:
            yield "plays that look alike to an observer were continued once, which is a heuristic"
        if self.words == "no":
            yield "room ids that are strings are not taken"
        unseen: tuple[str, ...] = getattr(self.player, "unseen", ())
        if unseen:
            yield f"not looked into: {', '.join(unseen)}"


def _widest(player: Player) -> Bounds:
    """How far random plays may go with this player."""
    widest: Bounds = getattr(player, "widest", WIDEST)
    return widest


def _splits(player: Player) -> bool:
    """Whether the player can hold a thread inside a call."""
    return bool(getattr(player, "splits", True))
