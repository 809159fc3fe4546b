"""The score of the judge of published code: bugs planted in the best fix of sglang 0.5.23, and mutants of that fix.

``python bench/planted.py`` plants each bug of ``subjects/sglang/planted.toml`` in the overlay ``latch-local``, each by
itself, and judges ``0.5.23+that`` by the known scenarios, and then by exploration for ``--explore`` seconds; a bug is
found at the first scenario, or the first explored play, that shows it. ``--mutants`` does the same with one small
change each (``mutants.py``), of the overlay or of a function of upstream's that it extends. Printed: what was found,
by which scenario; the score of each kind; and every survivor, with the reason from ``subjects/sglang/survivors.toml``,
if there is one. A mutant that cannot be driven (exit 3) is *refused*: it gets no green line, and counts as found.

``--resume FILE`` keeps what is done, a JSON object a line, and goes on from there; ``--seconds S`` starts nothing after
S seconds; ``--sample N`` draws N, the same each time. Exit code 0 if the targets are met by what was run (95 % of the
bugs, 90 % of the mutants), 1 if not, 2 for nothing to run.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import sys
import tempfile
import time
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.mutants import mutants  # noqa: E402  # after the path
from kvlatch.reference.faults import AdapterFault  # noqa: E402
from kvlatch.reference.laws import LAWS  # noqa: E402
from kvlatch.reference.published.sglang.explore import explore  # noqa: E402
from kvlatch.reference.published.sglang.judge import examine  # noqa: E402
from kvlatch.reference.published.sglang.subjects import OVERLAYS, Subject, copy_code, resolve  # noqa: E402

VERSION: Final = "0.5.23"
OVERLAY: Final = OVERLAYS / "latch_local.py"
SUBJECTS: Final = Path(__file__).parent / "subjects" / "sglang"
KNOWN: Final = {"room-reusable/stale-metadata"}
"""What the fix itself breaks, since it has no nonce on the wire."""
TARGETS: Final = {"planted": 0.95, "mutants": 0.90}
CLASSES: Final = frozenset({"Infos", "Owned", "Manager", "Sender"})
UNDERNEATH: Final = "sglang/srt/disaggregation/common/conn.py"
"""Where the functions are that the overlay extends, in these classes by the overlay's."""
EXTENDED: Final = {"Manager": "CommonKVManager", "Sender": "CommonKVSender"}


class BadList(ValueError):
    """The list of planted bugs does not fit the overlay."""


@attrs.frozen
class Planted:
    """One changed overlay: its kind (``mutant`` for a mechanical one), its name, and its whole text.

    Or ``path`` says which file of upstream's the text is of, under the overlay as it is.
    """

    kind: str
    name: str
    source: str = attrs.field(repr=False)
    path: str = ""

    @property
    def digest(self) -> str:
        """Names the text, and the judge: what was judged by another one is judged again."""
        files = sorted((ROOT / "reference/published/sglang").rglob("*.py"))
        judge = b"".join(file.read_bytes() for file in files if file.parent != OVERLAYS or file == OVERLAY)
        return hashlib.sha256(self.source.encode() + judge).hexdigest()[:16]


@attrs.frozen
class Outcome:
    """What became of one: ``by`` are the scenarios that found it, empty for a survivor; ``refused`` is a fault."""

    kind: str
    name: str
    digest: str
    by: tuple[str, ...]
    refused: str
    plays: int
    seconds: float

    @property
    def found(self) -> bool:
        """Found, or refused if it is a mutant: nobody has promised that a mutant can be driven."""
        return bool(self.by) or (bool(self.refused) and self.kind == "mutant")


def planted() -> Iterator[Planted]:
    """The bugs of the list. Raises BadList for an edit that does not fit exactly once, or does nothing."""
    original = OVERLAY.read_text(encoding="utf-8")
    for bug in tomllib.loads((SUBJECTS / "planted.toml").read_text(encoding="utf-8"))["bug"]:
        source = original
        for old, new in bug.get("edits", []):
            if source.count(old) != 1:
                raise BadList(f"{bug['name']}: this is there {source.count(old)} times: {old!r:.80}")
            source = source.replace(old, new)
        behind = bug.get("append", "")
        if behind.lstrip("\n").startswith(" "):
            raise BadList(f"{bug['name']}: what is appended would become part of whatever is last in the overlay")
        yield Planted(bug["kind"], bug["name"], source + behind)


def mutated() -> Iterator[Planted]:
    """The mutants of the overlay, then those of the functions that it extends. Raises as ``resolve`` does."""
    source = OVERLAY.read_text(encoding="utf-8")
    yield from (Planted("mutant", mutant.name, mutant.source) for mutant in mutants(source, CLASSES))
    with zipfile.ZipFile(resolve(VERSION).code) as wheel:
        below = wheel.read(UNDERNEATH).decode()
    ours, theirs = methods(source), methods(below)
    for over, under in EXTENDED.items():
        leave = theirs[under] - (ours[over] - {"__init__"} if over == "Manager" else ours[over])
        for mutant in mutants(below, frozenset({under}), frozenset(leave)):
            yield Planted("mutant", f"upstream's {mutant.name}", mutant.source, UNDERNEATH)


