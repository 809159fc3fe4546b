"""The child process that runs the status code of an sglang wheel: JSON in, JSON out.

`kvlatch.reference.published.sglang.scripts` starts this module. It and what it imports need the standard library only,
so that the foreign code meets nothing else: `upstream` loads the wheel, `room` has one room and what can
be done to it, `threads` the threads that do it and can be held.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvlatch.reference.published.sglang.child.room import Room
from kvlatch.reference.published.sglang.child.threads import STOPS, Actor, Ended, Fault, Waits
from kvlatch.reference.published.sglang.child.upstream import Upstream
from kvlatch.reference.published.stand_ins import private_stdout


class Stage:
    """Plays scripts, one after the other, with the same threads."""

    def __init__(self, upstream: Upstream, patience: float) -> None:
        self.upstream = upstream
        self.patience = patience
        self.actors: dict[str, Actor] = {}
        self.waited: dict[str, None] = {}
        self.ended_early: dict[str, Ended] = {}

    def play(self, script: list[dict[str, Any]]) -> dict[str, Any]:
        """Plays a script on a fresh manager: `seen` has one observation a step, `fault` says why there is none."""
        room = Room(self.upstream)
        seen = []
        self.ended_early = {}
        try:
            for step in script:
                actor = self.actor(step["thread"])
                self.waited = {}
                actor.take(room.perform, step["op"], step["status"], step["part"])
                ended = self.wait(actor, [])
                if step["part"] not in STOPS:
                    ended = self.ended_early.pop(actor.name, ended)
                seen.append({**room.observe(), **vars(ended), "held": actor.held, "waited": [*self.waited]})
        except Fault as fault:
            return {"fault": str(fault)}
        finally:
            self.finish(room)
        return {"seen": seen}

    def actor(self, name: str) -> Actor:
        if name not in self.actors:
            self.actors[name] = Actor(name)
            self.actors[name].start()
        return self.actors[name]

    def wait(self, actor: Actor, waiting: list[Actor]) -> Ended:
        """What the actor's op came to. Where it waits for a lock, the thread that has it gives that back first.

        `waiting` are the actors that wait for this one.
        """
        ended = actor.wait(self.patience)
        while isinstance(ended, Waits):
            holder, chain = ended.holder, [*waiting, actor]
            can_go_on = holder.held
            self.waited |= {f"{actor.name} waits for {holder.name}": None}
            if holder in chain or not can_go_on:
                return self.deadlock(chain, holder)
            holder.give_way()
            over = self.wait(holder, chain)
            if over.error and over.error.startswith("Deadlock: "):
                return over
            if not holder.held:
                self.ended_early[holder.name] = over
            actor.try_again()
            ended = actor.wait(self.patience)
        if ended is not None:
            return ended
        del self.actors[actor.name]
        held = [f"{a.name} is held in {a.op}" for a in self.actors.values() if a.held]
        while_held = f" while {', '.join(held)}: they may share a lock" if held else ""
        raise Fault(f"{actor.name}: {actor.op} came to no end in {self.patience:g} s{while_held}")

    def deadlock(self, chain: list[Actor], holder: Actor) -> Ended:
        """Each of these waits for the next, and the last for `holder`: they are left as they are, for ever."""
        for stuck in chain:
            self.actors.pop(stuck.name, None)
            stuck.begun = stuck.held = False
        names = [actor.name for actor in (*chain, holder)]
        waits = " and ".join(f"{one} waits for {other}" for one, other in itertools.pairwise(names))
        ended = f", which has ended its {holder.op} and keeps the lock"
        return Ended(error=f"Deadlock: {waits}{'' if holder in chain else ended}")

    def finish(self, room: Room) -> None:
        """Lets every op that is held come to its end. What becomes of it is not observed any more."""
        for actor in [*self.actors.values()]:
            if actor.begun and actor.name in self.actors:
                actor.take(room.perform, actor.op, None, "finish")
                with suppress(Fault):
                    self.wait(actor, [])


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Plays each script as often as asked; a failure of any kind becomes a `fault`."""
    try:
        stage = Stage(Upstream(request["code"], request["backend"], request["overlays"]), request["patience"])
        stay_on_this_core()
        repetitions = range(request["repeat"])
        return {"runs": [[stage.play(script) for _ in repetitions] for script in request["scripts"]]}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the parent has to be told
        traceback.print_exc()
        return {"fault": f"{type(error).__name__}: {error}"}


def stay_on_this_core() -> None:
    """Only one thread runs at a time, and handing over to one on another core takes four times as long."""
    stat = Path("/proc/self/stat")
    if hasattr(os, "sched_setaffinity") and stat.exists():
        after_name = stat.read_text().rpartition(")")[2].split()
        os.sched_setaffinity(0, {int(after_name[36])})  # field 39 of proc(5): the core last run on


if __name__ == "__main__":
    with private_stdout() as output:
        json.dump(answer(json.load(sys.stdin)), output)
