"""Runs as files, and what makes a file believable.

A *trace* is one run of one design: the named steps, each with its arguments, and every variable after each. It is
stored as ITF JSON, the format of Apalache and Quint, in the intersection that every reader accepts. A trace is only a
claim. :func:`verify` re-executes it on the concrete semantics, so nobody has to trust the engine that found it.

A trace that breaks a liveness property is a lasso (``loop``): in its last state nothing but polling is left, for ever.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any as Json
from typing import Final, TypeVar, get_args

import attrs

from kvlatch.spec.model import Action, Machine, named
from kvlatch.spec.protocols import PROTOCOLS, all_designs, protocol_of
from kvlatch.spec.schema import ANY, AnyDesign, Atomicity, Network, Property, Sizes
from kvlatch.spec.status import KVPoll
from kvlatch.spec.terms import All, Any, Field, Is, Not, Same, State, Stores, Term, Var, fields

SUFFIX: Final = ".itf.json"
LARGEST: Final = 32 * 2**20
"""Bytes of a trace that is read at most; the longest that ships has 20,000."""
_ACTION, _PICKS, _INIT = "mbt::actionTaken", "mbt::nondetPicks", "init"
_FORMAT: Final = {"format": "ITF", "format-description": "https://apalache-mc.org/docs/adr/015adr-trace.html"}
_KINDS: Final = {dict: "an object", list: "a list", str: "a string"}
Known = TypeVar("Known")
T = TypeVar("T", dict[str, Json], list[Json], str)


class TraceError(ValueError):
    """A trace that cannot be read or written, or that the spec does not allow: one line that says where and why."""


@attrs.frozen
class Step:
    """One state, by names and labels, and the action that led to it; the first state has none."""

    state: Mapping[str, str]
    action: str | None = None
    arguments: Mapping[str, int] = attrs.field(factory=dict)
    thread: str | None = None


@attrs.frozen
class Trace:
    """One run of one design of a protocol; ``prop`` names the property that its last state breaks."""

    design: str
    atomicity: str
    network: str
    instance: Sizes
    prop: str | None
    steps: tuple[Step, ...]
    loop: int | None = None
    protocol: str = attrs.field(default="room", kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not self.steps:
            raise TraceError("a trace has at least one state, and this one has none")

    @classmethod
    def of(
        cls,
        design: AnyDesign,
        atomicity: Atomicity,
        network: Network,
        instance: Sizes,
        prop: Property | None,
        run: Sequence[tuple[Action | None, State]],
    ) -> Trace:
        """The trace of a run, as engines give it: the initial state, then each action with the state after it."""
        steps = tuple(
            Step(_labels(state), action.name, dict(action.arguments), action.thread) if action else Step(_labels(state))
            for action, state in run
        )
        loop = len(steps) - 1 if prop is not None and prop.kind == "liveness" else None
        name = prop.name if prop else None
        return cls(design.name, atomicity, network, instance, name, steps, loop, protocol=design.protocol)

    @property
    def description(self) -> str:
        """One line for the reader of a file."""
        run = f"{self.design}, {self.atomicity}, {self.network} network: {len(self.steps) - 1} steps"
        return f"{run} that break {self.prop}" if self.prop else run


def _labels(state: State) -> dict[str, str]:
    return {var.name: var.labels[index] for var, index in state.items()}


# --------------------------------------------------------------------------------------------------------------------
# Files


def write(trace: Trace, path: Path) -> None:
    """Write a trace, whole or not at all; ``path`` ends in ``.itf.json``."""
    if not path.name.endswith(SUFFIX):
        raise TraceError(f"{path}: the name of a trace ends in {SUFFIX}")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(_text(trace), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            draft.unlink()


def meta(trace: Trace) -> dict[str, str]:
    """The ``#meta`` of a trace's file: the format, what it is a run of, and what it breaks."""
    sizes = {size: str(count) for size, count in attrs.asdict(trace.instance).items()}
    run = {"protocol": trace.protocol, "design": trace.design, "atomicity": trace.atomicity, "network": trace.network}
    return _FORMAT | run | sizes | {"property": trace.prop or "", "description": trace.description}