def methods(source: str) -> dict[str, set[str]]:
    """The names of the methods of each class."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {cls.name: {node.name for node in cls.body if isinstance(node, ast.FunctionDef)} for cls in classes}


def subject_of(one: Planted, folder: Path) -> Subject:
    """What is judged: the wheel under the changed overlay, or the changed wheel under the overlay."""
    original = resolve(VERSION)
    if one.path:
        copy_code(original.code, folder)
        (folder / one.path).write_text(one.source, encoding="utf-8")
        return Subject(f"{original.name}+planted", f"{folder}+latch-local", folder, (OVERLAY,), original=original)
    file = folder / "planted.py"
    file.write_text(one.source, encoding="utf-8")
    return Subject(f"{original.name}+planted", f"{original.target}+{file}", original.code, (file,), original=original)


def judged(one: Planted, seconds: float) -> Outcome:
    """Judge one, by the scenarios first."""
    began = time.monotonic()
    by: tuple[str, ...] = ()
    refused, plays = "", 0
    with tempfile.TemporaryDirectory() as folder:
        subject = subject_of(one, Path(folder))
        try:
            examination = examine(subject, "nixl", timeout=90)
            plays = examination.plays
            by = tuple(j.name for j in examination.judgements if j.verdict == "broken" and j.name not in KNOWN)
            if not by and seconds:
                laws = [law for law in LAWS if law != "room-reusable"]  # late metadata breaks that one anyway
                search = explore(subject, "nixl", laws, seconds=seconds, enough=1)
                plays += search.plays
                by = tuple(j.name for j in search.judgements if j.verdict == "broken")
        except AdapterFault as fault:
            refused = str(fault)
    return Outcome(one.kind, one.name, one.digest, by, refused, plays, round(time.monotonic() - began, 1))


def run(wanted: Sequence[Planted], done: dict[str, Outcome], arguments: argparse.Namespace) -> list[Outcome]:
    """Judge what is not done yet, two at a time, until the time is up; each is kept as soon as it is there."""
    deadline = time.monotonic() + arguments.seconds if arguments.seconds else float("inf")

    def outcome(one: Planted) -> Outcome | None:
        if one.digest in done:
            return done[one.digest]
        if time.monotonic() > deadline:
            return None
        found = judged(one, arguments.explore)
        if arguments.resume:
            with arguments.resume.open("a", encoding="utf-8") as file:
                file.write(json.dumps(attrs.asdict(found)) + "\n")
        return found

    with ThreadPoolExecutor(2) as pool:
        return [found for found in pool.map(outcome, wanted) if found is not None]


def report(title: str, outcomes: Sequence[Outcome], reasons: dict[str, str]) -> bool:
    """Print the score; whether it meets its target. A survivor that is no bug, by a written argument, is left out."""
    counted = [one for one in outcomes if one.found or not reasons.get(one.name, "").startswith("equivalent")]
    found = sum(one.found for one in counted)
    refused = sum(bool(one.refused) for one in outcomes)
    share = found / len(counted) if counted else 0.0
    print(f"{title}: {found} of {len(counted)} found ({share:.1%}), {len(outcomes) - len(counted)} equivalent", end="")
    print(f", {refused} refused" if refused else "")
    if title == "planted":
        for kind in dict.fromkeys(one.kind for one in outcomes):
            mine = [one for one in outcomes if one.kind == kind]
            scenarios = Counter(name for one in mine for name in one.by)
            by = ", ".join(f"{name} {count}" for name, count in scenarios.most_common(4))
            print(f"  {kind}: {sum(one.found for one in mine)} of {len(mine)}; by {by or 'nothing'}")
    for one in outcomes:
        if not one.found:
            why = reasons.get(one.name) or one.refused or "no reason is known"
            print(f"  survives: {one.kind}: {one.name}: {why} ({one.plays} plays)")
    return share >= TARGETS[title]


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", action="store_true", help="mechanical mutants instead of the planted bugs")
    parser.add_argument("--only", default="", help="what the kind or the name contains")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--explore", type=float, default=30.0, metavar="SECONDS", help="exploration of each survivor")
    parser.add_argument("--resume", type=Path)
    arguments = parser.parse_args()
    title = "mutants" if arguments.mutants else "planted"
    everything = [*(mutated() if arguments.mutants else planted())]
    wanted = [one for one in everything if arguments.only in one.kind or arguments.only in one.name]
    if arguments.sample:
        wanted = random.Random(0).sample(wanted, min(arguments.sample, len(wanted)))  # noqa: S311  # nothing secret
    if not wanted:
        print("nothing to run", file=sys.stderr)
        return 2
    outcomes = run(wanted, _kept(arguments.resume), arguments)
    reasons_file = SUBJECTS / "survivors.toml"
    listed: dict[str, Any] = tomllib.loads(reasons_file.read_text(encoding="utf-8")) if reasons_file.exists() else {}
    met = report(title, outcomes, {one["name"]: one["reason"] for one in listed.get("survivor", [])})
    if len(outcomes) < len(wanted):
        print(f"{len(wanted) - len(outcomes)} were not run: the time was up")
    return 0 if met and outcomes else 1


def _kept(file: Path | None) -> dict[str, Outcome]:
    """What a file of outcomes has, by digest."""
    if file is None or not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {line["digest"]: Outcome(**{**line, "by": tuple(line["by"])}) for line in lines}


if __name__ == "__main__":
    sys.exit(main())
