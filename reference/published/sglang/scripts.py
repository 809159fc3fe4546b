"""Runs scripts on the real status managers of published sglang wheels.

A *script* is a list of steps, each an op in a named thread. What the ops call is upstream's own code, unmodified, from
a wheel pinned by its hash. It runs in a child process under a time limit and without a GPU, and what an observer sees
after each step comes back.

An op may be split: `begin` stops its thread just before the next store into the status table, and `finish` lets it go
on. So any interleaving of an unlocked read and write is reached at will, without sleeping and without luck. `step` is
finer: it stops the thread before its next access, which is a read or a store of a table, the taking of a lock or a word
to decode; each further `step` of the op lets it do one more. `post` stops it while its transfer is in flight.

    script = [
        Step("scheduler", "create"),
        Step("worker 0", "write", "begin", "Transferring"),
        Step("bootstrap", "write", status="Failed"),
        Step("worker 0", "write", "finish"),
    ]
    [seen] = run("0.5.23", "nixl", script)
    assert seen[-1].status == "Transferring"

A thread that needs a lock which a held thread has makes that one go on until it gives the lock back, as it would in an
engine, and the observation says so. Threads that wait for each other are an error of the real code: a deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.published.child import Unusable, ask
from kvlatch.reference.published.sglang.subjects import Subject, resolve
from kvlatch.reference.published.sglang.wheels import BACKENDS, backends, backends_in, fetch, versions
from kvlatch.reference.published.wheels import CannotFetch, PublishedError, UnknownVersion, WheelMismatch

__all__ = [
    "ABSENT",
    "BACKENDS",
    "STATUSES",
    "AdapterFault",
    "CannotFetch",
    "Observation",
    "Op",
    "Part",
    "Script",
    "Step",
    "UnknownBackend",
    "UnknownVersion",
    "WheelMismatch",
    "backends",
    "fetch",
    "outcomes",
    "run",
    "run_many",
    "versions",
]

Op = Literal[
    "create",  # construct the sender, whose constructor writes Bootstrapping
    "write",  # update_status with the step's status
    "put",  # the entry is set, by nobody and by no rule
    "register",  # metadata of the first of two decode ranks reaches the bootstrap thread
    "metadata",  # metadata of the only decode rank reaches it, which bootstraps the room
    "abort_notice",  # ABORT from decode reaches the bootstrap thread
    "abort",  # the sender's abort
    "poll",  # the sender's poll
    "reduce",  # the same, reduced over two ranks, of which the other has polled the step's status
    "pop_infos",  # the room's transfer_infos are dropped
    "clear",  # the sender's clear
    "timeout",  # the sender's poll, once the time to bootstrap is used up
    "send",  # the sender's send of a chunk that is not the last
    "send_last",  # the same of the last chunk; the request enters the inflight queue
    "break_transfer",  # the next transfer ends in an error
    "work",  # the loop of a transfer worker, until its queue is empty
    "conclude",  # conclude_transfer with the step's status
    "settle",  # one round of the scheduler's loop over the inflight queue
    "receive",  # from now on the manager is decode's, and its receiver has been constructed and initialised
    "lose_prefill",  # decode's heartbeat thread has missed its prefill engine too often
]
Part = Literal["whole", "begin", "step", "post", "finish"]

STATUSES: Final = ("Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success")
ABSENT: Final = "Absent"

_CHILD: Final = "kvlatch.reference.published.sglang.child"
_PATIENCE: Final = 60.0
"""Seconds for one step: it takes a millisecond, so on a busy machine too only what hangs needs more."""
_OF_SENDER: Final = frozenset({"abort", "poll", "reduce", "clear", "timeout", "send", "send_last"})
_WITH_STATUS: Final = frozenset({"write", "put", "reduce", "conclude"})
_CONTINUES: Final = frozenset({"step", "post", "finish"})


class UnknownBackend(PublishedError):
    """That version has no such backend."""

    exit_code = 2


@attrs.frozen
class Step:
    """One step of a script. `write`, `put`, `reduce` and `conclude` have a status; what continues an op need not.

    `begin` and the first `step` or `post` of an op start it; further ones and `finish` continue it. An op that comes to
    its end without being held must be finished all the same; that does nothing then.
    """

    thread: str
    op: Op = attrs.field(validator=attrs.validators.in_(get_args(Op)))
    part: Part = attrs.field(default="whole", validator=attrs.validators.in_(get_args(Part)))
    status: str | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.in_(STATUSES)))

    def __attrs_post_init__(self) -> None:
        if self.op not in _WITH_STATUS and self.status is not None:
            raise ValueError(f"{self.op} takes no status")
        if self.op in _WITH_STATUS and self.status is None and self.part not in _CONTINUES:
            raise ValueError(f"{self.op} needs a status")


Script = Sequence[Step]


_IS_BOOL: Final = attrs.validators.instance_of(bool)
_IS_COUNT: Final = attrs.validators.and_(attrs.validators.instance_of(int), attrs.validators.ge(0))
_MAYBE_TEXT: Final = attrs.validators.optional(attrs.validators.instance_of(str))


def _pairs(pairs: Sequence[Sequence[Any]]) -> tuple[tuple[int, str], ...]:
    """Pairs of a request's number and a word. Raises ValueError for anything else."""
    read = tuple((number, word) for number, word in pairs)
    if not all(isinstance(number, int) and isinstance(word, str) for number, word in read):
        raise ValueError(f"not pairs of a number and a word: {pairs!r:.80}")
    return read


