"""Runs scripts on the real KV transfer code of published vLLM versions: NIXL, decode pulls.

What runs is upstream's own code, unmodified, of a prefill and of a decode engine: the ``NixlConnector`` with the half
of it that is the scheduler's and the one that is the worker's, the model runner's part that calls the latter, and the
``Scheduler``'s methods that finish a request, free its blocks and take in what a step has brought. It runs in a child
process under a time limit and without a GPU; `child.parts` has what stands in for the rest.

The wheels are those of ``vllm-tpu``, pinned by hash: the vLLM project's build for TPUs is 4 to 11 MB, where the one for
GPUs is over 300, and it has the same Python files. Pinned are versions in which the functions that run here have been
compared with the source package of the same version of ``vllm`` and are equal.

A *script* is a list of steps: who does what. An engine works in steps of its own, as `whole` ones or in the three parts
into which asynchronous scheduling takes them apart::

    script = [
        Step("prefill", "arrive"), Step("prefill", "step"),  # the prompt is computed, its blocks wait for a reader
        Step("decode", "arrive"), Step("decode", "step"),  # the read is posted
        Step("decode", "abort"),
    ]
    seen = run("0.12.0", script)
    assert not seen[-1].decode.holds and seen[-1].flying == (1,)  # the blocks are free, and are being written
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.published.child import Unusable, ask
from kvlatch.reference.published.wheels import CannotFetch, Package, UnknownVersion, WheelMismatch
from kvlatch.reference.published.wheels import PublishedError as VllmError

__all__ = [
    "AdapterFault", "Bounds", "CannotFetch", "Engine", "Explored", "Node", "Op", "Script", "Seen", "Step",
    "UnknownVersion", "VllmError", "WheelMismatch", "Who", "explore", "fetch", "reuses_ids", "run", "run_many",
    "versions",
]  # fmt: skip

T = TypeVar("T")

PACKAGE: Final = Package(
    "vllm", "vllm-tpu", Path(__file__).with_name("wheels.txt"), build="cp312-cp312-manylinux_2_24_x86_64"
)

Who = Literal["prefill", "decode", "network", "time"]
Op = Literal[
    "arrive",  # a request reaches the engine: prefill's from a client, decode's with prefill's answer
    "step",  # the engine schedules a step, carries it out, and takes in what it has brought
    "schedule",  # the first of these parts
    "work",  # the second one, of the oldest step that waits for it
    "update",  # the third one
    "abort",  # the client of the engine's request has gone
    "read_ends",  # decode's oldest read in flight has gone well, and a notice of it is on its way to prefill
    "read_breaks",  # it has failed
    "lose_notice",  # the oldest notice on its way to prefill is lost
    "repeat_notice",  # it is delivered twice
    "expire",  # so much time passes that every lease runs out
    "settle",  # both engines step until nothing changes, every lease runs out, and they do so again
]
_OPS: Final[dict[Who, tuple[Op, ...]]] = {
    "prefill": ("arrive", "step", "schedule", "work", "update", "abort"),
    "decode": ("arrive", "step", "schedule", "work", "update", "abort"),
    "network": ("read_ends", "read_breaks", "lose_notice", "repeat_notice"),
    "time": ("expire", "settle"),
}
_CHILD: Final = "kvlatch.reference.published.vllm.child"


@attrs.frozen
class Step:
    """One step of a script; ValueError for an op that this one has not."""

    who: Who
    op: Op = attrs.field()

    def __attrs_post_init__(self) -> None:
        if self.op not in _OPS.get(self.who, ()):
            raise ValueError(f"{self} is no step: {', '.join(f'{w}/{o}' for w, ops in _OPS.items() for o in ops)}")

    def __str__(self) -> str:
        return f"{self.who}/{self.op}"

    @classmethod
    def parse(cls, text: str) -> Step:
        """A step from its text; ValueError if it is none."""
        who, _, op = text.partition("/")
        return cls(who, op)  # type: ignore[arg-type]  # checked there


Script = Sequence[Step]

_NAMES: Final = attrs.validators.deep_iterable(attrs.validators.instance_of(str))
_COUNT: Final = attrs.validators.and_(attrs.validators.instance_of(int), attrs.validators.ge(0))
_TEXT: Final = attrs.validators.optional(attrs.validators.instance_of(str))
_OUTCOME: Final = attrs.validators.in_(("Success", "Failed"))


def _texts(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


@attrs.frozen
class Engine:
    """What is seen of one engine.

    `generation` is the number of its request among those that had the one id, 0 before the first. Of that request:
    `status` is upstream's, None once the scheduler has forgotten it; `holds` says that it has blocks, `freed` how often
    they were given back; `received` is what the scheduler believes of its load. `conclusions` are those that the engine
    has come to: decode's that the blocks were loaded or not, prefill's that they were fetched (Success) or that their
    lease ran out (Failed). `tracked` are the collections in which the request's id stands, beside the scheduler's own
    table, and `dead` is the error that ended the engine.
    """

    generation: int = attrs.field(validator=_COUNT)
    status: str | None = attrs.field(validator=_TEXT)
    holds: bool = attrs.field(validator=attrs.validators.instance_of(bool))
    freed: int = attrs.field(validator=_COUNT)
    received: str | None = attrs.field(validator=attrs.validators.optional(_OUTCOME))
    conclusions: tuple[str, ...] = attrs.field(converter=_texts, validator=attrs.validators.deep_iterable(_OUTCOME))
    tracked: tuple[str, ...] = attrs.field(converter=_texts, validator=_NAMES)
    dead: str | None = attrs.field(validator=_TEXT)


@attrs.frozen
class Seen:
    """What is seen after a step: both engines, and the reads, each as its generation and NIXL's word for its state."""

    prefill: Engine
    decode: Engine
    reads: tuple[tuple[int, str], ...]

    @property
    def flying(self) -> tuple[int, ...]:
        """The generations of the reads in flight."""
        return tuple(generation for generation, state in self.reads if state == "PROC")

    @classmethod
    def parse(cls, members: dict[str, Any]) -> Seen:
        """From the child's answer; KeyError, TypeError or ValueError if it is none."""
        reads = tuple((int(generation), str(state)) for generation, state in members["reads"])
        return cls(Engine(**members["prefill"]), Engine(**members["decode"]), reads)


