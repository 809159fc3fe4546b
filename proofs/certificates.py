"""Certificates: what has been proved, as files that another solver can check without this program.

Each obligation is one SMT-LIB 2.6 file that stands alone: declarations, the axioms unless the obligation is bare, and
its assertions, which together must be unsatisfiable. They are not copies of what the prover asked: they are computed
again, from the spec, the names of the lemmas and the scope of each proof. A counterexample comes with its trace and
with the file that says that no run with fewer steps is bad. ``recheck.py`` has the format, and checks a directory with
cvc5 alone.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import attrs
import z3

from kvlatch.proofs.induction import Invariant, Theory
from kvlatch.proofs.lemmas import BY_NAME as LEMMA
from kvlatch.proofs.parametric import AnyWorkers
from kvlatch.proofs.prove import HEADLINES, Cell, trace_name, trace_of
from kvlatch.proofs.recheck import (
    CORES,
    MANIFEST,
    WORKERS_OF,
    File,
    Malformed,
    Manifest,
    Shortest,
    Theorem,
    files_in,
    shorter,
    spec_hash,
)
from kvlatch.proofs.solvers import script, smtlib
from kvlatch.proofs.terms import Symbolic
from kvlatch.proofs.verdicts import Proved, Refuted
from kvlatch.proofs.worlds import EVERYTHING
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import ANY, Machine
from kvlatch.spec.properties import BY_NAME, Property
from kvlatch.spec.terms import assign, evaluate
from kvlatch.spec.traces import SUFFIX, Meaning, read, write


class Refused(ValueError):
    """No certificates are written, in one line that says why."""


def certify(cells: Iterable[Cell], directory: Path) -> int:
    """Write the certificates of all cells that are proved, and of the headlines that are refuted: how many files.

    The directory appears whole or not at all. It takes the place of an older one; Refused if that is anything else.
    """
    cells = list(cells)
    theorems = _theorems(cells)
    directory = directory.resolve()
    check_target(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}.") as scratch:
        fresh = Path(scratch, "new")
        fresh.mkdir()
        for cell in filter(_headline, cells):
            write(trace_of(cell), fresh / trace_name(cell))
        manifest, texts = _compose(theorems, fresh)
        for name, text in texts.items():
            (fresh / name).parent.mkdir(exist_ok=True)
            (fresh / name).write_text(text, encoding="utf-8")
        manifest.write(fresh)
        if directory.exists():
            directory.rename(Path(scratch, "old"))
        fresh.rename(directory)
    return len(manifest.files)


def check_target(directory: Path) -> None:
    """Refused if certificates would take the place of anything but certificates."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    try:
        known = {file.name for file in Manifest.read(directory).files}
    except Malformed:
        raise Refused(f"{directory} exists and holds no certificates: name another directory, or remove it") from None
    if others := files_in(directory) - known:
        raise Refused(f"{directory} holds more than certificates: {min(others)}; name another directory")


def same(directory: Path) -> list[str]:
    """Compute every text of a directory again, with Z3, and compare byte for byte: the files that differ.

    This is what :func:`kvlatch.proofs.recheck.recheck` cannot do without Z3; it presupposes that that finds nothing.
    """
    manifest = Manifest.read(directory)
    wanted, texts = _compose(manifest.theorems, directory)
    differ = [name for name, text in texts.items() if (directory / name).read_text(encoding="utf-8") != text]
    return differ + [MANIFEST] * (attrs.evolve(wanted, solvers=manifest.solvers) != manifest)


def _theorems(cells: Iterable[Cell]) -> list[Theorem]:
    """What the cells prove; what is proved for any number of workers once."""
    found: dict[Theorem, None] = {}
    for cell in cells:
        if isinstance(cell.verdict, Proved):
            if cell.row.design not in DESIGNS:
                raise Refused(f"{cell.row.design} does not ship with kvlatch, so nobody else could check its proofs")
            found[
                Theorem(cell.row.design, cell.row.atomicity, cell.prop, cell.verdict.scope, cell.verdict.lemmas, ())
            ] = None
    return list(found)


def _headline(cell: Cell) -> bool:
    """A counterexample whose length is certified."""
    about = (cell.row.design, cell.row.atomicity) in HEADLINES and cell.row.workers == 1
    return about and cell.prop == "terminal-sticky" and isinstance(cell.verdict, Refuted)


