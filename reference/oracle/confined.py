"""A user's manager, judged in a process of its own: an exit, a crash or a hang there is a finding, or a line, here.

The first half runs in the child, the second in the parent. Each task of the child imports the manager by its name;
the parent gets plain data back. If the process ends in a call, no-crash is broken, if it does not move, no-deadlock;
other laws stay as broken as they were found to be, and are not judged else.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from kvlatch.reference.faults import Refused
from kvlatch.reference.foreign import recorder
from kvlatch.reference.foreign.child import IMPORTING, Work, loaded
from kvlatch.reference.foreign.process import Child, Ended, Frame, Raised, Stack
from kvlatch.reference.laws import LAWS, NO_CRASH, NO_DEADLOCK, Broken, Judgement, NotJudged
from kvlatch.reference.oracle import interleave, vectors
from kvlatch.reference.oracle.examine import examine, judged
from kvlatch.reference.oracle.explore import replay
from kvlatch.reference.oracle.findings import importable
from kvlatch.reference.oracle.inprocess import InProcess
from kvlatch.reference.oracle.merge_table import extract
from kvlatch.reference.oracle.places import is_library
from kvlatch.reference.oracle.results import Result
from kvlatch.spec.merges import KEEP, Table
from kvlatch.spec.status import KVPoll

_STEPS: Final = 40
"""Steps before the end that are shown."""
_OURS: Final = (Path(recorder.__file__).parent, Path(interleave.__file__).parent)
_MANAGERS: Final = ("spec_manager.py", "wrong_managers.py")
"""Our files that are judged like anybody's."""


# --- In the child -------------------------------------------------------------------------------------------------


def child_examines(work: Work, name: str, laws: list[str], seed: int, sequential: bool) -> object:
    """A whole examination; what has been learnt is reported whenever a law turns out to be broken."""
    player = InProcess(_maker(name))

    def learnt(found: Any) -> None:
        work.report({"learnt": Result.of(found).as_json(work.folder)})

    found = examine(player, name, laws, seed=seed, sequential=sequential, learnt=learnt)
    return Result.of(found).as_json(work.folder)


def child_plays(work: Work, name: str, laws: list[str], text: str) -> object:
    """One play, by its text."""
    player = InProcess(_maker(name))
    try:
        play = replay(player, text)
    except ValueError as error:
        raise Refused(f"--play: {error}", 2) from error
    moves = {"moves": len(play.moves)}
    return Result(judged(play, name, laws), looked_at=moves).as_json(work.folder)


def child_runs_vectors(work: Work, name: str, directory: str) -> object:
    """Test vectors, of which each is reported."""
    player = InProcess(_maker(name))
    for case in vectors.read(Path(directory)):
        outcome = vectors.run_case(player, case)
        work.report({"outcome": [outcome.as_json(), outcome.sentence, outcome.failed]})
    return None


def child_extracts(_work: Work, name: str) -> object:
    """The table of an update, by names."""
    table = extract(_maker(name))
    return [[stored if stored == KEEP else KVPoll(stored).name for stored in row] for row in table]


def _maker(name: str) -> Callable[[Any], Any]:
    """What makes adapters, imported."""
    made = loaded(name)
    if not callable(made):
        raise Refused(f"{name} is a {type(made).__name__}: it has to be called with a Probe to make an adapter", 2)
    return made


# --- In the parent ------------------------------------------------------------------------------------------------


def examined(
    name: str, laws: Sequence[str], *, seed: int = 0, sequential: bool = False, silence: float | None = None
) -> Result:
    """Hold ``MODULE:NAME`` against some laws; Refused if it cannot be imported or driven."""
    arguments = {"name": name, "laws": list(laws), "seed": seed, "sequential": sequential}
    return _judged("child_examines", arguments, silence)


def played(name: str, laws: Sequence[str], text: str) -> Result:
    """One play, by its text; Refused if it is none, or as :func:`examined`."""
    return _judged("child_plays", {"name": name, "laws": list(laws), "text": text}, None)


def ran_vectors(name: str, directory: Path) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """Of each test vector: the outcome as JSON, in a sentence, and whether it failed; Refused as :func:`examined`.

    Whatever ends the process is the last outcome, which failed.
    """
    arguments = {"name": name, "directory": str(directory.absolute())}
    with _child("child_runs_vectors", arguments) as child:
        try:
            for report in child.reports():
                if "outcome" in report:
                    members, sentence, failed = report["outcome"]
                    yield members, sentence, failed
        except (Ended, Raised) as end:
            broken = _broken(name, end)
            yield {"case": None, "result": "failed", "says": broken.sentence}, broken.sentence, True


