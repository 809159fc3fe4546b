"""Certificates, checked again by cvc5 alone: nothing that is imported here imports Z3.

A certificate directory is what ``certificates.py`` writes: one SMT-LIB 2.6 file per obligation, each to be
unsatisfiable; traces; and ``manifest.json``, which says which files a theorem consists of. It may be packed into one
archive, as those are that come with this package (:data:`SHIPPED`). :func:`recheck` demands that

* the manifest is about the spec that is installed, by its hash;
* no file is missing, altered, added, or listed and then not used;
* each theorem lists every obligation that the spec's own rows demand, once, and no other;
* each file begins with the header that the manifest implies, does nothing but declare, define, assert and ask once, at
  its end, and cvc5 answers unsat within a resource limit;
* each trace is a run of the spec to a state that breaks its property, and has a certificate that no shorter one does:
  one file for all traces of one instance.

What it cannot see is whether the assertions are those of the obligation that the header names: whoever forges a file
and its hash can forge both. ``certificates.same`` computes every text again, with Z3, and compares.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import attrs
import cvc5
from attrs.validators import deep_iterable, instance_of

import kvlatch.proofs
import kvlatch.spec
from kvlatch.proofs.archives import Malformed, opened
from kvlatch.proofs.processes import pool_of_cores
from kvlatch.proofs.worlds import scope_of
from kvlatch.spec.model import build
from kvlatch.spec.protocols import all_designs, protocol_of
from kvlatch.spec.schema import ANY, Network, Protocol, Sizes
from kvlatch.spec.terms import TRUE
from kvlatch.spec.traces import Trace, TraceError, read, verify

FORMAT: Final = 2
MANIFEST: Final = "manifest.json"
SHIPPED: Final = Path(__file__).with_name("certificates.tar.gz")
"""The certificates of every pinned verdict."""

_COMPUTED_FROM: Final = {
    kvlatch.spec: (
        "changes", "clauses", "contract", "decode", "designs", "lease", "lemmas", "merges", "model", "properties",
        "protocol", "protocols", "ranks", "room", "router", "schema", "stages", "status", "steps", "terms", "timing",
    ),
    kvlatch.proofs: (
        "bmc", "durations", "induction", "obligations", "parametric", "ranking", "settlement", "solvers", "sorts",
        "terms", "worlds",
    ),
}  # fmt: skip
"""The modules that obligations are computed from."""
_COMMANDS: Final = {
    "set-info", "set-logic", "declare-sort", "declare-const", "declare-fun", "define-fun", "assert", "check-sat",
}  # fmt: skip
_LIMIT: Final = 10_000_000
"""cvc5's resource limit for one file; the hardest needs an eighth of it."""
_text: Any = attrs.field(validator=instance_of(str))
_texts: Any = attrs.field(converter=tuple, validator=deep_iterable(instance_of(str)))


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
        """The first word of the obligation: initial, step, time, order, property, rank, fair, shorter; or trace."""
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
    """Counterexamples of one design in one instance, and the file that says that none of them could be shorter."""

    traces: tuple[str, ...] = _texts
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
    counterexamples: int
    files: int
    findings: tuple[str, ...]


def recheck(path: Path, progress: Callable[[int, int], object] = lambda _done, _all: None) -> Report:
    """Check a certificate directory, or an archive; ``progress`` is told how many files are done, and of how many.

    Raises Malformed if there is nothing that could be checked: no certificates, or those of another spec.
    """
    with opened(path) as directory:
        return _recheck(directory, Manifest.read(directory), progress)


def _recheck(directory: Path, manifest: Manifest, progress: Callable[[int, int], object]) -> Report:
    if manifest.spec != (installed := spec_hash()):
        raise Malformed(f"{MANIFEST}: about the spec {manifest.spec}, and {installed} is installed")
    present = files_in(directory)
    findings = [
        *_listing(manifest, present),
        *(finding for theorem in manifest.theorems for finding in _incomplete(theorem, manifest)),
        *(finding for alike in manifest.shortest for finding in _not_shortest(alike, manifest, directory, present)),
    ]
    listed = [file for file in manifest.files if file.name in present]
    # The longest first, so that the two processes end together.
    listed.sort(key=lambda file: (directory / file.name).stat().st_size, reverse=True)
    with pool_of_cores() as pool:
        asked = {file: pool.submit(_wrong, directory, file, manifest.header(file)) for file in listed}
        for done, _ in enumerate(as_completed(asked.values()), 1):
            progress(done, len(listed))
    findings += [f"{file.name}: {why}" for file, asking in asked.items() if (why := asking.result())]
    counterexamples = sum(len(alike.traces) for alike in manifest.shortest)
    return Report(len(manifest.theorems), counterexamples, len(listed), tuple(findings))


