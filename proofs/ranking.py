"""The rank: a number that every step makes smaller, so no run goes on for ever.

Each label of a field has a potential, the number of steps that may still come from it; what is not listed has none.
A thread that waits between its read and its swap counts one more while what it has seen is out of date: a retry takes
that one away, and every store, which may put it on all other threads, takes a whole unit of ``scale``.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

import z3

from kvlatch.proofs.terms import Symbolic
from kvlatch.spec.model import Model, between_steps
from kvlatch.spec.protocol import (
    RULES,
    THREADS,
    bootstrap,
    chunk,
    gen,
    latch,
    metadata,
    notice,
    phase,
    scheduler,
    stale,
    status,
    straggler,
    worker,
)
from kvlatch.spec.terms import Field, Var

_BITS = 16

POTENTIAL: Final[dict[Field, dict[str, int]]] = {
    gen: {"first": 250},
    phase: {"new": 21, "boot": 18, "running": 15, "inflight": 12, "clearing": 9, "forgetting": 6, "releasing": 3},
    latch: {"none": 3},
    scheduler: {"free": 1},
    metadata: {"none": 10, "once": 5},
    notice: {"none": 10, "once": 5},
    straggler: {"due": 5},
    bootstrap: {"registered": 3, "write_w*": 2, "aborting": 4, "write_f*": 3, "popping": 1},
    chunk: {"unsent": 17, "queued": 16},
    stale: {"yes": 16},
    worker: {
        "taken": 14, "checked": 13, "ready": 12, "write_t*": 11, "posting": 10, "transferring": 9, "arrived": 7,
        "concluding": 6, "failing": 6, "write_s*": 5, "fail*": 5, "telling": 4, "popping": 2, "marking": 2,
        "write_t_again*": 1,
    },
}  # fmt: skip


def rank(model: Model, state: Symbolic, changed: Set[Var]) -> z3.BitVecRef:
    """The part of a state's rank that depends on some variables: the rest is the same before and after a step."""
    scale = 2 + 2 * model.instance.rooms + model.instance.workers
    terms = [z3.BitVecVal(0, _BITS)]
    for var in changed:
        for label, potential in POTENTIAL.get(var.field, {}).items():
            if label in var.labels:
                terms.append(_if(state.is_(var, var.labels.index(label)), potential * scale))
    terms += [_if(out_of_date, 1) for out_of_date in _out_of_date(model, state, changed)]
    return sum(terms[1:], terms[0])


def greatest(model: Model) -> int:
    """The rank of the state in which every potential is greatest; it must fit into the bit-vector."""
    scale = 2 + 2 * model.instance.rooms + model.instance.workers
    threads = 2 * model.instance.rooms + model.instance.workers
    return threads + scale * sum(max(POTENTIAL.get(var.field, {}).values(), default=0) for var in model.variables)


def _out_of_date(model: Model, state: Symbolic, changed: Set[Var]) -> list[z3.BoolRef]:
    """For each thread: it stands between read and swap, and the entry is no longer what it saw."""
    found = []
    for pc, seen, entry in _threads(model):
        if changed.isdisjoint((pc, seen, entry)):
            continue
        between = [between_steps(rule) for rule in RULES if rule.write and THREADS[rule.actor].pc is pc.field]
        waiting = state.any_([state.is_(pc, pc.labels.index(label)) for label in between])
        found.append(z3.And(waiting, z3.Not(state.same(seen, entry))))
    return found


def _threads(model: Model) -> list[tuple[Var, Var, Var]]:
    """Program counter, seen status and entry of every thread."""
    by_field = {field: [var for var in model.variables if var.field is field] for field in (status, *_fields())}
    return [
        (pc, seen, by_field[status][0])
        for thread in THREADS.values()
        for pc, seen in zip(by_field[thread.pc], by_field[thread.seen], strict=True)
    ]


def _fields() -> list[Field]:
    return [field for thread in THREADS.values() for field in (thread.pc, thread.seen)]


def _if(formula: z3.BoolRef, amount: int) -> z3.BitVecRef:
    return z3.If(formula, z3.BitVecVal(amount, _BITS), z3.BitVecVal(0, _BITS))