def _text(trace: Trace) -> str:
    """The file: one line for each state, so that a difference between two traces shows which step differs."""
    head: dict[str, object] = {"#meta": meta(trace), "vars": [_ACTION, _PICKS, *trace.steps[0].state]}
    if trace.loop is not None:
        head["loop"] = trace.loop
    states = ",\n  ".join(json.dumps(_state(number, step)) for number, step in enumerate(trace.steps))
    members = [f"{json.dumps(name)}: {json.dumps(member)}" for name, member in head.items()]
    return "{" + ",\n ".join([*members, f'"states": [\n  {states}\n ]']) + "}\n"


def _state(number: int, step: Step) -> dict[str, object]:
    thread = {"thread": step.thread} if step.thread else {}
    picks = {name: {"#bigint": str(value)} for name, value in step.arguments.items()}
    return {"#meta": {"index": number} | thread, _ACTION: step.action or _INIT, _PICKS: picks, **step.state}


def read(path: Path) -> Trace:
    """Read a trace, from a file or a pipe. What it says has yet to be verified."""
    try:
        document = json.loads(_content(path).decode())
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8: byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}: not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from error
    except TraceError:
        raise
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON that a trace would have: {error}") from error
    try:
        return _parse(document)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _content(path: Path) -> bytes:
    """What a file or a pipe holds; TraceError for anything else, and for more than a trace would have."""
    with path.open("rb") as file:
        kind = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise TraceError(f"{path}: neither a file nor a pipe")
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise TraceError(f"{path}: larger than {LARGEST // 2**20} MiB, which no trace is")
    return content


def _parse(document: object) -> Trace:
    if not isinstance(document, dict):
        raise TraceError("not a trace: a trace is a JSON object")
    meta = _member(document, "#meta", dict, "the trace")
    about = "the #meta of the trace"
    name, design, atomicity, network, prop = (
        _member(meta, name, str, about) for name in ("protocol", "design", "atomicity", "network", "property")
    )
    kind = _known("protocol", name, PROTOCOLS).sizes
    sizes = {size.name: _member(meta, size.name, str, about) for size in attrs.fields(kind)}
    counts = {name: _integer(size, name) for name, size in sizes.items()}
    if any_number := [name for name, count in counts.items() if count == ANY]:
        raise TraceError(f"{about} has no {any_number[0]}: a run needs one at least")
    try:
        instance = kind(**counts)
    except ValueError as error:
        raise TraceError(str(error)) from error
    variables = [name for name in _member(document, "vars", list, "the trace") if name not in (_ACTION, _PICKS)]
    states = _member(document, "states", list, "the trace")
    steps = tuple(_step(number, state, variables) for number, state in enumerate(states))
    loop = document.get("loop")
    return Trace(
        design, atomicity, network, instance, prop or None, steps, None if loop is None else _index(loop), protocol=name
    )


def _step(number: int, state: object, variables: list[str]) -> Step:
    where = f"state {number}"
    if not isinstance(state, dict):
        raise TraceError(f"{where} is not an object")
    labels = {name: _member(state, name, str, where, "variable ") for name in map(str, variables)}
    action = _member(state, _ACTION, str, where, "variable ")
    picks = _member(state, _PICKS, dict, where, "variable ")
    arguments = {name: _bigint(value, f"{where}: argument {name!r}") for name, value in picks.items()}
    meta = _member(state, "#meta", dict, where) if "#meta" in state else {}
    thread = _member(meta, "thread", str, f"the #meta of {where}") if "thread" in meta else None
    return Step(labels, None if action == _INIT else action, arguments, thread)