@attrs.frozen
class Observation:
    """What is seen after a step.

    `status` is the room's entry in the table, `infos` whether decode's metadata is stored. `value` is what the poll
    returned, `error` what the real code raised ("KeyError: 7"); both belong to the step at which the op ended. `held`
    says that the op waits, `missing` why this backend has no such op.

    The others are about the play so far. Requests of the room are numbered from 1 in the order of their creation, of
    which there have been `created`. `told` are the statuses sent to decode, each with the request in whose life it was
    sent. `inflight` counts the requests in the inflight queue, `ended` are those that have left it, each with what its
    last poll read, and `released` those whose pages were given back, each as often as that. `chunks` are all that the
    scheduler has handed over: whose, and queued, flying, done or failed. `dead` are the threads that an error has
    ended. `waited` says which thread had to wait for which one's lock in this step, `heard` are the frames that the
    bootstrap thread was sent in it. `stores` counts the stores into the table, `locks` how often a lock was taken;
    `others` says that another room's entry has been accessed.
    """

    status: str = attrs.field(validator=attrs.validators.in_((ABSENT, *STATUSES)))
    infos: bool = attrs.field(validator=_IS_BOOL)
    value: str | None = attrs.field(validator=attrs.validators.optional(attrs.validators.in_((ABSENT, *STATUSES))))
    held: bool = attrs.field(validator=_IS_BOOL)
    error: str | None = attrs.field(validator=_MAYBE_TEXT)
    missing: str | None = attrs.field(default=None, validator=_MAYBE_TEXT)
    told: tuple[tuple[int, str], ...] = attrs.field(default=(), converter=_pairs)
    inflight: int = attrs.field(default=0, validator=_IS_COUNT)
    stores: int = attrs.field(default=0, validator=_IS_COUNT)
    others: bool = attrs.field(default=False, validator=_IS_BOOL)
    created: int = attrs.field(default=0, validator=_IS_COUNT)
    chunks: tuple[tuple[int, str], ...] = attrs.field(default=(), converter=_pairs)
    ended: tuple[tuple[int, str], ...] = attrs.field(default=(), converter=_pairs)
    released: tuple[int, ...] = attrs.field(default=(), converter=tuple)
    dead: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    waited: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    heard: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    locks: int = attrs.field(default=0, validator=_IS_COUNT)

    @property
    def flying(self) -> tuple[int, ...]:
        """The requests whose pages a transfer is reading."""
        return tuple(request for request, state in self.chunks if state == "flying")


