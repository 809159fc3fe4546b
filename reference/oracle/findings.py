"""A broken law, as it is told: what was seen, the play as a table, a trace, and the command that plays it again."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final

import attrs

from kvlatch.reference import played
from kvlatch.reference.laws import LAWS, NO_CRASH, NO_DEADLOCK, TOLD_ONCE, Broken
from kvlatch.reference.oracle.explore import Play
from kvlatch.reference.oracle.formulas import blamed, labels
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.life import Life
from kvlatch.reference.oracle.moves import Halted, Move, Seen
from kvlatch.reference.story import Kind, Line, Story, text
from kvlatch.spec.model import Instance
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.status import ABSENT
from kvlatch.spec.traces import Step, Trace

_SHOWN: Final = 60
"""Lines of a table; of a longer play, its beginning and its end."""
_TYPED: Final = 500
"""Moves that fit on a command line."""


@attrs.frozen
class Finding:
    """One law that a manager breaks, and a short play that shows it; ``subject`` is the manager's name.

    ``seed`` is that of the random plays if one of those has shown it; then the play was made short.
    """

    law: str
    subject: str
    play: Play
    seed: int | None = None

    @property
    def sentence(self) -> str:
        """What was seen, in one sentence."""
        world = self.play.world
        match self.law:
            case _ if self.law == NO_CRASH:
                fault = self.play.seen[-1].faults[0]
                return f"{fault.what} leaves {self._call} on {fault.thread}"
            case _ if self.law == NO_DEADLOCK:
                return " and ".join(_waits(world, self.play.seen[-1])) or "a call does not come to its end"
            case _ if self.law == TOLD_ONCE:
                return _told(world)
        life, number = blamed(world, self.law)
        one = life.requests[number - 1]
        if life.resumed and self.law == "no-resurrection":
            return "the room has failed, and a worker that asks then is told to transfer"
        polled = life.polled
        words = {
            "status": polled.said if polled else life.status,
            "first_terminal": life.first_terminal,
            "phase": one.phase,
            "pages": one.pages,
            "latch": one.latch,
            "wire": one.wire,
            "chunks": ", ".join(one.chunks),
        }
        return _words(self.law, polled is not None).format(**words)

    @property
    def _call(self) -> str:
        """The call with which the play ends."""
        play, move = self.play, self.play.moves[-1]
        before = play.worlds[-2]
        if move.event is not None:
            return move.event
        active = dict(before.active).get(move.thread)
        return active.call.event if active is not None else "a thread of its own"

    @property
    def story(self) -> Story:
        """The play as a table."""
        count = len(self.play.moves)
        heading = f"{self.subject}; {self.play.bounds}: {count:,} moves"
        first, last = (count, 0) if count <= _SHOWN else (_SHOWN // 4, _SHOWN * 3 // 4)
        lines = tuple(_line(number, self.play) for number in range(1, first + 1))
        if last:
            left_out = f"{count - first - last:,} more moves like these"
            lines += (Line(first + 1, self.play.moves[first].thread, left_out, "", "", "else"),)
            lines += tuple(_line(number, self.play) for number in range(count - last + 1, count + 1))
        return Story(heading, lines, count or None, f"{self.law} is broken: {self.sentence}.")

    @property
    def text(self) -> str:
        """All of it but the command."""
        parts = [f"the law: {self.law}: {LAWS[self.law]}", text(self.story)]
        if self.law == NO_CRASH:
            parts.append(self.play.seen[-1].faults[0].text.rstrip())
        held = [f"{one.thread} holds {', '.join(filter(None, one.locks))}" for one in self._halted if any(one.locks)]
        parts.append("; ".join(held))
        if self.seed is not None:
            parts.append(f"found at random with --seed {self.seed}, and made short")
        if self.law in BY_NAME and (reports := BY_NAME[self.law].reports):
            parts.append(f"reports of the same kind: {', '.join(reports)}")
        return "\n\n".join(part for part in parts if part)

    @property
    def _halted(self) -> list[Halted]:
        return list(self.play.seen[-1].threads or ())

    @property
    def again(self) -> str:
        """What to paste into a shell to see it again, in the folder in which this runs; empty if there is no way."""
        if "<locals>" in self.subject:
            return ""
        if len(self.play.moves) > _TYPED:
            return f"{importable(self.subject)}kvlatch conform {self.subject} --only {self.law}"
        return f"{importable(self.subject)}kvlatch conform {self.subject} --play {shlex.quote(str(self.play))}"

    @property
    def answer(self) -> Broken:
        """The verdict."""
        file, line = self._place
        return Broken(self.sentence, self.text, self.trace, self.again, file, line)

    @property
    def _place(self) -> tuple[str | None, int | None]:
        """The place to blame in the manager's code; where none is known, where the adapter is defined."""
        if self.law == NO_CRASH:
            fault = self.play.seen[-1].faults[0]
            return fault.file, fault.line
        places = [one.place for one in self._halted if one.place]
        file, _, line = places[0].rpartition(":") if places else ("", "", "")
        return (file, int(line)) if file and line.isdecimal() else defined(self.subject)

    @property
    def trace(self) -> Trace:
        """The play as a trace, for a file: the variables are the spec's, the actions are the moves."""
        bounds = self.play.bounds
        first, *worlds = self.play.worlds
        steps = (
            Step(labels(first)),
            *(Step(labels(w), str(m), {}, m.thread) for m, w in zip(self.play.moves, worlds, strict=True)),
        )
        instance = Instance(bounds.workers, bounds.chunks, min(bounds.requests, 2))
        loop = len(steps) - 1 if self.law in BY_NAME and BY_NAME[self.law].kind == "liveness" else None
        code = str(attrs.evolve(self.play, moves=()))
        return Trace(self.subject, played.atomicity(code), bounds.network, instance, self.law, steps, loop)


