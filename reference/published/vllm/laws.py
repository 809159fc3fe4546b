"""The laws of a transfer, judged by running what a published vLLM version does.

vLLM has no status per room. A request that has ended keeps its blocks until the worker reports it sent or its lease
runs out; that it stands in one collection or another is all the status there is. So each engine is looked at as the
state of the spec that an observer of it would take it for (:func:`as_room`), and the spec's own formulas are asked:

==================  ================================================  ================================================
of the spec         prefill's request                                 decode's request
==================  ================================================  ================================================
``pages``           its KV blocks                                     the blocks that it loads into
``worker``          a read in flight reads those                      the same read writes these
``chunk``           the prompt's one block: unsent, taken, done or    the same
                    lost as the read
``status``          Bootstrapping until it is computed, then          Bootstrapping until it is scheduled, Transferring
                    Transferring, as long as the blocks are kept      while it loads, then what the load came to
``phase``           inflight while the blocks are kept, done once     inflight until its blocks are given back
                    the scheduler has forgotten it
a ghost             both engines are at rest, the scheduler has       the same
                    forgotten the request, and its id still stands
                    in a collection of the connector
``latch``           Success if the worker heard that the blocks       what the load came to is ``wire``: what decode
                    were fetched, Failed if the lease ran out         was told, in the spec's terms
==================  ================================================  ================================================

What does not map, and is not judged: ``terminal-sticky``, ``no-resurrection`` and ``success-not-overwritten``, for no
status is kept that could be overwritten (a request is forgotten in the step that ends it); ``no-lost-wakeup``, for
prefill waits for no metadata; ``no-pin``, which is what ``settlement`` says where the only queue is that of requests
which wait for their load. ``no-crash`` is of vLLM alone: an assertion that fails ends the engine with all its requests.

Left out: ranks, preemption, prefix caching, the handshake, the host buffer and the push mode. Two requests with one id
are possible only up to the versions that add a random suffix to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, Literal

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.laws import NO_CRASH
from kvlatch.reference.published.vllm import scripts as vllm
from kvlatch.reference.published.vllm.scripts import START, Bounds, Engine, Explored, Node, Script, Seen, Step
from kvlatch.spec import protocol
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.status import ABSENT, B, S, T
from kvlatch.spec.terms import Field, State, Term, Var

Role = Literal["prefill", "decode"]
Verdict = Literal["kept", "broken", "absent"]
ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")

STAGES: Final = (
    Bounds(),
    Bounds(network="disorderly"),
    Bounds(requests=2),
    Bounds(steps="split"),
)
"""Where scripts are looked for, gentlest first: a law is reported with the gentlest bounds that break it."""

UNEVENTFUL: Final = (
    Step("prefill", "arrive"), Step("prefill", "step"), Step("decode", "arrive"), Step("decode", "step"),
    Step("network", "read_ends"), Step("decode", "step"), Step("decode", "step"), Step("prefill", "step"),
    Step("time", "settle"),
)  # fmt: skip
"""No incident: both engines must end it well, or else what stands in for the rest is not good enough to judge by."""

# --- A request as a room --------------------------------------------------------------------------

_WORD: Final = {"INIT": "unsent", "PROC": "taken", "DONE": "done", "ERR": "lost"}
_GENERATION: Final = ("first", "first", "second")


@cache
def _machine() -> Machine:
    """The spec's state space for one chunk and two requests, each with a read; of the design nothing is asked."""
    return Machine.of(DESIGNS["latch"], "locked", "orderly", Instance(workers=2, chunks=1, requests=2))


@cache
def _bad(prop: str) -> Term:
    return _machine().model.claim(BY_NAME[prop].bad)


def as_room(seen: Seen, role: Role, rest: bool) -> dict[str, str]:
    """What an observer of one engine takes its request for: labels of the spec's fields, by name.

    ``rest`` says that both engines have come to rest, so that what is still there stays.
    """
    engine: Engine = getattr(seen, role)
    state = next((state for generation, state in reversed(seen.reads) if generation == engine.generation), "INIT")
    room = {
        "gen": _GENERATION[engine.generation],
        "phase": _phase(engine, rest),
        "status": _status(engine, role),
        "pages": "held" if engine.holds else ("none", "released", "released twice")[min(engine.freed, 2)],
        "chunk": _WORD[state],
        "worker 0": "transferring" if 1 in seen.flying else "idle",
        "worker 1": "transferring" if 2 in seen.flying else "idle",
    }
    if role == "prefill":
        room["latch"] = engine.conclusions[-1] if engine.conclusions else "none"
        if seen.decode.generation == engine.generation:
            room["wire"] = seen.decode.conclusions[-1] if seen.decode.conclusions else "none"
    return room


def _phase(engine: Engine, rest: bool) -> str:
    match engine.status:
        case None:
            return "new" if engine.generation == 0 else "done" if rest else "releasing"
        case "WAITING":
            return "boot"
        case "RUNNING":
            return "running"
    return "inflight"


def _status(engine: Engine, role: Role) -> str:
    if engine.status is None:
        return T if engine.tracked else ABSENT
    if role == "decode":
        return engine.received or (T if engine.status == "WAITING_FOR_REMOTE_KVS" else B)
    return T if engine.status.startswith("FINISHED") else B


