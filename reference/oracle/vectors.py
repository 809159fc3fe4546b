"""Test vectors: plays with the answers that ``latch`` gives and those that break no law, as files for any language.

:func:`write` computes them from the spec; nobody has written an answer by hand. Each case is a folder with three files:

``manifest.json``
    ``format``, which is 1; the case's ``name``; ``says``, one sentence; ``laws``, which some manager is known to break
    here; ``covers``, the situations that it meets (the table's status, the event, the request that it is about and the
    request in whose life it comes); ``bounds`` and ``play``, as ``kvlatch conform --play`` takes it; the ``profile`` of
    the laws; ``spec``, the SHA-256 of the spec's sources.
``calls.ndjson``
    what the manager is told: lines of the protocol in ``process.py``, the first of which is ``fresh``.
``expected.ndjson``
    one line for each call after ``fresh``: ``{"expected":…,"allowed":[…]}``. ``expected`` is ``latch``'s answer.
    ``allowed`` is a list of boxes; a box has a list of values for each member of an answer. An answer is allowed if
    some box has each of its members. (An omitted member is null or empty; a word told twice counts once.)

**Running a case.** Say the calls one by one. An answer that is not allowed breaks a law, now or with the next poll,
which reads the table or what the sender has latched: the case has *failed*. An answer that is allowed and not the
expected one ends the case: the manager is within its rights, and what follows was made for another. It has *passed so
far*. If all answers are the expected ones, it has *passed*.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

import attrs

import kvlatch.spec
from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.oracle.checks import laws_of
from kvlatch.reference.oracle.explore import Play
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.moves import BOOTSTRAP, EVENTS, SCHEDULER, Call, Move, Player, Script, Seen, Step
from kvlatch.reference.oracle.process import line, parse, reply
from kvlatch.reference.oracle.vector_plays import Chosen, Size, breaches, breaks, choose, situations
from kvlatch.reference.oracle.wrong_managers import WRONG
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.schema import Profile
from kvlatch.spec.status import TERMINAL, KVPoll

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
CALLS: Final = "calls.ndjson"
EXPECTED: Final = "expected.ndjson"

Answer = Mapping[str, Any]
"""The members of an answer, as JSON."""
Box = Mapping[str, Sequence[Any]]
"""For each member of an answer, the values that it may have."""


class VectorError(ValueError):
    """Vectors that cannot be written or read: one line that says where and why."""


# --- What is allowed ------------------------------------------------------------------------------

_STATUSES: Final = (None, *KVPoll)


@lru_cache(maxsize=4096)
def allowed(world: World, move: Move, laws: frozenset[str]) -> Sequence[Box]:
    """The answers that break none of the laws when a move is made in a life, as boxes.

    Words to decode about an earlier request decide nothing. To release pages again, or those of an earlier request, is
    never allowed.
    """
    call = world.call(move)
    now = world.life.request

    @cache
    def wrong(seen: Seen) -> bool:
        return any(law in laws for law in breaks(world.after(move, seen)))

    answers = {"poll": _STATUSES, "start": (True, False)}.get(call.event, (None,))
    words = [(), *(((request, word),) for request in range(1, now + 1) for word in TERMINAL)]
    kept = []
    for status, answer, released, told in product(_STATUSES, answers, ((), (now,)), words):
        seen = Seen(status, answer=answer, released=released, told=told)
        if not wrong(seen if told and told[0][0] == now else attrs.evolve(seen, told=())):
            kept.append(reply(call, seen))
    return _boxes(kept)


def _boxes(answers: Sequence[Answer]) -> list[Box]:
    """Boxes that have these answers between them, and no others."""
    names = list(answers[0])
    boxes: list[tuple[tuple[str, ...], ...]] = [
        tuple((json.dumps(answer[name]),) for name in names) for answer in answers
    ]
    for axis in range(len(names)):
        merged: dict[tuple[tuple[str, ...], ...], list[str]] = {}
        for box in boxes:
            merged.setdefault(box[:axis] + box[axis + 1 :], []).extend(box[axis])
        boxes = [(*rest[:axis], tuple(values), *rest[axis:]) for rest, values in merged.items()]
    return [{name: [json.loads(v) for v in values] for name, values in zip(names, box, strict=True)} for box in boxes]


def is_allowed(answer: Answer, boxes: Iterable[Box]) -> bool:
    """Some box has each member of the answer."""
    return any(all(answer[name] in values for name, values in box.items()) for box in boxes)


def _once(answer: Answer) -> Answer:
    """The answer, each word to decode once."""
    told = answer["told"]
    return {**answer, "told": [word for number, word in enumerate(told) if word not in told[:number]]}


# --- Files ----------------------------------------------------------------------------------------


def write(directory: Path, size: Size = "small", profile: Profile = "first terminal wins") -> int:
    """Write the vectors of one size into a directory, which must not be there yet or be empty; how many there are.

    The directory appears whole or not at all. Raises VectorError if it cannot be written.
    """
    directory = directory.absolute()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise VectorError(f"{directory} is there already: remove it, or name another directory")
    draft = directory.with_name(f".{directory.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        written = _write(draft, size, profile)
        draft.replace(directory)
    except OSError as error:
        raise VectorError(f"{directory}: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return written


def _write(draft: Path, size: Size, profile: Profile) -> int:
    laws = [law for law in laws_of(profile) if law in BY_NAME]
    spec = _spec_hash()
    chosen = choose(size, laws)
    for number, case in enumerate(chosen, 1):
        name = f"{number:04}-{case.slug}"
        files = {
            MANIFEST: json.dumps(_manifest(name, case, laws, profile, spec), indent=1) + "\n",
            CALLS: "".join(f"{line(call)}\n" for call in (None, *_calls(case.play))),
            EXPECTED: "".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in _rows(case.play, laws)),
        }
        (draft / name).mkdir()
        for file, text in files.items():
            (draft / name / file).write_text(text, encoding="utf-8")
    return len(chosen)


def _manifest(name: str, case: Chosen, laws: Sequence[str], profile: Profile, spec: str) -> dict[str, object]:
    caught = {law for wrong in WRONG for law in breaches(wrong.manager, case.play)}
    return {
        "format": FORMAT,
        "name": name,
        "says": case.says,
        "laws": [law for law in laws if law in caught],
        "covers": [attrs.asdict(situation) for situation in dict.fromkeys(situations(case.play))],
        "bounds": str(case.play.bounds),
        "play": str(case.play),
        "profile": profile,
        "spec": spec,
    }


def _calls(play: Play) -> Iterator[Call]:
    return (step.call for step in play.script if step.call is not None)


def _rows(play: Play, laws: Sequence[str]) -> Iterator[dict[str, object]]:
    """The lines of ``expected.ndjson``."""
    for world, move, seen in zip(play.worlds, play.moves, play.seen, strict=False):
        if move.told:
            yield {"expected": reply(world.call(move), seen), "allowed": allowed(world, move, frozenset(laws))}


def _spec_hash() -> str:
    """The SHA-256 of the spec's sources, names included."""
    digest = sha256()
    for folder in kvlatch.spec.__path__:
        for source in sorted(Path(folder).glob("*.py")):
            digest.update(f"{source.name} {sha256(source.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@attrs.frozen
class Case:
    """One case, as it was read: for each call of the script the answer that is expected, and those that are allowed."""

    name: str
    calls: tuple[Call, ...]
    script: Script
    expected: tuple[Answer, ...]
    allowed: tuple[tuple[Box, ...], ...]


def read(directory: Path) -> list[Case]:
    """The cases in a directory, by name; VectorError if there are none, or one cannot be understood."""
    try:
        folders = sorted(path for path in directory.iterdir() if path.is_dir())
    except OSError as error:
        raise VectorError(f"{directory}: {error.strerror}") from error
    if not folders:
        raise VectorError(
            f"{directory} has no test vectors: a case is a folder with {MANIFEST}, {CALLS} and {EXPECTED}"
        )
    return [_case(folder) for folder in folders]


def _case(folder: Path) -> Case:
    manifest = _lines(folder / MANIFEST, whole=True)[0]
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise VectorError(f"{folder / MANIFEST}: not a manifest of format {FORMAT}")
    first, *told = _lines(folder / CALLS) or [None]
    rows = _lines(folder / EXPECTED)
    if first != json.loads(line(None)):
        raise VectorError(f"{folder / CALLS}: the first line is not {line(None)}")
    if len(told) != len(rows):
        raise VectorError(f"{folder / EXPECTED} has {len(rows)} lines for {len(told)} calls")
    try:
        calls = tuple(_call(members) for members in told)
        expected = tuple(reply(call, parse(call, row["expected"])) for call, row in zip(calls, rows, strict=True))
        boxes = tuple(tuple(dict(box) for box in row["allowed"]) for row in rows)
        script = tuple(_steps(calls, expected))
        if any(box.keys() != answer.keys() for answer, row in zip(expected, boxes, strict=True) for box in row):
            raise ValueError("a box has other members than the answer")
    except (KeyError, TypeError, ValueError) as error:
        raise VectorError(f"{folder}: not a test vector: {error}") from error
    return Case(folder.name, calls, script, expected, boxes)


def _lines(file: Path, *, whole: bool = False) -> list[Any]:
    """The JSON values in a file, one a line, or the one that is the whole of it."""
    try:
        text = file.read_text(encoding="utf-8")
        return [json.loads(part) for part in ([text] if whole else text.splitlines())]
    except OSError as error:
        raise VectorError(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise VectorError(f"{file}: not JSON: {error}") from error


def _call(members: Any) -> Call:
    """The call that a line says; ValueError if it is none."""
    if not isinstance(members, dict):
        raise ValueError(f"{json.dumps(members)} is no call")
    said = "break" if members.get("ok") is False else members["event"]
    event = next((event for event in EVENTS if event == said and Move(SCHEDULER, event).told), None)
    call = Call(event, members["request"], members.get("chunk", 0), members.get("last", False)) if event else None
    if call is None or json.loads(line(call)) != members:
        raise ValueError(f"{json.dumps(members)} is no call")
    return call


def _steps(calls: Sequence[Call], expected: Sequence[Answer]) -> Iterator[Step]:
    """The calls, each on its thread: a chunk on the first worker that has none, until its transfer ends."""
    busy: dict[tuple[int, int], int] = {}
    for call, answer in zip(calls, expected, strict=True):
        chunk = call.request, call.chunk
        match call.event:
            case "start":
                worker = next(number for number in range(len(busy) + 1) if number not in busy.values())
                if answer["answer"]:
                    busy[chunk] = worker
                yield Step(f"worker {worker}", call)
            case "finish" | "break":
                yield Step(f"worker {busy.pop(chunk)}", call)
            case "metadata" | "abort_notice":
                yield Step(BOOTSTRAP, call)
            case _:
                yield Step(SCHEDULER, call)


# --- Running --------------------------------------------------------------------------------------


@attrs.frozen
class Stop:
    """Where a case ended early: at which call (from 1), what its answer was, what was expected, and what is allowed."""

    number: int
    call: Call
    answer: Answer
    expected: Answer
    allowed: tuple[Box, ...]


@attrs.frozen
class Outcome:
    """How a manager did in one case."""

    case: str
    result: Literal["passed", "passed so far", "failed"]
    stop: Stop | None = None

    @property
    def failed(self) -> bool:
        """An answer was not allowed."""
        return self.result == "failed"

    @property
    def sentence(self) -> str:
        """What happened, in one line."""
        text = f"{self.case}: {self.result}"
        if stop := self.stop:
            text += f": call {stop.number}, {line(stop.call)}, is answered {json.dumps(stop.answer)}"
            text += f"; expected is {json.dumps(stop.expected)}"
            text += f"; allowed are {json.dumps(stop.allowed)}" * self.failed
        return text

    def as_json(self) -> dict[str, object]:
        """The outcome for machines."""
        stop = attrs.asdict(self.stop) | {"call": json.loads(line(self.stop.call))} if self.stop else None
        return {"case": self.case, "result": self.result, "stop": stop}


def run(player: Player, directory: Path) -> list[Outcome]:
    """Hold a manager against the vectors in a directory, such as a :class:`~kvlatch.reference.oracle.process.Process`.

    Raises VectorError where :func:`read` does, and AdapterFault, which names the case, if it cannot be played with.
    """
    return [run_case(player, case) for case in read(directory)]


def run_case(player: Player, case: Case) -> Outcome:
    """How a manager does in one case; AdapterFault, which names the case, if it cannot be played with."""
    for number, (call, expected, boxes) in enumerate(zip(case.calls, case.expected, case.allowed, strict=True), 1):
        try:
            answer = _once(reply(call, player.play([case.script[:number]])[0]))
        except AdapterFault as error:
            raise AdapterFault(f"{case.name}: {error}") from error
        if answer != expected:
            result: Literal["passed so far", "failed"] = "passed so far" if is_allowed(answer, boxes) else "failed"
            return Outcome(case.name, result, Stop(number, call, answer, expected, boxes))
    return Outcome(case.name, "passed")