def run(
    code: str | Subject, backend: str, script: Script, *, repeat: int = 1, timeout: float = 300.0
) -> list[list[Observation]]:
    """Plays a script `repeat` times, each on a fresh manager; one list of observations each.

    `code` is a version, or what else `subjects.resolve` takes. Raises ValueError for a script that makes no sense,
    what `subjects.resolve` raises, UnknownBackend,
    WheelMismatch, or AdapterFault when there is no answer within `timeout` seconds or none of use.
    """
    return run_many(code, backend, [script], repeat=repeat, timeout=timeout)[0]


def run_many(
    code: str | Subject,
    backend: str,
    scripts: Sequence[Script],
    *,
    repeat: int = 1,
    timeout: float = 300.0,
) -> list[list[list[Observation]]]:
    """As `run`, for many scripts in one child process, which spares loading the wheel again."""
    runs: list[list[list[Observation]]] = []
    for plays in outcomes(code, backend, scripts, repeat=repeat, timeout=timeout):
        runs.append([])
        for play in plays:
            if isinstance(play, AdapterFault):
                raise play
            runs[-1].append(play)
    return runs


def outcomes(
    code: str | Subject,
    backend: str,
    scripts: Sequence[Script],
    *,
    repeat: int = 1,
    timeout: float = 300.0,
) -> list[list[list[Observation] | AdapterFault]]:
    """As `run_many`, but a script that could not be carried out has the AdapterFault as its outcome.

    Raises AdapterFault only when the child as a whole has given no answer of use.
    """
    for script in scripts:
        check(script)
    subject = resolve(code)
    known = backends_in(subject.code)
    if backend not in known:
        raise UnknownBackend(f"{subject.name} has no backend {backend!r}; known: {', '.join(known) or 'none'}")
    request = {
        "code": str(subject.code),
        "overlays": [str(overlay) for overlay in subject.overlays],
        "backend": backend,
        "scripts": [[_as_json(step) for step in script] for script in scripts],
        "repeat": repeat,
        # Less than the limit of the whole, so that the child can still say which step is stuck.
        "patience": min(_PATIENCE, timeout / 2),
    }
    who = f"{subject.name} {backend}"
    try:
        runs = ask(_CHILD, request, timeout=timeout, hidden=["SGLANG_", "SGL_"])["runs"]
        plays = [[_outcome(play, who) for play in plays] for plays in runs]
        shape = [[len(play) if isinstance(play, list) else -1 for play in script] for script in plays]
        if len(shape) != len(scripts) or any(
            len(lengths) != repeat or {*lengths} - {-1, len(script)}
            for lengths, script in zip(shape, scripts, strict=True)
        ):
            raise Unusable("the answer does not fit the scripts")
    except Unusable as error:
        raise AdapterFault(f"{who}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise AdapterFault(f"{who}: unusable answer: {error!r}") from error
    return plays


def _as_json(step: Step) -> dict[str, str | None]:
    return {"thread": step.thread, "op": step.op, "part": step.part, "status": step.status}


def _outcome(play: dict[str, Any], who: str) -> list[Observation] | AdapterFault:
    if "fault" in play:
        return AdapterFault(f"{who}: {play['fault']}")
    return [Observation(**seen) for seen in play["seen"]]


def check(script: Script) -> None:
    """Raises ValueError for a script whose steps cannot follow each other."""
    begun: dict[str, Op] = {}
    created = False
    for number, step in enumerate(script):
        where = f"step {number}, {step.thread} {step.op}"
        if step.part == "finish":
            if begun.pop(step.thread, None) != step.op:
                raise ValueError(f"{where}: it was not begun")
        elif step.part in _CONTINUES and begun.get(step.thread) == step.op:
            continue
        elif step.thread in begun:
            raise ValueError(f"{where}: the thread has not finished {begun[step.thread]}")
        elif step.op in _OF_SENDER and not created:
            raise ValueError(f"{where}: no sender has been created")
        elif step.op in _WITH_STATUS and step.status is None:
            raise ValueError(f"{where}: it needs a status")
        if step.part not in ("whole", "finish"):
            begun[step.thread] = step.op
        elif step.op == "create":
            created = True
