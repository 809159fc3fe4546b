"""The plays of one examination, and what they have shown.

Plays without a preemption come first, then random ones, then two calls at once, which are left to the manager's own
threads first and then interleaved, then plays with one preemption and with two. Whatever has been looked at is counted,
and a law that nothing has looked at is not judged.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from typing import Final

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.laws import NO_DEADLOCK, Judgement, Kept, NotJudged
from kvlatch.reference.oracle.budget import Budget, Enough, never
from kvlatch.reference.oracle.crowd import crowd, numbered_anew, with_fewer_rooms
from kvlatch.reference.oracle.explore import PREEMPTIONS, STAGES, Exploration, Play, TooMany, parse
from kvlatch.reference.oracle.findings import Finding
from kvlatch.reference.oracle.formulas import broken, seems_asleep
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.looks import LOOKS, looked_at
from kvlatch.reference.oracle.moves import SCHEDULER, Bounds, Holds, Move, Player, RoomId, Seen
from kvlatch.reference.oracle.overlaps import Overlap, ended, handed_over, interleaved, overlaps, rested
from kvlatch.reference.oracle.report import Report
from kvlatch.reference.oracle.wander import WIDEST, Drawn, Run, Sessions, as_play, breaking, shortened, walk

_MOST_RESTARTS: Final = 6
_SHARES: Final = (0.35, 0.65, 0.8, 0.9, 1.0)
"""Up to which part of the work for a number of preemptions each stage may go: each gets some, the gentle ones most."""
_TO_LOOK_AGAIN: Final = 0.05
"""Which part of the work may go into plays that confirm a suspicion."""
_TO_SHORTEN: Final = 1.0
"""How much more work, in seconds, may be done to make one finding short."""
_TO_CROWD: Final = 4.0
"""A thousand rooms are tried only if the budget is at least this many seconds."""


@attrs.define
class Search:
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
    looked_again: int = 0
    """How much work went into plays that confirm a suspicion."""
    cold: dict[str, Finding] = attrs.field(factory=dict)
    """What is broken only where the first calls of a manager's life overlap."""
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
        self._explore(0, 0.0, 0.12)
        self._wander(self.walks // 2, until(0.27))
        if deepest and self.walks and _splits(self.player):
            self._hand_over(until(0.38))
            self._overlap(until(0.53))
        self._explore(min(1, deepest), 0.53, 0.6)
        self._explore(deepest, 0.6, 0.63)
        self._crowd(until(0.9))
        self._wander(self.walks - self.walks // 2, until(1.0))

    @property
    def left(self) -> list[str]:
        """The laws of which no play is known that breaks them."""
        return [law for law in self.laws if law not in self.found]

    def _explore(self, bound: int, begin: float, end: float) -> None:
        """Deepen every stage up to ``bound`` preemptions; begin again where threads have to be held at more places.

        It is done between two parts of all the work.
        """
        for _ in range(_MOST_RESTARTS):
            if not self.explorations:
                self.explorations = [Exploration(self.player, bounds, self.limit) for bounds in STAGES]
            for exploration, share in zip(self.explorations, _SHARES, strict=True):
                exploration.enough = self.budget.until(begin + share * (end - begin))
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
                    self._look_at(play)
                    if seems_asleep(play.world):
                        self._look_again(play)
                    if not self.left:
                        return
        except TooMany:
            return

    def _look_again(self, play: Play) -> None:
        """Poll a request that seems to sleep, and keep what that shows: the table alone says too little."""
        before = self.budget.spent
        if not self.left or self.looked_again > _TO_LOOK_AGAIN * before:
            return
        poll = Move(SCHEDULER, "poll", None, play.world.room)
        whole = [*(False for _ in play.moves), True]
        longer = as_play(self.player, play.bounds, [*play.moves, poll], self._places, whole=whole)
        for law in longer.broken():
            if law in self.left:
                self._found(Finding(law, self.subject, longer))
        self.looked_again += self.budget.spent - before

    def _hand_over(self, enough: Enough) -> None:
        """Two calls, in either order, before the manager's own threads take up one of them."""
        for one in overlaps(self.player):
            for overlap in (one, attrs.evolve(one, calls=one.calls[::-1])) if one.own else ():
                if not self.left or enough():
                    return
                self._keep_short(overlap, *self._first_broken(handed_over(self.player, overlap)))
                self.counts["handed over"] += 1

    def _keep_short(self, overlap: Overlap, laws: list[str], moves: list[Move], whole: list[bool]) -> None:
        """Keep laws that a play of an overlap breaks, with as few moves as break them."""
        for law in laws:
            longer = as_play(self.player, overlap.bounds, moves, self._places, whole=whole)
            tries = self.budget.further(_TO_SHORTEN)
            bounds, short = shortened(self.player, longer.bounds, longer.moves, law, enough=tries)
            self._keep(law, bounds, short, None)

    def _overlap(self, enough: Enough) -> None:
        """Two calls at once, at the points of a few lives."""
        for overlap in overlaps(self.player):
            if not self.left or enough():
                return
            start = as_play(self.player, overlap.bounds, overlap.before, self._places, whole=True)
            begun, met = len(start.moves), set[object]()
            for play in interleaved(self.player, start, overlap.calls):
                self._look_at(play)
                if ended(play, overlap.calls, begun) and play.place not in met:
                    met.add(play.place)
                    self._keep_short(overlap, *self._first_broken(rested(self.player, overlap, play.moves[begun:])))
                if not self.left or enough():
                    return
            if isinstance(self.player, Holds) and self.player.learn():
                self._begin_again()
            self.counts["overlaps"] += 1

    def _look_at(self, play: Play) -> None:
        """Count what the last move has looked at, and keep what it breaks."""
        self._count(play.worlds[-2], play.moves[-1], play.seen[-1], play.world)
        for law in play.broken():
            if law in self.left:
                self._found(Finding(law, self.subject, attrs.evolve(play, places=self._places)))

    def _wander(self, walks: int, enough: Enough) -> None:
        """Random plays."""
        chance = random.Random(f"{self.seed} {self.counts['random plays']}")  # noqa: S311  # plays, no secrets
        for _ in range(walks):
            if not self.left or enough():
                return
            drawn = Drawn.of(chance, _widest(self.player), words=self._takes_words, sequential=self.sequential)
            self.counts["random plays"] += 1
            laws, moves, _ = self._first_broken(walk(self.player, chance, drawn))
            for law in laws:
                tries = self.budget.further(_TO_SHORTEN)
                bounds, short = shortened(self.player, drawn.bounds, moves, law, whole=drawn.whole, enough=tries)
                self._keep(law, bounds, short, self.seed, whole=drawn.whole)
            if isinstance(self.player, Holds) and self.player.learn():
                self._begin_again()

    def _first_broken(
        self, plays: Generator[tuple[Run, World, Seen]], enough: Enough = never
    ) -> tuple[list[str], list[Move], list[bool]]:
        """Go on until laws are broken that were not before: these, the moves, and which of them are whole calls.

        The play has ended by then.
        """
        with closing(plays):
            for run, before, seen in plays:
                self._count(before, run.moves[-1], seen, run.world)
                if broke := [law for law in broken(run.world) if law in self.left]:
                    return broke, list(run.moves), list(run.whole)
                if enough():
                    break
        return [], [], []

    def _keep(self, law: str, bounds: Bounds, moves: Sequence[Move], seed: int | None, *, whole: bool = False) -> None:
        play = as_play(self.player, bounds, moves, self._places, whole=whole)
        if law in play.broken():
            self._found(Finding(law, self.subject, play, seed))

    def _found(self, finding: Finding) -> None:
        if finding.play.cold and self._only_cold(finding):
            self.cold.setdefault(finding.law, finding)
            return
        self.found[finding.law] = finding
        if self.learnt is not None:
            self.learnt(self.report())

    def _only_cold(self, finding: Finding) -> bool:
        """The same moves break nothing once another request has come and gone."""
        before = self.budget.spent
        if finding.law in self.cold and self.looked_again > _TO_LOOK_AGAIN * before:
            return True
        play = finding.play
        found = breaking(self.player, play.bounds, play.moves, finding.law, warm=True)
        self.looked_again += self.budget.spent - before
        return found is None

    def _crowd(self, enough: Enough) -> None:
        """A thousand rooms in one life of the manager."""
        many = isinstance(self.player, Sessions) and len(_widest(self.player).rooms) > 1
        if not many or not self.left or not self.walks or not self.budget.has(_TO_CROWD):
            return
        laws, moves, _ = self._first_broken(crowd(self.player), enough)
        for law in laws:
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
        if pairs := self.counts["overlaps"] + self.counts["handed over"]:
            counts["pairs of calls at once"] = pairs
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
        for law, finding in self.cold.items():
            if law not in self.found:
                yield (
                    f"not held against it: where the first two calls of its life overlap, {law} is broken "
                    f"({finding.sentence}), and not once another request has come and gone: {finding.again}"
                )
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