@cache
def _breaks(prop: str, labels: tuple[tuple[str, str], ...]) -> bool:
    machine = _machine()
    return machine.holds(_bad(prop), _state(dict(labels), machine.model.variables))


def _state(room: Mapping[str, str], variables: Sequence[Var]) -> State:
    jobs = {0: "first", 1: "second"}

    def label(var: Var) -> str:
        field: Field = var.field
        if field is protocol.worker:
            return room[f"worker {var.place}"]
        if field is protocol.job_gen:
            return jobs[var.place]
        return room.get(field.name, var.labels[0])

    return {var: var.index(label(var)) for var in variables}


# --- Laws -----------------------------------------------------------------------------------------


OF_REST: Final = ("settlement", "no-ghost")
"""The properties about what is left when nothing more happens."""


@attrs.frozen
class Law:
    """A property of one engine; ``lease`` says whether scripts count in which a lease has run out, None that all do.

    ``prop`` is the spec's property, None for the law that is vLLM's alone; ``broken`` says what was seen.
    """

    name: str
    role: Role
    says: str
    broken: str
    prop: str | None
    reports: tuple[str, ...] = ()
    lease: bool | None = None

    @property
    def scenario(self) -> str:
        """What is special to it among those of its property: an engine, or the lease."""
        return self.name.removeprefix(self.prop or NO_CRASH).removeprefix("-")

    def looks(self, node: Node) -> bool:
        """The node's last state could break it."""
        if node.step is None or (node.step.op == "settle") != (self.prop in OF_REST):
            return False
        return self.lease is None or self.lease == any(step.op == "expire" for step in node.script)

    def is_broken(self, node: Node) -> bool:
        """The node's last state breaks it."""
        engine: Engine = getattr(node.seen, self.role)
        if not self.looks(node):
            return False
        if self.prop is None or engine.dead is not None:
            return self.prop is None and engine.dead is not None
        if self.prop in OF_REST and (node.seen.flying or node.seen.prefill.dead or node.seen.decode.dead):
            return False  # what settled nothing
        if self.prop == "settlement":
            return engine.status is not None
        return _breaks(self.prop, tuple(sorted(as_room(node.seen, self.role, self.prop in OF_REST).items())))

    def sentence(self, node: Node) -> str:
        """What was seen."""
        engine: Engine = getattr(node.seen, self.role)
        collections = ", ".join(engine.tracked)
        return self.broken.format(status=engine.status, dead=engine.dead, tracked=collections, freed=engine.freed)


LAWS: Final = (
    Law("pages-held-prefill", "prefill", "Prefill's blocks are not given back while decode reads them.",
        "prefill's blocks have been given back while a read of them is in flight",
        "pages-held", ("vllm#25067",), lease=False),
    Law("pages-held-lease", "prefill", "Nor when their lease runs out: who reads them still has one.",
        "the lease of prefill's blocks has run out, and they have been given back while a read is in flight",
        "pages-held", ("vllm#21570",), lease=True),
    Law("pages-held-decode", "decode", "Decode's blocks are not given back while a read writes into them.",
        "decode's blocks have been given back while a read that writes into them is in flight",
        "pages-held", ("vllm#32255",)),
    Law("released-once-prefill", "prefill", "Prefill's blocks are given back once.",
        "prefill's blocks were given back {freed} times", "released-once", ("vllm#33377",)),
    Law("released-once-decode", "decode", "Decode's blocks are given back once.",
        "decode's blocks were given back {freed} times", "released-once", ("vllm#33377",)),
    Law("settlement-prefill", "prefill", "Prefill's request is forgotten at last.",
        "both engines are at rest, every lease has run out, and prefill still keeps the request, {status}",
        "settlement", ("vllm#43509", "vllm#36958")),
    Law("settlement-decode", "decode", "Decode's request is forgotten at last.",
        "both engines are at rest, every lease has run out, and decode still keeps the request, {status}",
        "settlement", ("vllm#35943",)),
    Law("no-ghost-prefill", "prefill", "After prefill has forgotten a request, its id stands nowhere.",
        "prefill has forgotten the request, and its id still stands in {tracked}", "no-ghost", ("vllm#43226",)),
    Law("no-ghost-decode", "decode", "After decode has forgotten a request, its id stands nowhere.",
        "decode has forgotten the request, and its id still stands in {tracked}", "no-ghost",
        ("vllm#43226", "vllm#50565")),
    Law("one-outcome", "prefill", "Prefill and decode agree on how a transfer ended.",
        "prefill concludes that nobody has fetched the blocks, and decode goes on with what it has read of them",
        "one-outcome", ("vllm#21570", "vllm#43509")),
    Law("success-complete", "decode", "What decode takes for loaded has been read.",
        "decode takes the blocks for loaded, and no read of them has ended well", "success-complete",
        ("vllm#40364",)),
    Law("room-reusable", "decode", "A second request of an id starts from scratch.",
        "the second request of the id has only just arrived, and the load of the first counts as its own",
        "room-reusable", ("vllm#51637",)),
    Law("no-crash-prefill", "prefill", "No event ends the prefill engine.",
        "the prefill engine is ended by {dead}", None, ("vllm#25067", "vllm#43226")),
    Law("no-crash-decode", "decode", "No event ends the decode engine.",
        "the decode engine is ended by {dead}", None, ("vllm#43226", "vllm#46240")),
)  # fmt: skip
BY_LAW: Final = {law.name: law for law in LAWS}


