"""Public bug reports, retold as runs of the spec: each breaks a property in some design, and none can in ``latch``.

``tests/bugs/README.md`` says how a report is retold, ``tests/bugs/coverage.txt`` how many are, and what the rest needs.
``python -m tests.test_bugs`` prints what belongs into the latter.
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
from kvlatch.proofs.mutation import Mutant
from kvlatch.proofs.search import Search, explore
from kvlatch.spec.designs import Design
from kvlatch.spec.merges import MERGES
from kvlatch.spec.model import Action, Machine
from kvlatch.spec.protocols import PROTOCOLS
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import AnyDesign, Atomicity, Choice, Network, Property, Protocol, Sizes
from kvlatch.spec.terms import Field, Label, State, Var
from kvlatch.spec.traces import Trace, verify
from tests.bug_deviations import DEVIATIONS, MERGE

FOLDER: Final = Path(__file__).parent / "bugs"
MUTANT: Final = {mutant.name: mutant for mutant in MUTANTS} | DEVIATIONS
PROTOCOL_OF: Final = {prop.name: protocol for protocol in PROTOCOLS.values() for prop in protocol.properties}
PROPS: Final = [prop for prop in PROTOCOL_OF if (FOLDER / f"{prop}.toml").exists()]
"""The properties that some report breaks."""


def recommended(protocol: Protocol) -> AnyDesign:
    return protocol.designs["latch" if protocol is ROOM else f"{protocol.name}-latch"]


# --------------------------------------------------------------------------------------------------------------------
# Retellings


@attrs.frozen(kw_only=True)
class Retelling:
    """One report as a run; the fields are those of the files, and ``prop``, the name of its file.

    It is told in ``design``, or in a mutant, with the positions in ``but`` instead of its own; ``sizes`` has the number
    of whatever its protocol counts.
    """

    prop: str
    ref: str
    there: str
    here: str
    steps: str
    beside: list[str] = attrs.field(factory=list)
    design: str | None = None
    mutant: str | None = None
    but: Mapping[str, str] = attrs.field(factory=dict)
    atomicity: Atomicity = "locked"
    network: Network = "orderly"
    sizes: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def protocol(self) -> Protocol:
        """The protocol that it is a run of, as it ships."""
        return PROTOCOL_OF[self.prop]

    @property
    def instance(self) -> Sizes:
        ones = {size.name: 1 for size in attrs.fields(self.protocol.sizes)}
        return self.protocol.sizes(**{**ones, **self.sizes})

    @property
    def claim(self) -> Property:
        return self.protocol.prop(self.prop)

    @property
    def changed(self) -> Mutant | None:
        return MUTANT[self.mutant] if self.mutant else None

    @property
    def told_in(self) -> AnyDesign:
        """The design, under a name of its own where it is none that ships."""
        base = self.protocol.designs[self.design] if self.design else recommended(self.protocol)
        if self.changed:
            base = self.changed.design
        if not self.but and self.atomicity in base.atomicities:
            return base
        name = f"{base.name} of {self.ref}"
        if isinstance(base, Choice):
            return attrs.evolve(base, name=name, chosen={**base.chosen, **self.but})
        assert isinstance(base, Design)
        positions: dict[str, Any] = {**self.but}
        if "merge" in positions:
            positions["merge"] = MERGE[positions["merge"]]
        return attrs.evolve(base, name=name, atomicities=(self.atomicity,), **positions)

    @property
    def machine(self) -> Machine:
        rows = self.changed.of.with_rows(self.changed.rules) if self.changed else self.protocol
        return Machine.of(self.told_in, self.atomicity, self.network, self.instance, rows)

    @property
    def named_steps(self) -> list[tuple[str, str]]:
        """The thread and the name of each step."""
        lines = [line.split(":") for line in self.steps.strip().splitlines()]
        return [(thread, name) for thread, names in lines for name in names.split()]


def called(action: Action, name: str) -> bool:
    """A step has this name; or, where it could be about several, ``name(1)``, with the number of that one."""
    return name in (action.name, f"{action.name}({action.arguments.get(action.rule.per or '')})")


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
        actions = [action for action in machine.enabled(state) if action.thread == thread and called(action, name)]
        if len(actions) != 1:
            raise ValueError(f"{told.ref}: step {number}, {thread}: {name}, is not possible")
        run.append((actions[0], machine.step(state, actions[0])))
    if not machine.broken(told.claim, run[-1][1]):
        raise ValueError(f"{told.ref}: the last step does not break {told.prop}")
    return run


def load(prop: str) -> list[Retelling]:
    """The retellings that break one property."""
    rows = tomllib.loads((FOLDER / f"{prop}.toml").read_text(encoding="utf-8"))["report"]
    counted = {size.name for size in attrs.fields(PROTOCOL_OF[prop].sizes)}
    return [
        Retelling(
            prop=prop,
            sizes={name: row[name] for name in row.keys() & counted},
            **{name: value for name, value in row.items() if name not in counted},
        )
        for row in rows
    ]


RETOLD: Final = [told for prop in PROPS for told in load(prop)]
IN_A_ROOM: Final = [
    told for told in RETOLD if told.protocol is ROOM and (told.changed is None or told.changed.of is ROOM)
]
"""What there can be a log of: it has a line for no rows but those of the room."""
REST: Final = tomllib.loads((FOLDER / "rest.toml").read_text(encoding="utf-8"))
EACH: Final = pytest.mark.parametrize("told", RETOLD, ids=lambda told: told.ref)

# --------------------------------------------------------------------------------------------------------------------
# The same environment, and everything else free

Event = tuple[str, tuple[tuple[str, int], ...]]
"""A step of the environment: the name of its row, and what it is about, such as the chunk."""


@cache
def environment(protocol: Protocol) -> frozenset[str]:
    """The rows that the environment decides on: whatever is not fair, as far as it can happen in ``latch``."""
    if protocol is ROOM:
        return frozenset(rule.name for rule in protocol.rows if not rule.fair)
    world = protocol.worlds[-1]
    machine = Machine.of(recommended(protocol), "locked", world.network, world.instance(2), protocol)
    return frozenset(action.rule.name for action in explore(machine, []).taken if not action.fair)


def event(action: Action | None, protocol: Protocol) -> Event | None:
    """What the environment does in an action.

    Requests and aborts of clients, messages that are lost or late, what breaks or dies, a room id that is used again.
    Of an update in several steps its beginning is the event; which worker it is makes no difference.
    """
    if action is None or action.rule.name not in environment(protocol) or action.part not in ("", "read"):
        return None
    about = tuple((sort, index) for sort, index in sorted(action.arguments.items()) if sort != "worker")
    return action.rule.name, about


def scripted(machine: Machine, events: tuple[Event, ...]) -> tuple[Machine, Var]:
    """The machine in an environment that does these events, in this order, or stops on the way; and how far it is."""
    labels = tuple(str(number) for number in range(len(events) + 1))
    done = Var("script", "room", labels, field=Field("script", "room", labels), place=0)
    actions = []
    for action in machine.model.actions:
        mine = event(action, PROTOCOLS[machine.protocol.name])
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
    protocol: Protocol, events: tuple[Event, ...], atomicity: Atomicity, network: Network, instance: Sizes
) -> tuple[Search, Var]:
    """Every state that ``latch`` reaches in the environment of a script, and how far the script is in each."""
    machine, done = scripted(Machine.of(recommended(protocol), atomicity, network, instance, protocol), events)
    return explore(machine, protocol.properties), done


def events_of(told: Retelling) -> tuple[Event, ...]:
    return tuple(found for action, _ in play(told) if (found := event(action, told.protocol)) is not None)


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
    ]
    for protocol in PROTOCOLS.values():
        broken = Counter(told.prop for told in RETOLD if told.protocol is protocol)
        lines += [f"{protocol.name:<26}{broken.total():>4}", *(f"  {prop:<24}{n:>4}" for prop, n in broken.items()), ""]
    lines += [
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
    for atomicity in recommended(told.protocol).atomicities:
        found, done = latch_in(told.protocol, events, atomicity, told.network, told.instance)
        assert found.complete
        assert found.violations == {}
        assert not found.cyclic
        assert found.count(done == str(len(events))) > 0


@pytest.mark.parametrize("prop", PROPS)
def test_the_search_would_find_it(prop: str) -> None:
    """In the design that the report is told in, the same search finds the property broken, in no more steps."""
    told = load(prop)[0]
    machine, _ = scripted(told.machine, events_of(told))
    length = explore(machine, told.protocol.properties, until=[prop]).length(prop)
    assert length is not None
    assert length <= len(told.named_steps)


@pytest.mark.parametrize("prop", PROPS)
def test_a_retelling_that_is_wrong_fails(prop: str) -> None:
    """Without its last step, without its first, with a step of another thread, or for another property: an error."""
    told = load(prop)[0]
    *early, (thread, last) = told.named_steps
    last_state = play(told)[-1][1]
    other = next(p.name for p in told.protocol.properties if not told.machine.broken(p, last_state))
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
    assert DEVIATIONS.keys() <= {told.mutant for told in RETOLD}
    assert MERGE.keys() - MERGES.keys() <= {told.but.get("merge") for told in RETOLD}


def test_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    """At least 140 reports are retold; how many, and what the rest needs, is in ``coverage.txt``, and is printed."""
    assert len(RETOLD) >= 140
    assert (FOLDER / "coverage.txt").read_text(encoding="utf-8") == coverage()
    with capsys.disabled():
        print(f"\n{coverage()}")


if __name__ == "__main__":
    print(coverage(), end="")