def text_of(trace: Trace) -> str:
    """The play that a finding's trace tells, as text; ValueError if it is not such a trace."""
    return f"{played.code_of(trace)} {played.moves_of(trace)}"


def defined(subject: str) -> tuple[str | None, int | None]:
    """File and line of the definition that a subject names; None twice if it names none that can be read."""
    module, _, name = subject.partition(":")
    try:
        thing = attrgetter(name)(sys.modules[module])
        return inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
    except (KeyError, AttributeError, OSError, TypeError):
        return None, None


def importable(subject: str) -> str:
    """What has to stand before the command so that the subject's module is found from the current folder."""
    module = sys.modules.get(subject.partition(":")[0])
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return ""
    root = Path(file).resolve().parents[module.__name__.count(".")]
    if root == Path.cwd().resolve() or any("site-packages" in part for part in root.parts):
        return ""
    return f"PYTHONPATH={shlex.quote(os.path.relpath(root))} "


# --- What was seen --------------------------------------------------------------------------------------------------


def _words(law: str, polled: bool) -> str:
    """The sentence of a law, where the one of the spec speaks of the table and a poll has broken it."""
    if polled and law == "success-complete":
        return "a poll says {status} although chunks are missing: {chunks}"
    if polled and law == "room-reusable":
        return "this request has only just been created, and a poll says {status}: that is of another one"
    return BY_NAME[law].broken


def _told(world: World) -> str:
    for life in world.lives:
        for number, one in enumerate(life.requests, 1):
            who = f"request {number}" if len(world.lives) == 1 else f"request {number} of room {life.room}"
            if len(one.words) > 1:
                return f"decode was told twice how {who} ended: {', '.join(one.words)}"
            if one.late_word:
                return f"decode was told {one.words[-1]} about {who} by a call that began after it had been cleared"
            if one.untold and world.ticked:
                return f"{who} ended as {one.latch}, and decode is never told"
    return "decode was told wrongly"


def _waits(world: World, seen: Seen) -> Iterator[str]:
    """Each thread that waits, for what, and where."""
    if seen.hung and seen.held:
        yield seen.held
        return
    halted = {one.thread: one for one in seen.threads or ()}
    for thread, active in world.active:
        place = f" ({halted[thread].place})" if thread in halted and halted[thread].place else ""
        yield f"{thread} {active.at}{place}"


def _line(number: int, play: Play) -> Line:
    """One move of a play, as it is shown."""
    move, seen = play.moves[number - 1], play.seen[number - 1]
    before, after = play.worlds[number - 1], play.worlds[number]
    old, new = before.lives[after.room], after.life
    words = [*_what(play, before, move, new), *_reads(before, move, seen)]
    if old.status != new.status:
        words.append(f"{old.status} -> {new.status}")
    words += [f"{fault.what}" for fault in seen.faults]
    if seen.held is not None:
        place = next((one.place for one in seen.threads or () if one.thread == move.thread and one.place), "")
        words.append(f"... {seen.held} next" + (f" ({place})" if place else ""))
    elif move.event == "start" or (seen.answer in (True, False) and isinstance(seen.answer, bool)):
        words.append("transfers" if seen.answer else "skips")
    words += [f"releases the pages of request {request}" for request in seen.released]
    words += [f"tells decode {status.name} about request {request}" for request, status in seen.told]
    words += [
        f"{'releases the pages' if word is None else f'tells decode {word.name}'} of room {room}, request {request}"
        for room, request, word in seen.elsewhere
    ]
    kind: Kind = "writes the table" if old.status != new.status else "else"
    return Line(number, move.thread, ", ".join(words), new.status, new.polled.said if new.polled else "", kind)


def _what(play: Play, before: World, move: Move, now: Life) -> list[str]:
    """What is done, of which chunk, request and room."""
    if move.event is not None:
        call = before.call(move)
    elif (active := dict(before.active).get(move.thread)) is not None:
        call = active.call
    else:
        return ["goes on"]
    what = call.event.replace("_", " ")
    if call.event in ("start", "finish", "break"):
        what += f" chunk {call.chunk}"
    where = [f"room {now.room}"] * (len(play.bounds.rooms) > 1)
    where += [f"request {call.request}"] * (play.bounds.requests > 1 and call.event != "reuse")
    what += f" ({', '.join(where)})" if where and call.event not in ("wait", "set_back") else ""
    return [what if move.event is not None else f"{what} goes on"]


def _reads(before: World, move: Move, seen: Seen) -> list[str]:
    """What the thread has read in this move, of which an onlooker has to know if it is held afterwards."""
    if seen.held is None:
        return []
    active = dict(before.active).get(move.thread) if move.event is None else None
    found = [value for access, value in seen.trail[len(active.trail) if active else 0 :] if access.startswith("read")]
    return [f"reads {getattr(value, 'name', value) if value is not None else ABSENT}" for value in found]