@attrs.frozen
class Finding:
    """A law on one version: kept within the bounds, broken by a shortest script, or absent where it cannot be asked.

    ``looks`` says in how many states a law that is kept could have been broken.
    """

    law: Law
    version: str
    verdict: Verdict
    sentence: str
    node: Node | None = None
    bounds: Bounds | None = None
    looks: int = 0

    @property
    def script(self) -> tuple[Step, ...]:
        """The script that breaks it; empty if there is none."""
        return self.node.script if self.node is not None else ()

    @property
    def text(self) -> str:
        """What a person reads: the sentence, the script with what was seen after each step, public reports."""
        lines = [f"vllm {self.version}: {self.law.name} is {self.verdict}: {self.sentence}"]
        if self.node is not None:
            lines += [*([] if self.bounds is None else [str(self.bounds)]), *_rows(self.node)]
            if self.law.reports:
                lines.append(f"reports of the same kind: {', '.join(self.law.reports)}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        """The finding for machines."""
        return {
            "law": self.law.name,
            "property": self.law.prop,
            "version": self.version,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "bounds": None if self.bounds is None else str(self.bounds),
            "script": [str(step) for step in self.script],
            "reports": list(self.law.reports),
        }


def _rows(node: Node) -> Iterator[str]:
    rows = [("step", "prefill's request", "decode's request", "reads")]
    rows += [(str(at.step), _words(at.seen.prefill), _words(at.seen.decode), _reads(at.seen)) for at in node.path]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"{number or '#':<3} {cells}".rstrip()


def _words(engine: Engine) -> str:
    if engine.dead is not None:
        return engine.dead
    state = engine.status or ("" if engine.generation == 0 else "forgotten")
    blocks = "holds blocks" if engine.holds else "blocks freed" if engine.freed else ""
    return ", ".join(filter(None, (state, blocks, *engine.conclusions)))


def _reads(seen: Seen) -> str:
    names = {"INIT": "prepared", "PROC": "in flight", "DONE": "ended well", "ERR": "failed"}
    return ", ".join(names[state] for _, state in seen.reads)


def check(version: str, timeout: float = 300.0) -> None:
    """Raises AdapterFault if an uneventful request does not end well, so that nothing can be judged."""
    last = vllm.run(version, UNEVENTFUL, timeout=timeout)[-1]
    for role in ROLES:
        engine: Engine = getattr(last, role)
        if engine.dead or engine.status or engine.tracked or engine.conclusions != (S,) or engine.holds:
            raise AdapterFault(f"vllm {version}: an uneventful request does not end well in {role}: {engine}")


def judge(
    version: str, *, stages: Sequence[Bounds] = STAGES, limit: int = 10_000, timeout: float = 600.0
) -> list[Finding]:
    """Each law on one version: every script within each stage's bounds is run, or `limit` of them.

    Stages with two requests of one id are left out where a version makes ids unique. Raises what `vllm.run` raises.
    """
    check(version)
    reuses = vllm.reuses_ids(version)
    asked = [bounds for bounds in stages if bounds.requests == 1 or reuses]
    explored = vllm.explore(version, asked, limit=limit, timeout=timeout)
    return [_finding(law, version, explored, reuses) for law in LAWS]


def _finding(law: Law, version: str, explored: Sequence[Explored], reuses: bool) -> Finding:
    if law.prop == "room-reusable" and not reuses:
        return Finding(law, version, "absent", "this version makes the ids of requests unique")
    for stage in explored:
        for node in stage.nodes:
            if law.is_broken(node):
                return Finding(law, version, "broken", law.sentence(node), node, stage.bounds)
    left_out = [str(stage.bounds) for stage in explored if not stage.complete]
    how_far = f" ({len(left_out)} of {len(explored)} stages cut off by the limit)" if left_out else ""
    looks = sum(law.looks(node) for stage in explored for node in stage.nodes)
    return Finding(law, version, "kept", law.says + how_far, looks=looks)


def replay(version: str, scripts: Sequence[Script], *, timeout: float = 300.0) -> list[list[Finding]]:
    """For each script the laws that it breaks on one version, each shown by as many of its steps as it takes.

    Raises what `vllm.run` raises.
    """
    plays = vllm.run_many(version, scripts, timeout=timeout)
    return [_broken(version, script, seen) for script, seen in zip(scripts, plays, strict=True)]


def _broken(version: str, script: Script, sights: Sequence[Seen]) -> list[Finding]:
    last = START
    for step, seen in zip(script, sights, strict=True):
        last = Node(last, step, seen)
    first = ((law, next(filter(law.is_broken, last.path), None)) for law in LAWS)
    return [Finding(law, version, "broken", law.sentence(node), node) for law, node in first if node is not None]