@attrs.frozen
class Bounds:
    """How far scripts go: whether steps are taken apart, what the network does, how many requests have the one id."""

    steps: Literal["whole", "split"] = "whole"
    network: Literal["orderly", "disorderly"] = "orderly"
    requests: Literal[1, 2] = 1

    def __str__(self) -> str:
        requests = "1 request" if self.requests == 1 else "2 requests of one id"
        return f"{self.steps} steps, {self.network} network, {requests}"


@attrs.frozen
class Node:
    """One script: its last step, what was seen after it, and the script without it; neither at the start."""

    before: Node | None
    step: Step | None
    seen: Seen

    @property
    def path(self) -> tuple[Node, ...]:
        """The scripts that begin this one, each a step longer, this one included."""
        return () if self.before is None else (*self.before.path, self)

    @property
    def script(self) -> tuple[Step, ...]:
        """All its steps."""
        return tuple(node.step for node in self.path if node.step is not None)


_NEW: Final = Engine(0, None, holds=False, freed=0, received=None, conclusions=(), tracked=(), dead=None)
START: Final = Node(None, None, Seen(_NEW, _NEW, ()))
"""The script without a step: neither engine has had a request."""


@attrs.frozen
class Explored:
    """Every script within bounds, shortest first; `complete` if the limit has cut none off."""

    bounds: Bounds
    nodes: tuple[Node, ...]
    complete: bool


def versions() -> tuple[str, ...]:
    """The versions that are pinned, oldest first."""
    return PACKAGE.versions()


def fetch(version: str) -> Path:
    """The wheel of a version, pinned or not. Raises UnknownVersion, CannotFetch or WheelMismatch."""
    return PACKAGE.fetch_any(version)[0]


def reuses_ids(version: str) -> bool:
    """A client's request id is the engine's: two requests can have the same. Later versions add a random suffix.

    Raises as `fetch` does.
    """
    with zipfile.ZipFile(fetch(version)) as wheel:
        path = "vllm/v1/engine/input_processor.py"
        return path not in wheel.namelist() or b"def assign_request_id(" not in wheel.read(path)


def run(version: str, script: Script, *, timeout: float = 300.0) -> list[Seen]:
    """Plays a script on fresh engines: what is seen after each of its steps.

    Raises UnknownVersion, CannotFetch, WheelMismatch, or AdapterFault if it cannot be carried out in `timeout` seconds.
    """
    return run_many(version, [script], timeout=timeout)[0]


def run_many(version: str, scripts: Sequence[Script], *, timeout: float = 300.0) -> list[list[Seen]]:
    """As `run`, for many scripts in one child process, which spares loading the wheel again."""

    def read(answer: Any) -> list[list[Seen]]:
        for play in answer["plays"]:
            if "fault" in play:
                raise AdapterFault(f"vllm {version}: {play['fault']}")
        return [[Seen.parse(seen) for seen in play["seen"]] for play in answer["plays"]]

    steps = [[[step.who, step.op] for step in script] for script in scripts]
    return _ask(version, {"scripts": steps}, timeout, read)


def explore(version: str, stages: Sequence[Bounds], *, limit: int = 10_000, timeout: float = 600.0) -> list[Explored]:
    """Every script within each of the bounds, or `limit` of them. Raises as `run` does."""

    def read(answer: Any) -> list[Explored]:
        return [_explored(bounds, found) for bounds, found in zip(stages, answer["explored"], strict=True)]

    return _ask(version, {"bounds": [attrs.asdict(bounds) for bounds in stages], "limit": limit}, timeout, read)


def _explored(bounds: Bounds, found: dict[str, Any]) -> Explored:
    nodes: list[Node] = []
    for members in found["nodes"]:
        before = nodes[members["parent"]] if members["parent"] >= 0 else START
        nodes.append(Node(before, Step(*members["move"]), Seen.parse(members["seen"])))
    return Explored(bounds, tuple(nodes), bool(found["complete"]))


def _ask(version: str, request: Mapping[str, object], timeout: float, read: Callable[[Any], T]) -> T:
    """What is read in the child's answer to a request. Raises AdapterFault, or what `fetch` raises."""
    wheel = fetch(version)
    try:
        answer = ask(_CHILD, {"wheel": str(wheel), **request}, timeout=timeout, hidden=["VLLM_"])
        return read(answer)
    except Unusable as error:
        raise AdapterFault(f"vllm {version}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise AdapterFault(f"vllm {version}: unusable answer: {error!r}") from error