def extracted(name: str) -> Table:
    """The table of an update; Refused if there is none, or as :func:`examined`."""
    with _child("child_extracts", {"name": name}) as child:
        try:
            rows = child.answer()
        except (Ended, Raised) as end:
            raise Refused(f"{name}: no table: {_broken(name, end).sentence}", 3) from end
    return tuple(tuple(KEEP if stored == KEEP else KVPoll[stored] for stored in row) for row in rows)


def _judged(function: str, arguments: Mapping[str, Any], silence: float | None) -> Result:
    last: Result | None = None
    with _child(function, arguments, silence) as child:
        try:
            for report in child.reports():
                members = report.get("answer") or report["learnt"]
                last = Result.from_json(members, child.folder)
        except (Ended, Raised) as end:
            return _cut_short(arguments["name"], arguments["laws"], end, last)
    return cast("Result", last)


@contextmanager
def _child(function: str, arguments: Mapping[str, Any], silence: float | None = None) -> Iterator[Child]:
    limit = {} if silence is None else {"silence": silence}
    with Child(__name__, function, arguments, **limit) as child:
        yield child


# --- An end before the end -----------------------------------------------------------------------------------------


def _cut_short(name: str, laws: Sequence[str], end: Ended | Raised, last: Result | None) -> Result:
    """What can be said although the process has ended: the last that was learnt, and its end."""
    broken = _broken(name, end)
    law = NO_DEADLOCK if isinstance(end, Ended) and end.hung else NO_CRASH
    known = {one.law: one for one in last.judgements if one.verdict == "broken"} if last is not None else {}
    known.setdefault(law, Judgement(law, broken))
    unknown = NotJudged(f"the examination has come to no end: {broken.sentence}")
    judgements = tuple(known.get(one, Judgement(one, unknown)) for one in laws)
    notes = (f"ended early: {broken.sentence}",)
    return Result(judgements, plays=last.plays if last else {}, looked_at=last.looked_at if last else {}, notes=notes)


def _broken(name: str, end: Ended | Raised) -> Broken:
    """The end of a process as a broken law; Refused for one that is none, and whatever it is if it is our own fault."""
    if isinstance(end, Raised):
        return _raised(end)
    frame = next((frame for stack in _in_order(end.stacks) if (frame := _theirs(stack.frames))), None)
    place = f" ({Path(frame.file).name}, line {frame.line}, in {frame.function})" if frame else ""
    sentence = f"{end}{place}"
    if end.now.startswith(IMPORTING):
        raise Refused(f"{name}: {sentence}", 2) from end
    law = NO_DEADLOCK if end.hung else NO_CRASH
    parts = [f"the law: {law}: {LAWS[law]}", _steps(end), *_shown(end.stacks)]
    again = f"{importable(name)}kvlatch conform {shlex.quote(name)} --only {law}"
    return Broken(sentence, "\n\n".join(filter(None, parts)), None, again, *((frame.file, frame.line) if frame else ()))


def _raised(end: Raised) -> Broken:
    """An exception where none is expected: the manager's, if its own code has raised it."""
    frame = _theirs(end.frames)
    if frame is None:
        raise RuntimeError(f"the child has failed:\n{end.traceback}") from end
    text = f"the law: {NO_CRASH}: {LAWS[NO_CRASH]}\n\n{end.traceback.rstrip()}"
    return Broken(f"{end} leaves {frame.function}", text, None, "", frame.file, frame.line)


def _in_order(stacks: Sequence[Stack]) -> list[Stack]:
    """Those that rest between two steps are not to blame; the one that has ended the process is first."""
    busy = [stack for stack in stacks if stack.frames[0].file != interleave.__file__]
    return sorted(busy, key=lambda stack: not stack.current)


def _theirs(frames: Sequence[Frame]) -> Frame | None:
    """The innermost line that is neither Python's nor ours."""
    return next((one for one in frames if not (is_library(one.file) or _is_ours(one.file))), None)


def _is_ours(file: str) -> bool:
    return file.startswith("<") or (Path(file).parent in _OURS and Path(file).name not in _MANAGERS)


def _steps(end: Ended) -> str:
    steps = [f"  {step}" for step in end.steps[-_STEPS:]]
    before = len(end.steps) - len(steps)
    return "\n".join([*([f"  {before:,} steps before"] if before else []), *steps, f"  {end}"])


def _shown(stacks: Sequence[Stack]) -> Iterator[str]:
    """Each thread that is in the middle of something, with its lines in the manager."""
    for stack in _in_order(stacks):
        theirs = [one for one in stack.frames if not (is_library(one.file) or _is_ours(one.file))]
        if theirs:
            yield "\n".join(["a thread was there, most recent call first:", *(f"  {_line(one)}" for one in theirs)])


def _line(frame: Frame) -> str:
    return f"{frame.file}, line {frame.line}, in {frame.function}"
