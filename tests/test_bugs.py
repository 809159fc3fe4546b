"""Public bug reports, retold as runs of the spec: each breaks a property in some design, and none can in ``latch``.

``tests/bugs/README.md`` says how a report is retold, ``tests/bugs/coverage.txt`` how many are, and what the rest needs.
``python tests/test_bugs.py`` prints what belongs into the latter.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from kvlatch.proofs.mutants import MUTANTS
from kvlatch.proofs.mutation import ROWS, Mutant, changed
from kvlatch.proofs.search import Search, explore
from kvlatch.spec.designs import DESIGNS, Design
from kvlatch.spec.merges import MERGES
from kvlatch.spec.model import Action, Instance, Machine
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.protocol import RULES, drained, latch, pages, phase, status
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Atomicity, Network, Property
from kvlatch.spec.status import F, KVPoll
from kvlatch.spec.terms import Field, Label, State, Var, where
from kvlatch.spec.traces import Trace, verify

FOLDER: Final = Path(__file__).parent / "bugs"
LATCH: Final = DESIGNS["latch"]

# --------------------------------------------------------------------------------------------------------------------
# What a report can be told in: the designs that ship, the merges and mutants of the project, and these


def last_write_wins(current: KVPoll | None, incoming: KVPoll) -> KVPoll:
    """No merge at all: a status is whatever was written last."""
    del current
    return incoming


MERGE: Final = MERGES | {"last_write_wins": last_write_wins}

_released, _cleared = ROWS["release"].then[pages], ROWS["clear_status"].then[status]
MUTANT: Final = {
    mutant.name: mutant
    for mutant in (
        *MUTANTS,
        Mutant(
            "kept by failure", "settlement",
            "A request that failed does not give its pages back.",
            changed("release", then={pages: where(latch == F, pages, _released)}),
        ),
        Mutant(
            "release not repeated", "settlement",
            "A release that finds a worker in its transfer does nothing, and is not tried again.",
            changed("release", when=phase == "releasing", then={pages: where(drained, _released, pages)}),
        ),
        Mutant(
            "failure not cleared", "no-ghost",
            "A request that failed leaves its status in the table.",
            changed("clear_status", then={status: where(latch == F, status, _cleared)}),
        ),
    )
}  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Retellings


@attrs.frozen(kw_only=True)
class Retelling:
    """One report as a run; the fields are those of the files, and ``prop``, the name of its file.

    It is told in ``design``, or in a mutant, with the positions in ``but`` instead of its own.
    """

    prop: str
    ref: str
    there: str
    here: str
    steps: str
    beside: list[str] = attrs.field(factory=list)
    design: str = "latch"
    mutant: str | None = None
    but: Mapping[str, str] = attrs.field(factory=dict)
    atomicity: Atomicity = "locked"
    network: Network = "orderly"
    workers: int = 1
    chunks: int = 1
    requests: int = 1

    @property
    def instance(self) -> Instance:
        return Instance(workers=self.workers, chunks=self.chunks, requests=self.requests)

    @property
    def claim(self) -> Property:
        return BY_NAME[self.prop]

    @property
    def told_in(self) -> Design:
        """The design, under a name of its own where it is none that ships."""
        base = MUTANT[self.mutant].design if self.mutant else DESIGNS[self.design]
        assert isinstance(base, Design)
        if not self.but and self.atomicity in base.atomicities:
            return base
        positions: dict[str, Any] = {**self.but}
        if "merge" in positions:
            positions["merge"] = MERGE[positions["merge"]]
        return attrs.evolve(base, name=f"{base.name} of {self.ref}", atomicities=(self.atomicity,), **positions)

    @property
    def machine(self) -> Machine:
        rules = MUTANT[self.mutant].rules if self.mutant else RULES
        return Machine.of(self.told_in, self.atomicity, self.network, self.instance, ROOM.with_rows(rules))

    @property
    def named_steps(self) -> list[tuple[str, str]]:
        """The thread and the name of each step."""
        lines = [line.split(":") for line in self.steps.strip().splitlines()]
        return [(thread, name) for thread, names in lines for name in names.split()]


def play(told: Retelling) -> list[tuple[Action | None, State]]:
    """The run, as engines give it.

    ValueError if a step is not possible, or the property is not broken by the last step, or broken before it.
    """
    machine = told.machine
    run: list[tuple[Action | None, State]] = [(None, machine.initial())]
    for number, (thread, name) in enumerate(told.named_steps, 1):
        state = run[-1][1]
        if machine.broken(told.claim, state):
            raise ValueError(f"{told.ref}: {told.prop} is broken before step {number}, {thread}: {name}")
        actions = [action for action in machine.enabled(state) if (action.thread, action.name) == (thread, name)]
        if len(actions) != 1:
            raise ValueError(f"{told.ref}: step {number}, {thread}: {name}, is not possible")
        run.append((actions[0], machine.step(state, actions[0])))
    if not machine.broken(told.claim, run[-1][1]):
        raise ValueError(f"{told.ref}: the last step does not break {told.prop}")
    return run


def load(prop: str) -> list[Retelling]:
    """The retellings that break one property."""
    rows = tomllib.loads((FOLDER / f"{prop}.toml").read_text(encoding="utf-8"))["report"]
    return [Retelling(prop=prop, **row) for row in rows]


RETOLD: Final = [told for prop in PROPERTIES for told in load(prop.name)]
REST: Final = tomllib.loads((FOLDER / "rest.toml").read_text(encoding="utf-8"))
EACH: Final = pytest.mark.parametrize("told", RETOLD, ids=lambda told: told.ref)

# --------------------------------------------------------------------------------------------------------------------
# The same environment, and everything else free

Event = tuple[str, int | None]
"""A step of the environment: the name of its row, and the chunk that it is about."""


def event(action: Action | None) -> Event | None:
    """What the environment does in an action: the environment is whatever is not fair.

    Requests and aborts of clients, decode's messages, transfers that break, a room id that is used again. Of an update
    in several steps its beginning is the event.
    """
    if action is None or action.rule.fair or action.part not in ("", "read"):
        return None
    return action.rule.name, action.arguments.get("chunk")


def scripted(machine: Machine, events: tuple[Event, ...]) -> tuple[Machine, Var]:
    """The machine in an environment that does these events, in this order, or stops on the way; and how far it is."""
    labels = tuple(str(number) for number in range(len(events) + 1))
    done = Var("script", "room", labels, field=Field("script", "room", labels), place=0)
    actions = []
    for action in machine.model.actions:
        mine = event(action)
        if mine is None:
            actions.append(action)
        for number in (number for number, wanted in enumerate(events) if wanted == mine):
            guard = action.guard & (done == labels[number])
            updates = (*action.updates, (done, Label(labels[number + 1])))
            actions.append(attrs.evolve(action, guard=guard, updates=updates))
    model = attrs.evolve(machine.model, variables=(*machine.model.variables, done), actions=tuple(actions))
    return attrs.evolve(machine, model=model), done


@cache
def latch_in(
    events: tuple[Event, ...], atomicity: Atomicity, network: Network, instance: Instance
) -> tuple[Search, Var]:
    """Every state that ``latch`` reaches in the environment of a script, and how far the script is in each."""
    machine, done = scripted(Machine.of(LATCH, atomicity, network, instance), events)
    return explore(machine, PROPERTIES), done


def events_of(told: Retelling) -> tuple[Event, ...]:
    return tuple(found for action, _ in play(told) if (found := event(action)) is not None)


# --------------------------------------------------------------------------------------------------------------------
# Coverage


def coverage() -> str:
    """What ``coverage.txt`` has to say."""
    groups, reports, untold = REST["groups"], REST["reports"], REST["untold"]
    partly = sum(bool(told.beside) for told in RETOLD)
    runs = {repr(attrs.evolve(told, ref="", there="", here="", beside=[])) for told in RETOLD}
    needs = Counter(group for needed in reports.values() for group in needed)
    alone = Counter(needed[0] for needed in reports.values() if len(needed) == 1)
    told_and_rest = len(RETOLD) + len(reports) + len(untold)
    lines = [
        f"{len(RETOLD)} of {told_and_rest} public reports are retold, {partly} of them in part, as {len(runs)} runs.",
        "",
        *(f"{prop.name:<24}{sum(told.prop == prop.name for told in RETOLD):>4}" for prop in PROPERTIES),
        "",
        f"What the other {len(reports) + len(untold)} would need: how many need it, and how many need nothing else.",
        "",
        *(f"{group:<5}{says:<64}{needs[group]:>4}{alone[group]:>4}" for group, says in groups.items()),
        f"{'':<5}{'something that is no group, said in rest.toml':<64}{len(untold):>4}{len(untold):>4}",
    ]
    return "\n".join(lines) + "\n"


# --------------------------------------------------------------------------------------------------------------------
# Tests


@EACH
def test_report_is_a_run_that_breaks_its_property(told: Retelling) -> None:
    """Each step is enabled, the last one breaks the property, and none before; of a design, it is a trace as well."""
    run = play(told)
    if told.mutant is None:
        trace = Trace.of(told.told_in, told.atomicity, told.network, told.instance, told.claim, run)
        assert verify(trace, told.told_in).states[-1] == run[-1][1]


@EACH
def test_every_change_is_needed(told: Retelling) -> None:
    """With any one of its changes taken back the same steps are no run any more, or a run that breaks nothing."""
    for name in told.but:
        fewer = attrs.evolve(told, but={other: position for other, position in told.but.items() if other != name})
        with pytest.raises(ValueError, match=r"is not possible$|does not break"):
            play(fewer)
    if told.mutant is not None:
        with pytest.raises(ValueError, match=r"is not possible$|does not break"):
            play(attrs.evolve(told, mutant=None))


@EACH
def test_report_is_impossible_in_latch(told: Retelling) -> None:
    """Whatever the order of its own steps, ``latch`` in the same environment, to its end or not, breaks no property.

    Nor does it escape by not letting the environment act: it has runs with all of the report's events.
    """
    events = events_of(told)
    for atomicity in LATCH.atomicities:
        found, done = latch_in(events, atomicity, told.network, told.instance)
        assert found.complete
        assert found.violations == {}
        assert not found.cyclic
        assert found.count(done == str(len(events))) > 0


@pytest.mark.parametrize("prop", BY_NAME)
def test_the_search_would_find_it(prop: str) -> None:
    """In the design that the report is told in, the same search finds the property broken, in no more steps."""
    told = load(prop)[0]
    machine, _ = scripted(told.machine, events_of(told))
    length = explore(machine, PROPERTIES, until=[prop]).length(prop)
    assert length is not None
    assert length <= len(told.named_steps)


@pytest.mark.parametrize("prop", BY_NAME)
def test_a_retelling_that_is_wrong_fails(prop: str) -> None:
    """Without its last step, without its first, with a step of another thread, or for another property: an error."""
    told = load(prop)[0]
    *early, (thread, last) = told.named_steps
    other = "released-once" if prop != "released-once" else "no-lost-wakeup"
    first, *late = told.named_steps
    for wrong, why in (
        (attrs.evolve(told, steps=_text(early)), f"^{re.escape(told.ref)}: the last step does not break {prop}$"),
        (attrs.evolve(told, steps=_text(late)), "is not possible$|does not break"),
        (
            attrs.evolve(told, steps=_text([*early, ("worker 7", last)])),
            f"worker 7: {re.escape(last)}, is not possible$",
        ),
        (attrs.evolve(told, prop=other), f"the last step does not break {other}$"),
        (attrs.evolve(told, steps=_text([first, *late, (thread, last)])), f"{prop} is broken before step"),
    ):
        with pytest.raises(ValueError, match=why):
            play(wrong)


def _text(steps: list[tuple[str, str]]) -> str:
    return "\n".join(f"{thread}: {name}" for thread, name in steps)


def test_no_report_is_counted_twice() -> None:
    """Each report is retold once, or is among the rest once, with the groups that it would need."""
    refs = [*(told.ref for told in RETOLD), *REST["reports"], *REST["untold"]]
    assert len(refs) == len(set(refs))
    named = {group for groups in (*REST["reports"].values(), *(told.beside for told in RETOLD)) for group in groups}
    assert named == REST["groups"].keys()
    assert all(REST["reports"].values())


def test_every_mutant_here_is_needed() -> None:
    """The mutants and the merge that only this file has are each told of by some report."""
    assert MUTANT.keys() - {mutant.name for mutant in MUTANTS} <= {told.mutant for told in RETOLD}
    assert MERGE.keys() - MERGES.keys() <= {told.but.get("merge") for told in RETOLD}


def test_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    """At least 60 reports are retold; how many, and what the rest needs, is in ``coverage.txt``, and is printed."""
    assert len(RETOLD) >= 60
    assert (FOLDER / "coverage.txt").read_text(encoding="utf-8") == coverage()
    with capsys.disabled():
        print(f"\n{coverage()}")


if __name__ == "__main__":
    print(coverage(), end="")
