"""The child process that runs the KV transfer code of a vLLM wheel: JSON in, JSON out.

`kvlatch.reference.published.vllm.scripts` starts this module. It and what it imports need the standard library only,
so that the foreign code meets nothing else but NumPy: `upstream` loads the wheel, `engines` has two engines and what
can be done to them. Here scripts are played, and every script within bounds.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from kvlatch.reference.published.stand_ins import private_stdout
from kvlatch.reference.published.vllm.child.engines import Fault, World
from kvlatch.reference.published.vllm.child.parts import ROLES, builds
from kvlatch.reference.published.vllm.child.upstream import Upstream
from kvlatch.reference.walk import breadth_first

Move = tuple[str, str]
"""Who does what."""
Played = tuple[int, tuple[Move, ...], list[Move]]
"""A script that has been played: the number of its node, its moves, and what is possible after it."""
AT_MOST: Final = 2
"""Steps of an engine that have been scheduled and not been taken in: one is prepared while another is carried out."""


def play(world: World, script: list[Move]) -> dict[str, Any]:
    """Plays a script: `seen` has one observation a step, `fault` says why there is none."""
    seen = []
    try:
        for who, op in script:
            world.perform(who, op)
            seen.append(world.observe())
    except Fault as fault:
        return {"fault": str(fault)}
    return {"seen": seen}


def explore(fresh: Callable[[], World], bounds: dict[str, Any], limit: int) -> dict[str, Any]:
    """Every script within bounds, shortest first, as a tree: of worlds of which all that is known is equal one goes on.

    Each node has its `move`, what is `seen` after it, and the number of its `parent`, -1 at the beginning. Of each
    world it is also seen what becomes of it if nothing more happens. `complete`: the limit on nodes was not reached.
    """
    nodes: list[dict[str, Any]] = []

    def grow(level: Sequence[Played]) -> Iterator[tuple[Played, Hashable | None]]:
        for parent, script, possible in level:
            for move in possible:
                longer = (*script, move)
                world = replayed(fresh, longer)
                place = None if move == ("time", "settle") else key(world, longer)
                nodes.append({"parent": parent, "move": move, "seen": world.observe()})
                yield (len(nodes) - 1, longer, [*moves(world, longer, bounds)]), place

    first: Played = (-1, (), [*moves(fresh(), (), bounds)])
    walk = breadth_first([first], grow, set())
    nodes_made = sum(1 for _ in islice(walk, limit))
    return {"nodes": nodes[:nodes_made], "complete": next(walk, None) is None}


def replayed(fresh: Callable[[], World], script: tuple[Move, ...]) -> World:
    world = fresh()
    for who, op in script:
        world.perform(who, op)
    return world


RARE: Final = ("expire", "lose_notice", "repeat_notice")
"""What happens once in a script at most."""


def key(world: World, script: tuple[Move, ...]) -> tuple[str, tuple[bool, ...]]:
    """All on which it depends how a script may go on."""
    ops = {op for _, op in script}
    return world.key(), tuple(op in ops for op in RARE)


def moves(world: World, script: tuple[Move, ...], bounds: dict[str, Any]) -> Iterator[Move]:
    """What can happen next."""
    of_engine = ["arrive", "abort", *(["step"] if bounds["steps"] == "whole" else ["schedule", "work", "update"])]
    of_network = ["read_ends", "read_breaks", *(RARE[1:] if bounds["network"] == "disorderly" else ())]
    possible = [(role, op) for role in ROLES for op in of_engine]
    possible += [("network", op) for op in of_network] + [("time", "expire"), ("time", "settle")]
    ops = {op for _, op in script}
    if any(engine.dead for engine in world.engines.values()):
        return
    for who, op in possible:
        if world.allows(who, op) and not (op in RARE and op in ops) and not pointless(world, who, op, bounds):
            yield who, op


def pointless(world: World, who: str, op: str, bounds: dict[str, Any]) -> bool:
    """Beyond the bounds, or of no interest."""
    if who == "network":
        return False
    if who == "time":
        return op == "settle" and bool(world.network.flying())  # what is in flight is not at rest
    engine = world.engines[who]
    return {
        "arrive": who == "prefill" and engine.generation >= bounds["requests"],
        "abort": engine.aborted,
        "schedule": len(engine.steps) >= AT_MOST,
    }.get(op, False)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Plays each script, or explores within bounds; a failure of any kind becomes a `fault`."""
    try:
        upstream = Upstream(request["wheel"])
        built = builds(upstream)

        def fresh() -> World:
            return World(upstream, built)

        if "scripts" in request:
            return {"plays": [play(fresh(), script) for script in request["scripts"]]}
        return {"explored": [explore(fresh, bounds, request["limit"]) for bounds in request["bounds"]]}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the parent has to be told
        traceback.print_exc()
        return {"fault": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    with private_stdout() as output:
        json.dump(answer(json.load(sys.stdin)), output)
