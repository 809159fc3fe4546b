"""Certificates, checked again by cvc5 alone: nothing that is imported here imports Z3.

A certificate directory is what ``certificates.py`` writes: one SMT-LIB 2.6 file per obligation, each to be
unsatisfiable; traces; and ``manifest.json``, which says which files a theorem consists of. :func:`recheck` demands that

* the manifest is about the spec that is installed, by its hash;
* no file is missing, altered, added, or listed and then not used;
* each theorem lists every obligation that the spec's own rows demand, once, and no other;
* each file begins with the header that the manifest implies, does nothing but declare, assert and ask once, at its
  end, and cvc5 answers unsat within a resource limit;
* each trace is a run of the spec to a state that breaks its property, and has a certificate that no shorter one does.

What it cannot see is whether the assertions are those of the obligation that the header names: whoever forges a file
and its hash can forge both. ``certificates.same`` computes every text again, with Z3, and compares.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import attrs
import cvc5
from attrs.validators import deep_iterable, instance_of

import kvlatch.spec
from kvlatch.proofs.worlds import EVERYTHING, scope_of
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import ANY, build
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.traces import Trace, TraceError, read, verify

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
CORES: Final = 2

_COMPUTED_FROM: Final = ("certificates", "induction", "lemmas", "parametric", "ranking", "terms", "worlds")
"""The modules here that obligations are computed from, besides all of the spec."""
_COMMANDS: Final = {"set-info", "set-logic", "declare-sort", "declare-const", "declare-fun", "assert", "check-sat"}
_LIMIT: Final = 10_000_000
"""cvc5's resource limit for one file; the hardest needs less than a tenth of it."""

_text: Any = attrs.field(validator=instance_of(str))
_texts: Any = attrs.field(converter=tuple, validator=deep_iterable(instance_of(str)))


class Malformed(ValueError):
    """This is no certificate directory, in one line."""


@attrs.frozen
class File:
    """One file: its name in the directory, its hash, and which obligation of which design it is."""

    name: str = _text
    sha256: str = _text
    obligation: str = _text
    design: str = _text
    atomicity: str = _text

    @property
    def kind(self) -> str:
        """The first word of the obligation: initial, step, property, rank, shorter; or trace."""
        return self.obligation.split(" ")[0]


@attrs.frozen
class Theorem:
    """A property of a design, proved by induction with these lemmas; the files are its obligations."""

    design: str = _text
    atomicity: str = _text
    prop: str = _text
    scope: str = _text
    lemmas: tuple[str, ...] = _texts
    files: tuple[str, ...] = _texts

    @property
    def title(self) -> str:
        """What is proved."""
        return f"{self.design} {self.atomicity} {self.prop}"


@attrs.frozen
class Shortest:
    """A counterexample, and the file that says that there is no shorter one in the same instance."""

    trace: str = _text
    shorter: str = _text


