"""What surrounds a manager: rooms, and the threads on which everything in them happens.

:class:`World` is the memory of an observer of the manager, immutable. Its :meth:`World.moves` are what can happen next,
:meth:`World.after` is the memory after it; ``formulas.py`` asks it what is broken. An event is one call of the manager,
so it is coarser than a step of the protocol; threads that are held inside a call give the finer interleavings.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from kvlatch.reference.oracle.life import SETTLED, Life
from kvlatch.reference.oracle.moves import CLOCK, SCHEDULER, Bounds, Call, Halted, Move, Seen
from kvlatch.spec.status import F

_SURE = ("create", "poll", "send", "start", "finish", "break", "clear", "tick")
_OFTEN = 2
"""How often time passes, or is set back."""


@attrs.frozen
class Active:
    """An event that a thread has begun, before what it is held there, and what it has found so far."""

    call: Call
    at: str
    trail: tuple[tuple[str, object], ...] = ()
    blocked: bool = False
    alone: bool = True
    """No other thread has moved since it began."""
    failed: bool = False
    """The room had failed when it began."""
    late: bool = False
    """The request had been cleared when it began."""


@attrs.frozen
class World:
    """What an observer knows so far: of each room, and of each thread that is in the middle of something."""

    bounds: Bounds
    lives: tuple[Life, ...]
    active: tuple[tuple[str, Active], ...] = ()
    own: tuple[Halted, ...] = ()
    """The threads that the manager has started itself."""
    working: frozenset[str] = frozenset()
    """The workers that have a chunk."""
    room: int = 0
    """The room in which something has happened last ..."""
    called: int = 0
    """... and the room of the last call: what a thread of the manager's own does is seen there."""
    last_thread: str = ""
    """The thread that moved last, if it is held."""
    preemptions: int = 0
    """How often another thread moved although that one could have gone on."""
    ticked: bool = False
    """The scheduler's loop has gone round once more since the manager was last called."""
    jumps: int = 0
    waits_known: bool = False
    """The player says exactly who waits: nobody has to try again to find out."""
    crashed: bool = False
    """The last move has ended with an exception; nothing follows."""
    hung: bool = False

    @classmethod
    def of(cls, bounds: Bounds) -> World:
        """All rooms before their first requests."""
        return cls(bounds, tuple(Life.of(bounds, room) for room in bounds.rooms))

    @property
    def life(self) -> Life:
        """The room in which something has happened last."""
        return self.lives[self.room]

    # ----------------------------------------------------------------------------------------------------------------
    # What can happen

    def moves(self) -> Iterator[Move]:
        """Every move that is possible now."""
        if self.hung or self.crashed:
            return
        yield from self.going_on()
        for number in range(len(self.lives)):
            yield from self._in_room(number)
        yield from self._of_time()

    def going_on(self) -> Iterator[Move]:
        """How threads may go on that are in the middle of something."""
        waits = self.waits_known
        yield from (Move(thread) for thread, active in self.active if not (active.blocked and waits))
        yield from (Move(own.thread) for own in self.own if not own.blocked)

    def _in_room(self, number: int) -> Iterator[Move]:
        """Events of one room, on threads that have nothing else to do."""
        busy = {thread for thread, _ in self.active}
        for move in self.lives[number].events():
            if move.thread not in busy and not (move.event == "start" and move.thread in self.working):
                yield attrs.evolve(move, room=number) if number else move

    def _of_time(self) -> Iterator[Move]:
        if not self.ticked and self.due:
            yield Move(SCHEDULER, "tick")
        if self.bounds.clock and self.jumps < _OFTEN and not self.active:
            yield Move(CLOCK, "wait")
            yield Move(CLOCK, "set_back")

    def possible(self, move: Move) -> bool:
        """Whether a move can be made now."""
        if self.hung or self.crashed or not 0 <= move.room < len(self.lives):
            return False
        if move.event is None:
            return move in self.going_on()
        return move in self._in_room(move.room) or move in self._of_time()

    def call(self, move: Move) -> Call:
        """The call that a move begins; ValueError if it is not possible now."""
        if move.event is None or not self.possible(move):
            raise ValueError(f"{move} is not possible in this place")
        return self.lives[move.room].call(move)

    @property
    def quiet(self) -> bool:
        """None of the manager's own threads has anything to do."""
        return all(own.blocked for own in self.own)

    @property
    def idle(self) -> bool:
        """No thread has anything to do but to poll."""
        resting = not self.working and not self.active and self.quiet
        return resting and not any(life.queue for life in self.lives)

    @property
    def due(self) -> bool:
        """Something is still owed that may come when the scheduler's loop goes round: pages, or a word to decode."""
        if not self.idle:
            return False
        return any(one.phase == "releasing" or one.untold for life in self.lives for one in life.requests)

    @property
    def deadlock(self) -> bool:
        """Every thread that has begun something waits for another of them, or nobody else can do anything."""
        if not self.active or not self.quiet or not all(active.blocked for _, active in self.active):
            return False
        return len(self.active) > 1 or not any(map(self._comes, self.moves()))

    def _comes(self, move: Move) -> bool:
        """What is sure to come, by a thread that has nothing else to do: nobody need abort, or send anything twice."""
        if move.event == "metadata":
            life = self.lives[move.room]
            return life.requests[(move.request or life.request) - 1].metadata == 0
        return move.event in _SURE

    # ----------------------------------------------------------------------------------------------------------------
    # The result

    def after(self, move: Move, seen: Seen) -> World:
        """The memory after a move."""
        active, own = dict(self.active), {one.thread: one for one in self.own}
        running = active.get(self.last_thread) or own.get(self.last_thread)
        preempted = running is not None and not running.blocked and self.last_thread != move.thread
        mine = self._mine(move)
        room = self.called if mine is None else self.bounds.rooms.index(mine.call.room)
        life = attrs.evolve(self.lives[room], polled=None, resumed=False)
        if mine is not None:
            active = {thread: attrs.evolve(other, alone=False) for thread, other in active.items()}
            life = life.begun(move.thread, mine.call) if move.event is not None else life
            active.pop(move.thread, None)
            if seen.held is not None:
                active[move.thread] = attrs.evolve(mine, at=seen.held, trail=seen.trail, blocked=seen.blocked)
        quiet = all(one.blocked for one in seen.threads or () if one.thread not in active)
        if quiet and move.told:
            life = life.caught_up()
        # what the table says in the middle of a critical section, nobody reads
        if move.told and not any(one.locks for one in seen.threads or () if one.thread == move.thread):
            life = life.observed(seen.status)
        life = life.did(seen, mine.call.request, late=mine.late) if mine is not None else life.did(seen)
        if seen.held is None and mine is not None and not seen.faults and not seen.hung:
            life = life.ended(move.thread, mine.call, seen, alone=mine.alone, failed=mine.failed, quiet=quiet)
        working = self.working - {move.thread}
        working |= {f"worker {n}" for n, worker in enumerate(life.workers) if worker.state != "idle"}
        return (
            attrs.evolve(
                self,
                lives=(*self.lives[:room], life, *self.lives[room + 1 :]),
                working=working,
                room=room,
                called=room if move.event is not None and move.told else self.called,
                preemptions=self.preemptions + preempted,
                last_thread=move.thread if seen.held is not None else "",
                hung=seen.hung,
                crashed=bool(seen.faults),
                ticked=_ticked(mine, seen) or (self.ticked and not move.told),
                jumps=self.jumps + (move.thread == CLOCK),
            )
            ._waiting(active, seen)
            ._elsewhere(seen)
        )

    def _mine(self, move: Move) -> Active | None:
        """The event with which a move begins or goes on; None for a thread of the manager's own."""
        if move.event is None:
            return dict(self.active).get(move.thread)
        call = self.call(move)
        life = self.lives[move.room]
        about = life.requests[call.request - 1]
        failed = call.request == life.request and life.status == F
        return Active(call, "", alone=self.quiet, failed=failed, late=about.phase in SETTLED)

    def _waiting(self, active: dict[str, Active], seen: Seen) -> World:
        """Who is in the middle of something after a move, and who of those waits."""
        if seen.threads is None:
            if not seen.blocked and not self.waits_known:  # whoever waits for a lock may try again
                active = {thread: attrs.evolve(other, blocked=False) for thread, other in active.items()}
            return attrs.evolve(self, active=tuple(sorted(active.items())))
        now = {one.thread: one for one in seen.threads}
        active = {
            thread: attrs.evolve(one, at=now[thread].at, blocked=now[thread].blocked)
            for thread, one in active.items()
            if thread in now
        }
        own = tuple(one for one in seen.threads if one.thread not in active)
        return attrs.evolve(self, active=tuple(sorted(active.items())), own=own, waits_known=True)

    def _elsewhere(self, seen: Seen) -> World:
        """What the manager has done in other rooms than that of the move."""
        lives = list(self.lives)
        for room, request, word in seen.elsewhere:
            if room in self.bounds.rooms:
                number = self.bounds.rooms.index(room)
                did = Seen(None, told=((request, word),)) if word is not None else Seen(None, released=(request,))
                lives[number] = lives[number].did(did)
        return attrs.evolve(self, lives=tuple(lives)) if seen.elsewhere else self


def _ticked(mine: Active | None, seen: Seen) -> bool:
    """The scheduler's loop has gone round, and nobody has done anything meanwhile."""
    return mine is not None and mine.call.event == "tick" and mine.alone and seen.held is None