def _compose(theorems: Iterable[Theorem], directory: Path) -> tuple[Manifest, dict[str, str]]:
    """The manifest for some theorems and for the traces in a directory, and the text of every other file.

    How Z3 orders what it simplifies depends on all that it has been given before. So each group of files is computed
    in a process of its own: then the texts are the same wherever and whenever they are computed.
    """
    scripts: dict[File, str] = {}
    complete: list[Theorem] = []
    traces: list[File] = []
    shortest: list[Shortest] = []
    with ProcessPoolExecutor(CORES, get_context("spawn"), max_tasks_per_child=1) as pool:
        folders = _folders(theorems)
        for asked, alike in pool.map(_induction, folders.keys(), folders.values()):
            scripts |= asked
            complete += alike
        paths = sorted(directory.glob(f"*{SUFFIX}"))
        for path, (trace, file, script) in zip(paths, pool.map(_bounded, paths), strict=True):
            scripts[file] = script
            traces.append(trace)
            shortest.append(Shortest(path.name, file.name))
    solvers = {name: version(name) for name in ("z3-solver", "cvc5")}
    draft = Manifest(spec_hash(), solvers, tuple(scripts), tuple(complete), tuple(shortest))
    texts = {file: draft.header(file) + script for file, script in scripts.items()}
    hashed = [attrs.evolve(file, sha256=sha256(text.encode()).hexdigest()) for file, text in texts.items()]
    return attrs.evolve(draft, files=(*hashed, *traces)), {file.name: text for file, text in texts.items()}


def _induction(folder: str, alike: Sequence[Theorem]) -> tuple[dict[File, str], list[Theorem]]:
    """The obligations of theorems with the same lemmas as scripts, and the theorems with the names of their files."""
    invariant = _invariant(alike[0])
    scripts: dict[File, str] = {}
    complete = []
    for theorem in alike:
        files = []
        for obligation in invariant.obligations(BY_NAME[theorem.prop]):
            name = f"{folder}/{re.sub('[^a-z0-9_.*]+', '-', obligation.name)}.smt2"
            file = File(name, "", obligation.name, theorem.design, theorem.atomicity)
            files.append(name)
            if file not in scripts:
                scripts[file] = script(invariant, obligation)
        complete.append(attrs.evolve(theorem, files=tuple(files)))
    return scripts, complete


def _bounded(path: Path) -> tuple[File, File, str]:
    """A trace, and the script that no run that is shorter is bad."""
    trace = read(path)
    meaning = Meaning.of(trace)
    digest = sha256(path.read_bytes()).hexdigest()
    name = path.name.replace(SUFFIX, ".shorter.smt2")
    return (
        File(path.name, digest, f"trace {trace.prop}", trace.design, trace.atomicity),
        File(name, "", shorter(trace), trace.design, trace.atomicity),
        _unrolled(meaning.machine, BY_NAME[str(trace.prop)], len(trace.steps) - 2),
    )


def _folders(theorems: Iterable[Theorem]) -> dict[str, list[Theorem]]:
    """The theorems by the folder of their files, which those with the same lemmas about the same design share."""
    groups: dict[tuple[object, ...], list[Theorem]] = {}
    for theorem in theorems:
        groups.setdefault((theorem.design, theorem.atomicity, theorem.scope, theorem.lemmas), []).append(theorem)
    folders: dict[str, list[Theorem]] = {}
    for alike in groups.values():
        name = f"{alike[0].design}.{alike[0].atomicity}"
        others = sum(folder.partition("+")[0] == name for folder in folders)
        folders[f"{name}+{others}" if others else name] = alike
    return folders


def _invariant(theorem: Theorem) -> Invariant:
    """The invariant of a proof: its lemmas, in its theory."""
    workers = WORKERS_OF[theorem.scope]
    design = DESIGNS[theorem.design]
    (atomicity,) = (level for level in design.atomicities if level == theorem.atomicity)
    machine = Machine.of(design, atomicity, EVERYTHING.network, EVERYTHING.instance(workers))
    theory = AnyWorkers.of(machine) if workers == ANY else Theory.of(machine)
    return Invariant(theory, tuple(theory.claim(LEMMA[name]) for name in theorem.lemmas))


def _unrolled(machine: Machine, prop: Property, steps: int) -> str:
    """The script that says: of the states of a run of so many steps, one is bad. What a step does is one number."""
    actions = machine.model.actions
    states, choices = [Symbolic.fresh(machine.model.variables, machine.merge, "!0")], []
    formulas = [value == 0 for value in states[0].values.values()]
    for step in range(steps):
        before = states[-1]
        after = Symbolic.fresh(machine.model.variables, machine.merge, f"!{step + 1}")
        choice = z3.BitVec(f"action!{step}", len(actions).bit_length())
        result = dict(before.values)
        for index, action in enumerate(actions):
            formulas.append(z3.Implies(choice == index, evaluate(action.guard, before)))
            for var, term in action.updates:
                result[var] = z3.If(choice == index, assign(var, term, before), result[var])
        formulas.append(z3.ULT(choice, len(actions)))
        formulas += [after.values[var] == value for var, value in result.items()]
        states.append(after)
        choices.append(choice)
    claim = machine.model.claim(prop.bad)
    formulas.append(z3.Or([evaluate(claim, state) for state in states]))
    constants = [*choices, *(value for state in states for value in state.values.values())]
    declarations = [f"(declare-const {value.sexpr()} {value.sort().sexpr()})" for value in constants]
    return smtlib("QF_BV", declarations, formulas)
