"""Certificates: what has been proved, as files that another solver can check without this program.

Each obligation is one SMT-LIB 2.6 file that stands alone: declarations, the axioms unless the obligation is bare, and
its assertions, which together must be unsatisfiable. They are not copies of what the prover asked: they are computed
again, from the spec, the names of the lemmas and the scope of each proof. A counterexample comes with its trace; one
file says of all counterexamples in one instance that no run with fewer steps is bad. ``recheck.py`` has the format,
and checks a directory, or an archive of one, with cvc5 alone.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.metadata import version
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import attrs

from kvlatch.proofs import bmc
from kvlatch.proofs.archives import Malformed, opened
from kvlatch.proofs.induction import Invariant, Theory
from kvlatch.proofs.obligations import Obligation
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.processes import pool_of_cores
from kvlatch.proofs.prove import Cell, trace_name, trace_of
from kvlatch.proofs.recheck import (
    MANIFEST,
    File,
    Manifest,
    Shortest,
    Theorem,
    files_in,
    scopes,
    shorter,
    spec_hash,
)
from kvlatch.proofs.solvers import standalone
from kvlatch.proofs.verdicts import Proved, Refuted
from kvlatch.spec.model import Machine
from kvlatch.spec.protocols import all_designs, protocol_of
from kvlatch.spec.schema import Sizes
from kvlatch.spec.traces import SUFFIX, Meaning, Trace, read, write

ARCHIVE: Final = ".tar.gz"
"""How the name of an archive ends."""


class Refused(ValueError):
    """No certificates are written, in one line that says why."""


def certify(cells: Iterable[Cell], target: Path) -> int:
    """Write the certificates of all cells, into a directory or an archive (``.tar.gz``): how many files.

    The target appears whole or not at all. It takes the place of an older one; Refused if that is anything else.
    """
    cells = list(cells)
    theorems = _theorems(cells)
    target = target.resolve()
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        fresh = Path(scratch, "new")
        fresh.mkdir()
        for cell in cells:
            if isinstance(cell.verdict, Refuted):
                write(trace_of(cell), fresh / trace_name(cell))
        manifest, texts = _compose(theorems, fresh)
        for name, text in texts.items():
            (fresh / name).parent.mkdir(exist_ok=True)
            (fresh / name).write_text(text, encoding="utf-8")
        manifest.write(fresh)
        if target.name.endswith(ARCHIVE):
            _pack(fresh, Path(scratch, target.name)).replace(target)
        else:
            if target.exists():
                target.rename(Path(scratch, "old"))
            fresh.rename(target)
    return len(manifest.files)


def _pack(directory: Path, path: Path) -> Path:
    """An archive that depends on the names and contents of the files alone: no times, no owners, one order."""
    with gzip.GzipFile(path, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name in sorted({MANIFEST, *files_in(directory)}):
            content = (directory / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    return path


def check_target(target: Path) -> None:
    """Refused if certificates would take the place of anything but certificates."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if target.is_dir() == target.name.endswith(ARCHIVE):
        raise Refused(f"{target}: a directory of certificates is not called *{ARCHIVE}, and an archive is")
    try:
        with opened(target) as directory:
            others = files_in(directory) - {file.name for file in Manifest.read(directory).files}
    except Malformed:
        raise Refused(f"{target} exists and holds no certificates: choose another name, or remove it") from None
    if others:
        raise Refused(f"{target} holds more than certificates: {min(others)}; choose another name")


def same(path: Path) -> list[str]:
    """Compute every text of a directory or an archive again, with Z3, and compare byte for byte: the files that differ.

    This is what :func:`kvlatch.proofs.recheck.recheck` cannot do without Z3; it presupposes that that finds nothing.
    """
    with opened(path) as directory:
        manifest = Manifest.read(directory)
        wanted, texts = _compose(manifest.theorems, directory)
        differ = [name for name, text in texts.items() if (directory / name).read_text(encoding="utf-8") != text]
        return differ + [MANIFEST] * (attrs.evolve(wanted, solvers=manifest.solvers) != manifest)


def _theorems(cells: Iterable[Cell]) -> list[Theorem]:
    """What the cells prove; what is proved for any number of workers once."""
    found: dict[Theorem, None] = {}
    for cell in cells:
        row, verdict = cell.row, cell.verdict
        if row.design not in all_designs():
            raise Refused(f"{row.design} does not ship with kvlatch, so nobody else could check its certificates")
        if isinstance(verdict, Proved):
            found[Theorem(row.design, row.atomicity, cell.prop, verdict.scope, verdict.lemmas, ())] = None
    return list(found)