def _member(owner: dict[str, Json], name: str, kind: type[T], where: str, what: str = "") -> T:
    """A member of a JSON object, which is there and of the right kind."""
    if name not in owner:
        raise TraceError(f"{where} lacks {what}{name!r}")
    found = owner[name]
    if not isinstance(found, kind):
        raise TraceError(f"{where}: {what}{name!r} is not {_KINDS[kind]}")
    return found


def _bigint(value: object, where: str) -> int:
    """An integer in a state: ``{"#bigint": "7"}``."""
    if not isinstance(value, dict) or list(value) != ["#bigint"]:
        raise TraceError(f'{where} is not an integer, which is written {{"#bigint": "7"}}')
    return _integer(value["#bigint"], where)


def _integer(text: object, where: str) -> int:
    if not isinstance(text, str) or not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise TraceError(f"{where} is {text!r}, which is not a number")
    return int(text)


def _index(loop: object) -> int:
    if not isinstance(loop, int) or isinstance(loop, bool):
        raise TraceError(f"loop is {loop!r}, which is not the number of a state")
    return loop


# --------------------------------------------------------------------------------------------------------------------
# Re-execution


@attrs.frozen(eq=False)
class Meaning:
    """What the names in a trace mean: its design as a machine, and formulas about its states."""

    machine: Machine
    prop: Property | None

    @classmethod
    def of(cls, trace: Trace, design: AnyDesign | None = None) -> Meaning:
        """The meaning of a trace; TraceError for a name that nothing has. ``design`` is for one that does not ship."""
        if design is None:
            design = _known("design", trace.design, all_designs())
        elif design.name != trace.design:
            raise TraceError(f"the trace is about design {trace.design!r}, not {design.name!r}")
        claimed = {str(level): level for level in design.atomicities}
        atomicity = _known(f"atomicity of {design.name}", trace.atomicity, claimed)
        network = _known("network", trace.network, {name: name for name in get_args(Network)})
        protocol = protocol_of(design)
        if protocol.name != trace.protocol:
            raise TraceError(
                f"the trace is about {trace.protocol!r}, and {design.name} is a design of {protocol.name!r}"
            )
        known = {prop.name: prop for prop in protocol.properties}
        prop = None if trace.prop is None else _known("property", trace.prop, known)
        return cls(Machine.of(design, atomicity, network, trace.instance, protocol), prop)

    def holds(self, formula: Term, state: State, room: int = 0) -> bool:
        """A formula of the protocol or of a property, about one room."""
        return self.machine.holds(self.machine.model.claim(formula, room), state)

    def broken(self, state: State) -> int | None:
        """The first room for which the state is bad, by the formula of the trace's property."""
        rooms = range(self.machine.model.instance.count("room"))
        return next((room for room in rooms if self.prop and self.holds(self.prop.bad, state, room)), None)

    def var(self, field: Field, at: int = 0) -> Var:
        """The variable that a field is, for one room or one worker."""
        return [var for var in self.machine.model.variables if var.field is field][at]

    def label(self, field: Field, state: State, at: int = 0) -> str:
        """A field in a state, for one room or one worker."""
        var = self.var(field, at)
        return var.labels[state[var]]


@attrs.frozen(eq=False)
class Run:
    """A verified trace: what it means, and each step as an action between two states."""

    meaning: Meaning
    states: tuple[State, ...]
    actions: tuple[Action, ...]

    @property
    def steps(self) -> list[tuple[Action, State, State]]:
        """Each action, with the state before and the state after it."""
        return list(zip(self.actions, self.states[:-1], self.states[1:], strict=True))


def verify(trace: Trace, design: AnyDesign | None = None) -> Run:
    """Re-execute a trace; TraceError names the first step that the spec does not allow."""
    meaning = Meaning.of(trace, design)
    machine = meaning.machine
    first, *others = trace.steps
    if first.action is not None:
        raise TraceError(f"step 0: a run begins with {_INIT!r}, not with {first.action!r}")
    states, actions = [machine.initial()], []
    _compare(0, first.state, named(machine, states[0]))
    for number, step in enumerate(others, 1):
        action = _action(number, step, machine)
        if not machine.holds(action.guard, states[-1]):
            raise TraceError(f"impossible step {number}: {_disabled(action, machine, states[-1])}")
        actions.append(action)
        states.append(machine.step(states[-1], action))
        _compare(number, step.state, named(machine, states[-1]))
    _judge(trace, meaning, states[-1])
    return Run(meaning, tuple(states), tuple(actions))


