"""The subjects of the oracle's score: right managers, wrong ones as edits of right ones, mutants, odd ones.

They stand in ``bench/subjects/oracle`` as other people's projects would: modules that know the adapter's nine methods
or the line protocol, and nothing else of kvlatch. ``right.toml`` and ``wrong.toml`` list them, ``equivalent.toml``
has the mutants that no run can tell from the original, each with the argument for that.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from bench.mutants import mutants

HERE: Final = Path(__file__).parent / "subjects" / "oracle"
EXAMPLES: Final = Path(__file__).parents[1] / "examples"
Expected = Literal["right", "wrong", "mutant", "odd"]

MUTATED: Final = {"one_lock": frozenset({"Manager"}), "lock_per_room": frozenset({"Sender", "Room", "Adapter"})}
"""The right managers that are mutated, and their classes that are not mere plumbing."""


class BadSubject(Exception):
    """A list, or an edit in it, that does not fit the files that are there."""


@attrs.frozen
class Subject:
    """One manager, and what is known of it.

    ``edits`` are pairs of texts for the file ``file``; a mutant has the whole of its file as ``source``. ``law`` is the
    law that a wrong one certainly breaks, ``run`` the shortest way to see it, in words. ``exits`` are the exit codes
    that one which cannot be judged may end with.
    """

    name: str
    expected: Expected
    module: str = ""
    program: str = ""
    says: str = ""
    kind: str = ""
    law: str = ""
    run: str = ""
    file: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    source: str | None = attrs.field(default=None, repr=False)
    compiler: tuple[str, ...] = ()
    exits: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """It changes with whatever is run."""
        base = self.text() if self.file else ""
        return hashlib.sha256(f"{self}{base}".encode()).hexdigest()[:16]

    def put(self, folder: Path) -> list[str]:
        """Make the manager in an empty folder; returns what ``kvlatch conform`` is to be told, from there.

        Raises BadSubject if an edit does not fit, CalledProcessError if it does not compile, FileNotFoundError without
        a compiler.
        """
        shutil.copytree(HERE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.toml", "__pycache__"))
        if self.file:
            (folder / self.file).write_text(self.text(), encoding="utf-8")
        if self.compiler:
            command = [word.format(examples=EXAMPLES) for word in self.compiler]
            subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        if self.program:
            return ["--exec", self.program.format(python=sys.executable)]
        return [f"{self.module}:Adapter"]

    def text(self) -> str:
        """What stands in its file."""
        if self.source is not None:
            return self.source
        text = (HERE / self.file).read_text(encoding="utf-8")
        for old, new in self.edits:
            if text.count(old) != 1:
                raise BadSubject(f"{self.name}: {text.count(old)} times in {self.file}, not once: {old!r}")
            text = text.replace(old, new)
        return text


@cache
def subjects() -> tuple[Subject, ...]:
    """All of them; BadSubject if a name is there twice."""
    found = [*_listed("right"), *_listed("wrong"), *_mutants(), *_odd()]
    names = [subject.name for subject in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadSubject(f"two subjects are called {min(twice)}")
    return tuple(found)


def equivalent() -> dict[str, str]:
    """The mutants that no run can tell from the original, each with the argument."""
    return {entry["name"]: entry["why"] for entry in _toml("equivalent.toml")}


def _toml(name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = tomllib.loads((HERE / name).read_text(encoding="utf-8"))["subject"]
    return entries


def _listed(expected: Literal["right", "wrong"]) -> Iterator[Subject]:
    for entry in _toml(f"{expected}.toml"):
        program, module = entry.get("exec", ""), entry.get("module", entry["name"])
        yield Subject(
            name=entry["name"],
            expected=expected,
            module="" if program else module,
            program=program,
            file=entry.get("file", "" if program else f"{module}.py"),
            edits=tuple((old, new) for old, new in entry.get("replace", [])),
            compiler=tuple(entry.get("compile", ())),
            **{key: entry.get(key, "") for key in ("says", "kind", "law", "run")},
        )


def _odd() -> Iterator[Subject]:
    """What is no manager, or cannot be driven like one; each is the module ``odd``."""
    for entry in _toml("odd.toml"):
        source = entry.get("source")
        if source is None:
            base = Subject(
                entry["name"], "odd", file=f"{entry['module']}.py", edits=tuple(map(tuple, entry["replace"]))
            )
            source = base.text()
        program = entry.get("exec", "")
        yield Subject(
            name=entry["name"],
            expected="odd",
            module="" if program else "odd",
            program=program,
            says=entry["says"],
            file="odd.py",
            source=source,
            exits=tuple(entry["exits"]),
        )


def _mutants() -> Iterator[Subject]:
    """Of two right managers; the onlooker's ``status`` and what only makes an object are left alone."""
    for module, classes in MUTATED.items():
        source = (HERE / f"{module}.py").read_text(encoding="utf-8")
        for mutant in mutants(source, classes, leave=frozenset({"__init__", "status"})):
            name = f"{module}.{mutant.name}"
            yield Subject(name, "mutant", module, says=mutant.name, file=f"{module}.py", source=mutant.source)