@attrs.frozen
class Manifest:
    """What a certificate directory holds."""

    spec: str
    solvers: dict[str, str]
    files: tuple[File, ...]
    theorems: tuple[Theorem, ...]
    shortest: tuple[Shortest, ...]

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """The manifest of a directory; Malformed if it has none that can be read."""
        try:
            document = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
            if document.pop("format") != FORMAT:
                raise Malformed(f"{MANIFEST}: not of format {FORMAT}, which is what this version reads")
            files = tuple(File(**entry) for entry in document.pop("files"))
            theorems = tuple(Theorem(**entry) for entry in document.pop("theorems"))
            shortest = tuple(Shortest(**entry) for entry in document.pop("shortest"))
            return cls(files=files, theorems=theorems, shortest=shortest, **document)
        except FileNotFoundError:
            raise Malformed(f"{MANIFEST}: missing") from None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise error if isinstance(error, Malformed) else Malformed(f"{MANIFEST}: malformed: {error}") from error

    def write(self, directory: Path) -> None:
        """Write the manifest into a directory."""
        document = {"format": FORMAT, **attrs.asdict(self)}
        (directory / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def header(self, file: File) -> str:
        """How the text of an SMT-LIB file begins."""
        about = [f"{file.design}, {file.atomicity}: {file.obligation}"]
        serves = [theorem for theorem in self.theorems if file.name in theorem.files]
        if serves:
            properties = ", ".join(theorem.prop for theorem in serves)
            about += [f"Serves: {properties}", f"Scope: {serves[0].scope}", f"Lemmas: {', '.join(serves[0].lemmas)}"]
        source = "\n".join([*about, f"Spec: sha256 {self.spec}"])
        return f"(set-info :smt-lib-version 2.6)\n(set-info :source |\n{source}|)\n(set-info :status unsat)\n"


@attrs.frozen
class Report:
    """How much there was to check, and what is wrong: one line each, which begins with the file's name."""

    theorems: int
    files: int
    findings: tuple[str, ...]


def recheck(directory: Path) -> Report:
    """Check a certificate directory."""
    try:
        manifest = Manifest.read(directory)
    except Malformed as error:
        return Report(0, 0, (str(error),))
    if manifest.spec != (installed := spec_hash()):
        return Report(0, 0, (f"{MANIFEST}: about the spec {manifest.spec}, and {installed} is installed",))
    present = files_in(directory)
    findings = [
        *_listing(manifest, present),
        *(finding for theorem in manifest.theorems for finding in _incomplete(theorem, manifest)),
        *(finding for pair in manifest.shortest for finding in _not_shortest(pair, manifest, directory, present)),
    ]
    # The longest first, so that the two processes end together.
    listed = sorted((file for file in manifest.files if file.name in present), key=lambda file: file.kind != "shorter")
    headers = ["" if file.kind == "trace" else manifest.header(file) for file in listed]
    with ProcessPoolExecutor(max_workers=CORES) as pool:
        wrong = pool.map(_wrong, [directory] * len(listed), listed, headers, chunksize=4)
        findings += [f"{file.name}: {why}" for file, why in zip(listed, wrong, strict=True) if why]
    return Report(len(manifest.theorems), len(listed), tuple(findings))


def spec_hash() -> str:
    """The SHA-256 of every source that obligations are computed from, names included."""
    here = Path(__file__).parent
    sources = [
        *sorted(Path(kvlatch.spec.__file__).parent.glob("*.py")),
        *(here / f"{name}.py" for name in _COMPUTED_FROM),
    ]
    digest = sha256()
    for source in sources:
        digest.update(f"{source.parent.name}/{source.name} {sha256(source.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def files_in(directory: Path) -> set[str]:
    """The names of all files in a directory but the manifest."""
    names = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    return names - {MANIFEST}


WORKERS_OF: Final = {scope_of(workers): workers for workers in range(9)}
"""The number of workers that a scope is about, or ANY."""


def demanded(theorem: Theorem) -> list[str]:
    """The names of the obligations of a theorem, from the rows of the spec; Malformed for a name that nothing has."""
    design, prop, workers = DESIGNS.get(theorem.design), BY_NAME.get(theorem.prop), WORKERS_OF.get(theorem.scope)
    atomicity = next((level for level in design.atomicities if level == theorem.atomicity), None) if design else None
    if design is None or atomicity is None or prop is None or workers is None:
        raise Malformed("the spec has no such design, atomicity, property or scope")
    model = build(EVERYTHING.instance(workers)).of(design, atomicity, EVERYTHING.network)
    actions = [action.label for action in model.actions]
    others = ["leave", "elsewhere"] if workers == ANY else []
    names = ["initial", *(f"step {name}" for name in (*actions, *others))]
    if prop.kind == "safety":
        return [*names, f"property {prop.name}"]
    stuck = ["", ", busy"] if workers == ANY else [f", {count + 1} at work" for count in range(workers)]
    return [*names, *(f"rank {name}" for name in actions), *(f"property {prop.name}{case}" for case in stuck)]


def shorter(trace: Trace) -> str:
    """The name of the obligation that no run in the instance of a trace is bad in fewer steps."""
    instance = trace.instance
    sizes = (
        f"{instance.workers} workers, {instance.chunks} chunks, {instance.requests} requests, {instance.rooms} rooms"
    )
    return f"shorter {trace.prop} within {len(trace.steps) - 2} steps; {sizes}, {trace.network} network"


def _listing(manifest: Manifest, present: set[str]) -> Iterator[str]:
    """Files and theorems that are missing, added, listed twice or not used."""
    names = [file.name for file in manifest.files]
    used = {name for theorem in manifest.theorems for name in theorem.files}
    used |= {name for pair in manifest.shortest for name in (pair.trace, pair.shorter)}
    yield from (f"{name}: missing" for name in sorted({*names, *used} - present))
    yield from (f"{name}: not in the manifest" for name in sorted(present - set(names)))
    yield from (f"{name}: part of no theorem" for name in sorted(set(names) - used))
    yield from (f"{name}: not in the manifest's list of files" for name in sorted(used & present - set(names)))
    yield from (f"{name}: listed twice" for name in _twice(names))
    titles = [f"{theorem.title}, {theorem.scope}" for theorem in manifest.theorems]
    yield from (f"{MANIFEST}: {title}: listed twice" for title in _twice(titles))


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _incomplete(theorem: Theorem, manifest: Manifest) -> Iterator[str]:
    """Where the obligations of a theorem are not those that the spec demands."""
    about = f"{MANIFEST}: {theorem.title}"
    try:
        wanted = demanded(theorem)
    except Malformed as error:
        yield f"{about}: {error}"
        return
    files = {file.name: file for file in manifest.files}
    mine = [files[name] for name in theorem.files if name in files]
    yield from (
        f"{about}: {file.name} is of another design"
        for file in mine
        if (file.design, file.atomicity) != (theorem.design, theorem.atomicity)
    )
    got = [file.obligation for file in mine]
    yield from (f"{about}: without the obligation: {name}" for name in wanted if name not in got)
    yield from (f"{about}: unknown obligation: {name}" for name in got if name not in wanted)
    yield from (f"{about}: obligation twice: {name}" for name in _twice(got))
    for other in manifest.theorems:
        differs = (other.scope, other.lemmas) != (theorem.scope, theorem.lemmas)
        if differs and (shared := set(theorem.files) & set(other.files)):
            yield f"{about}: shares {min(shared)} with {other.prop}, which has another scope or other lemmas"


def _not_shortest(pair: Shortest, manifest: Manifest, directory: Path, present: set[str]) -> Iterator[str]:
    """What is wrong with a counterexample and the claim that none is shorter."""
    files = {file.name: file for file in manifest.files if file.name in present}
    if pair.trace not in files or pair.shorter not in files:
        return  # missing, and reported as such
    try:
        trace = read(directory / pair.trace)
        verify(trace)
    except TraceError as error:
        yield f"{pair.trace}: {error}"
        return
    for name, wanted in ((pair.trace, f"trace {trace.prop}"), (pair.shorter, shorter(trace))):
        file = files[name]
        if (file.design, file.atomicity, file.obligation) != (trace.design, trace.atomicity, wanted):
            yield f"{name}: {file.design} {file.atomicity} {file.obligation}, where the trace needs {wanted}"


def _wrong(directory: Path, file: File, header: str) -> str | None:
    """What is wrong with one file; None if nothing is."""
    content = (directory / file.name).read_bytes()
    if sha256(content).hexdigest() != file.sha256:
        return "altered: its hash is not the manifest's"
    if file.kind == "trace":
        return None  # executed by _not_shortest
    text = content.decode(errors="replace")
    if not text.startswith(header):
        return "its header is not what the manifest says of it"
    said = answer(text, file.kind)
    return None if said == "unsat" else f"not unsat: {said}"


def answer(text: str, kind: str = "") -> str:
    """What cvc5 answers to a file; or why it is not asked."""
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("strict-parsing", "true")
    solver.setOption("fresh-binders", "true")  # one name is bound in many lemmas
    solver.setOption("enum-inst", "true")  # where matching terms is not enough, all terms: then quantifiers are decided
    solver.setOption("rlimit", str(_LIMIT))
    if kind == "shorter":
        solver.setOption("bitblast", "eager")  # with the next, 80 times faster on long unrollings
        solver.setOption("ite-simp", "true")
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "certificate")
    symbols = parser.getSymbolManager()
    said, asked = "", False
    try:
        while not (command := parser.nextCommand()).isNull():
            if asked or (name := command.getCommandName()) not in _COMMANDS:
                return f"{command} is not a command of a certificate, or not in this place"
            said += command.invoke(solver, symbols)
            asked = name == "check-sat"
    except RuntimeError as error:  # what cvc5 raises where it cannot read on, or the answer is not the expected one
        return str(error).strip().replace("\n", " ")
    return said.strip().replace("\n", " ")