def spec_hash() -> str:
    """The SHA-256 of every source that obligations are computed from, names included."""
    digest = sha256()
    for package, modules in _COMPUTED_FROM.items():
        for module in modules:
            source = Path(str(package.__file__)).with_name(f"{module}.py")
            line = f"{source.parent.name}/{source.name} {sha256(source.read_bytes()).hexdigest()}\n"
            digest.update(line.encode())
    return digest.hexdigest()


def files_in(directory: Path) -> set[str]:
    """The names of all files in a directory but the manifest."""
    names = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    return names - {MANIFEST}


def scopes(protocol: Protocol) -> dict[str, tuple[Sizes, Network]]:
    """The scopes of proofs about a protocol, and the instance and network that each is about."""
    counts = range(1, 9 if protocol.crowd else 2)
    about = [(protocol.bounded, count) for count in counts] + [(world, ANY) for world in protocol.proved_in]
    found = [(world.instance(count), world.network) for world, count in about]
    return {scope_of(protocol, size, network): (size, network) for size, network in found}


def demanded(theorem: Theorem) -> list[str]:
    """The names of the obligations of a theorem, from the rows of the spec; Malformed for a name that nothing has."""
    design = all_designs().get(theorem.design)
    atomicity = next((level for level in design.atomicities if level == theorem.atomicity), None) if design else None
    protocol = protocol_of(design) if design else None
    scope = scopes(protocol).get(theorem.scope) if protocol else None
    prop = next((prop for prop in protocol.properties if prop.name == theorem.prop), None) if protocol else None
    if design is None or protocol is None or atomicity is None or prop is None or scope is None:
        raise Malformed("the spec has no such design, atomicity, property or scope")
    size, network = scope
    model = build(size, protocol).of(design, atomicity, network)
    actions = [action.label for action in model.actions]
    others = ["leave", "elsewhere"] if model.any and protocol.home else []
    names = ["initial", *(f"step {name}" for name in (*actions, *others))]
    if model.timed:
        orders = [f"order {action.label}" for action in model.actions if action.order is not TRUE]
        names += ["time begins", "time passes", *(f"time {name}" for name in actions), *orders]
    if prop.kind == "safety":
        return [*names, f"property {prop.name}"]
    if protocol.home is None or protocol.crowd is None:
        stuck = [""]
    elif model.any:
        stuck = ["", ", busy"]
    else:
        stuck = [f", {count + 1} at work" for count in size.named(protocol.crowd)]
    ranks = [*(f"rank {name}" for name in (*actions, *others)), *(f"fair {name}" for name in others)]
    return [*names, *ranks, *(f"property {prop.name}{case}" for case in stuck)]


def shorter(traces: Sequence[Trace]) -> str:
    """The name of the obligation that no run in the instance of some traces is bad in fewer steps than they have."""
    instance, network = traces[0].instance, traces[0].network
    bounds = ", ".join(f"{trace.prop} within {len(trace.steps) - 2} steps" for trace in traces)
    return f"shorter {bounds}; {instance}, {network} network"


def _listing(manifest: Manifest, present: set[str]) -> Iterator[str]:
    """Files and theorems that are missing, added, listed twice or not used."""
    names = [file.name for file in manifest.files]
    used = {name for theorem in manifest.theorems for name in theorem.files}
    used |= {name for alike in manifest.shortest for name in (*alike.traces, alike.shorter)}
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


def _not_shortest(alike: Shortest, manifest: Manifest, directory: Path, present: set[str]) -> Iterator[str]:
    """What is wrong with counterexamples and the claim that none could be shorter."""
    files = {file.name: file for file in manifest.files if file.name in present}
    if not {*alike.traces, alike.shorter} <= files.keys():
        return  # missing, and reported as such
    traces: dict[str, Trace] = {}
    for name in alike.traces:
        try:
            traces[name] = read(directory / name)
            verify(traces[name])
        except TraceError as error:
            yield f"{name}: {error}"
            return
    about = {(trace.design, trace.atomicity, trace.network, trace.instance) for trace in traces.values()}
    if len(about) != 1:
        yield f"{alike.shorter}: serves traces of {len(about)} instances, not of one"
        return
    wanted = {name: f"trace {trace.prop}" for name, trace in traces.items()}
    wanted[alike.shorter] = shorter(list(traces.values()))
    ((design, atomicity, *_),) = about
    for name, obligation in wanted.items():
        file = files[name]
        if (file.design, file.atomicity, file.obligation) != (design, atomicity, obligation):
            said = f"{file.design} {file.atomicity} {file.obligation}"
            yield f"{name}: {said}, where the traces need {design} {atomicity} {obligation}"


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