def _action(number: int, step: Step, machine: Machine) -> Action:
    name = step.action or _INIT
    _known("action", name, {known.name: known for known in machine.model.actions}, f"step {number}: ")
    action = machine.model.action(name, step.arguments)
    if action is None:
        given = ", ".join(f"{argument!r}: {value}" for argument, value in step.arguments.items())
        raise TraceError(f"step {number}: this instance has no {name} with arguments {{{given}}}")
    if step.thread not in (None, action.thread):
        raise TraceError(f"step {number}: {action} is a step of {action.thread}, not of {step.thread!r}")
    return action


def _compare(number: int, recorded: Mapping[str, str], expected: Mapping[str, str]) -> None:
    for name, label in expected.items():
        if name not in recorded:
            raise TraceError(f"state {number} lacks variable {name!r}")
        if recorded[name] != label:
            raise TraceError(f"step {number}: {name} is recorded as {recorded[name]!r}, by the spec it is {label!r}")
    if unknown := recorded.keys() - expected.keys():
        raise TraceError(f"state {number} has variable {min(unknown)!r}, which this instance does not have")


def _judge(trace: Trace, meaning: Meaning, last: State) -> None:
    """The last state has to be what the trace says: bad, and for a lasso, one that nothing leaves."""
    number, prop = len(trace.steps) - 1, meaning.prop
    if trace.loop not in (None, number):
        raise TraceError(f"loop is {trace.loop}: only the last state, {number}, can be polled for ever")
    liveness = prop is not None and prop.kind == "liveness"
    if liveness != (trace.loop is not None):
        raise TraceError(f"step {number}: a trace loops if its property is about liveness, and else it does not")
    if prop is not None and meaning.broken(last) is None:
        raise TraceError(f"step {number}: the last state does not break {prop.name}")
    fair = [action for action in meaning.machine.enabled(last) if action.fair]
    if liveness and fair:
        raise TraceError(f"step {number}: this is not the end: {fair[0]} is fair and enabled, so it will be taken")


def _disabled(action: Action, machine: Machine, state: State) -> str:
    """Why an action cannot happen: the first part of its guard that is false."""
    part = action.guard
    while isinstance(part, All):
        part = next(inner for inner in part.parts if not machine.holds(inner, state))
    now = (f"{var.name} is {var.labels[state[var]]}" for var in machine.model.variables if var in fields(part))
    return f"{action} is not enabled because it needs {readable(part)}, and {', '.join(now)}"


def readable(formula: Term) -> str:
    """A ground formula as a person would say it."""
    match formula:
        case Is(field, index):
            return f"{field.name} = {field.labels[index]}"
        case Not(Is(field, index)):
            return f"{field.name} != {field.labels[index]}"
        case Same(left, right):
            return f"{left.name} = {right.name}"
        case Not(part):
            return f"not ({readable(part)})"
        case All(parts):
            return " and ".join(f"({readable(p)})" if isinstance(p, Any) else readable(p) for p in parts) or "true"
        case Any(parts):
            return " or ".join(f"({readable(p)})" if isinstance(p, All) else readable(p) for p in parts) or "false"
        case Stores(current, incoming, stored):
            what = "nothing" if stored is None else current.labels[stored]
            return f"{KVPoll(incoming).name} over {current.name} stores {what}"
    raise TypeError(f"not a ground formula: {formula}")


def _known(kind: str, name: str, known: Mapping[str, Known], where: str = "") -> Known:
    """What has this name; else TraceError with the closest name."""
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    raise TraceError(f"{where}unknown {kind} {name!r}; {hint}")