def _compose(theorems: Iterable[Theorem], directory: Path) -> tuple[Manifest, dict[str, str]]:
    """The manifest for some theorems and for the traces in a directory, and the text of every other file.

    How Z3 orders what it simplifies depends on all that it has been given before. So each group of files is computed
    in a process of its own, forked from one that has asked Z3 for nothing yet: then the texts are the same wherever and
    whenever they are computed.
    """
    pristine = get_context("forkserver")
    pristine.set_forkserver_preload([__name__])
    scripts: dict[File, str] = {}
    complete: list[Theorem] = []
    traces: list[File] = []
    shortest: list[Shortest] = []
    with pool_of_cores(pristine, tasks_each=1) as pool:
        folders = _folders(theorems)
        induced = pool.map(_induction, folders.keys(), folders.values())
        bounded = pool.map(_bounded, _by_design(directory))
        for asked, proved in induced:
            scripts |= asked
            complete += proved
        for files, asked, instances in bounded:
            traces += files
            scripts |= asked
            shortest += instances
    solvers = {name: version(name) for name in ("z3-solver", "cvc5")}
    draft = Manifest(spec_hash(), solvers, tuple(scripts), tuple(complete), tuple(shortest))
    texts = {file: draft.header(file) + script for file, script in scripts.items()}
    hashed = [attrs.evolve(file, sha256=sha256(text.encode()).hexdigest()) for file, text in texts.items()]
    return attrs.evolve(draft, files=(*hashed, *traces)), {file.name: text for file, text in texts.items()}


def _induction(folder: str, alike: Sequence[Theorem]) -> tuple[dict[File, str], list[Theorem]]:
    """The obligations of theorems with the same lemmas as scripts, and the theorems with the names of their files."""
    invariant = _invariant(alike[0])
    obligations: dict[File, Obligation] = {}
    complete = []
    for theorem in alike:
        files = []
        for obligation in invariant.obligations(invariant.theory.machine.protocol.prop(theorem.prop)):
            name = f"{folder}/{re.sub('[^a-z0-9_.*]+', '-', obligation.name)}.smt2"
            files.append(name)
            obligations.setdefault(File(name, "", obligation.name, theorem.design, theorem.atomicity), obligation)
        complete.append(attrs.evolve(theorem, files=tuple(files)))
    return dict(zip(obligations, standalone(invariant, obligations.values()), strict=True)), complete


def _bounded(paths: Sequence[Path]) -> tuple[list[File], dict[File, str], list[Shortest]]:
    """The traces of one design as files; for those of one instance together, the script that none can be shorter."""
    files: list[File] = []
    instances: dict[tuple[Sizes, str], dict[str, Trace]] = {}
    for path in paths:
        trace = read(path)
        digest = sha256(path.read_bytes()).hexdigest()
        files.append(File(path.name, digest, f"trace {trace.prop}", trace.design, trace.atomicity))
        instances.setdefault((trace.instance, trace.network), {})[path.name] = trace
    scripts: dict[File, str] = {}
    shortest = []
    for (size, network), traces in instances.items():
        some, *_ = traces.values()
        sizes = "".join(f"{count}{name[0]}" for name, count in attrs.asdict(size).items() if name != "rooms")
        place = f"{some.design}.{some.atomicity}/shorter-{sizes}-{network}.smt2"
        file = File(place, "", shorter(list(traces.values())), some.design, some.atomicity)
        lengths = {str(trace.prop): len(trace.steps) - 1 for trace in traces.values()}
        scripts[file] = bmc.script(Meaning.of(some).machine, lengths)
        shortest.append(Shortest(tuple(traces), file.name))
    return files, scripts, shortest


def _by_design(directory: Path) -> list[list[Path]]:
    """The traces in a directory, in groups of one design in one atomicity."""
    found: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        trace = read(path)
        found.setdefault((trace.design, trace.atomicity), []).append(path)
    return list(found.values())


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
    design = all_designs()[theorem.design]
    protocol = protocol_of(design)
    size, network = scopes(protocol)[theorem.scope]
    (atomicity,) = (level for level in design.atomicities if level == theorem.atomicity)
    machine = Machine.of(design, atomicity, network, size, protocol)
    theory = AnyNumber.of(machine) if machine.model.any else Theory.of(machine)
    return Invariant(theory, tuple(theory.claim(protocol.lemma(name)) for name in theorem.lemmas))
