"""How a row of the matrix is decided: which engine is asked what, in which order.

A row is a design in one atomicity with a fixed number of workers. Its properties are decided together:

1. the search explores the orderly world to the end; what it finds broken is refuted;
2. induction, for any number of rooms, workers, chunks and requests, tries a few lemmas on what is left, enough for
   what most designs keep; where the search has found nothing broken, it tries the whole pool first;
3. the search tries the rougher worlds, as long as they could still break something;
4. induction tries the whole pool on what is still left, then the part of it that the design keeps: for any number, for
   two requests and any number of all else, for two of each; after that it is unknown.

``thorough`` searches worlds 1 to 3 to the end whatever has been proved, and asks Z3 for the length of every
counterexample. An engine that contradicts another raises :class:`Disagreement`: that is no verdict.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from functools import cached_property
from typing import Final

import attrs

from kvlatch.proofs.bmc import Unrolling
from kvlatch.proofs.gaps import Gap
from kvlatch.proofs.induction import Invariant, Theory, keep
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.processes import pool_of_cores
from kvlatch.proofs.search import Search, explore
from kvlatch.proofs.verdicts import Case, Proved, Refuted, Unknown, Verdict, earn
from kvlatch.reference.faults import Refused
from kvlatch.reference.user_design import user_design
from kvlatch.spec.designs import Design
from kvlatch.spec.model import ANY, Action, Machine
from kvlatch.spec.protocols import all_designs, protocol_of
from kvlatch.spec.schema import AnyDesign, Atomicity, Lemma, Property, Protocol, World
from kvlatch.spec.terms import State
from kvlatch.spec.traces import SUFFIX, Trace

HEADLINES: Final = (
    ("seed-control", "locked"), ("fix-b", "locked"), ("fix-a", "split"), ("fix-b", "split"), ("fix-ab", "split"),
)  # fmt: skip
"""The rows whose shortest way to break terminal-sticky Z3 confirms in every run: max, and each fix without a lock."""

LOOSE: Final[dict[str, AnyDesign]] = {}
"""Designs that neither ship nor can be imported: made in this process, of a merge that was extracted."""


class Disagreement(Exception):
    """Two engines answered one question differently: one of them, or the spec, is wrong."""


class UnknownName(ValueError):
    """Nothing is called that, or nothing was selected."""


@attrs.frozen
class Row:
    """One design, by its name or as ``module:NAME``, in one atomicity, with a number of workers (or ranks)."""

    design: str
    atomicity: Atomicity
    workers: int

    def __str__(self) -> str:
        crowd = self.protocol.crowd
        many = f", {self.workers} {crowd}{'s' * (self.workers > 1)}" if crowd else ""
        return f"{self.design} {self.atomicity}{many},"

    @property
    def protocol(self) -> Protocol:
        """The protocol of the design."""
        return protocol_of(design_of(self.design))

    def machine(self, world: World) -> Machine:
        """The design as a machine in a world."""
        sizes = world.instance(self.workers)
        return Machine.of(design_of(self.design), self.atomicity, world.network, sizes, self.protocol)


@attrs.frozen
class Cell:
    """One verdict, and the milliseconds that the engine worked that gave it."""

    row: Row
    prop: str
    verdict: Verdict
    ms: float


def design_of(name: str) -> AnyDesign:
    """A design that ships, by name; or the reader's own, as ``module:NAME``, importable from here."""
    if (known := all_designs().get(name) or LOOSE.get(name)) is not None:
        return known
    if ":" not in name:
        known_names = ", ".join(all_designs())
        raise UnknownName(f"no design is called {name!r}: known are {known_names}; your own is module:NAME")
    try:
        return user_design(name)
    except Refused as error:
        raise UnknownName(str(error)) from error


def room_design(name: str) -> Design:
    """A design that a manager can follow, as :func:`design_of` finds it; UnknownName if it is not of the room protocol.

    Nor can a manager follow one that has rows of its own.
    """
    design = design_of(name)
    if not isinstance(design, Design):
        raise UnknownName(f"{name} is a design of the protocol {design.protocol!r}, and this is about 'room'")
    if design.rows or design.without:
        raise UnknownName(f"{name} has rows of its own, which only prove, show, replay and explore can follow")
    return design


def select(designs: Sequence[str], atomicities: Sequence[str], workers: Sequence[int]) -> list[Row]:
    """The rows of a selection, in the order of the designs; an empty part selects everything."""
    rows = [
        Row(name, atomicity, count)
        for name in designs or all_designs()
        for atomicity in design_of(name).atomicities
        if not atomicities or atomicity in atomicities
        for count in workers or protocol_of(design_of(name)).counts
    ]
    if not rows:
        raise UnknownName(f"no row is left: {', '.join(designs) or 'no design'} claims no {', '.join(atomicities)}")
    return rows


def prove(rows: Sequence[Row], properties: Sequence[str], *, thorough: bool = False) -> Iterator[list[Cell]]:
    """The cells of every row, row by row as they are decided, on two cores."""
    jobs: dict[tuple[str, Atomicity], list[int]] = {}
    for row in (row for row in rows if any(prop.name in properties for prop in row.protocol.properties)):
        jobs.setdefault((row.design, row.atomicity), []).append(row.workers)
    hardest_first = sorted(jobs, key=lambda job: getattr(design_of(job[0]), "clear", ""), reverse=True)
    with pool_of_cores(collect=False) as pool:
        futures = [
            pool.submit(decide, *job, sorted(jobs[job], reverse=True), properties, thorough=thorough)
            for job in hardest_first
        ]
        for future in as_completed(futures):
            yield from future.result()


def decide(
    design: str, atomicity: Atomicity, workers: Sequence[int], properties: Sequence[str], *, thorough: bool = False
) -> list[list[Cell]]:
    """Every property of a design, with most workers first.

    What is proved with two workers holds with a single one too: its runs are those in which the other takes no chunk.
    What could not be proved for any number of them is not tried again.
    """
    decided: list[list[Cell]] = []
    for count in workers:
        row = Row(design, atomicity, count)
        decided.append(_decide_row(row, properties, decided[-1] if decided else None, thorough=thorough))
    return decided


def _decide_row(row: Row, properties: Sequence[str], larger: list[Cell] | None, *, thorough: bool) -> list[Cell]:
    protocol = row.protocol
    wanted = {prop.name: prop for prop in protocol.properties if prop.name in properties}
    deciding = _Row(row, protocol, dict(wanted))
    first, *rougher = protocol.worlds
    deciding.search(first, to_the_end=True)
    if larger is not None:
        deciding.gaps |= {cell.prop: cell.verdict.gap for cell in larger if isinstance(cell.verdict, Unknown)}
        deciding.inherit({cell.prop: cell.verdict for cell in larger if isinstance(cell.verdict, Proved)})
    else:
        if not deciding.decided:
            deciding.induce_with_all()
        deciding.induce_with_few()
    for world in rougher:
        deciding.search(world, to_the_end=thorough and world is not protocol.worlds[-1])
    if larger is None:
        deciding.induce_with_all()
    deciding.induce_with_what_is_kept()
    deciding.confirm(thorough=thorough)
    for name in deciding.open:
        deciding.decided[name] = Cell(row, name, deciding.unknown(name), 0)
    return [deciding.decided[name] for name in properties if name in wanted]


@attrs.define(slots=False)  # cached_property needs a __dict__
class _Row:
    """The state of deciding one row."""

    row: Row
    protocol: Protocol
    open: dict[str, Property]
    decided: dict[str, Cell] = attrs.field(factory=dict)
    taken: set[Action] = attrs.field(factory=set)
    gaps: dict[str, Gap | None] = attrs.field(factory=dict)
    """By property, where the first induction with the whole pool of lemmas fails."""
    searched: list[str] = attrs.field(factory=list)
    """How far each world was searched."""

    @cached_property
    def theory(self) -> Theory:
        """The row's design in the world of proofs, with any number of whatever there can be, as terms."""
        return self._theory_in(self.protocol.everything)

    def _theory_in(self, world: World) -> Theory:
        return AnyNumber.of(attrs.evolve(self.row, workers=ANY).machine(world))

    def search(self, world: World, *, to_the_end: bool) -> None:
        """Refute what this world breaks, and contradict no proof."""
        breakable = [name for name, prop in self.open.items() if prop.requests <= world.sizes.count("request")]
        if not breakable and not to_the_end:
            return
        start = time.perf_counter()
        machine = self.row.machine(world)
        asked = [*self.open.values(), *map(self.protocol.prop, self._proved())]
        seen = explore(machine, asked, until=None if to_the_end else breakable)
        self.taken |= set(seen.taken)
        extent = "to the end" if seen.complete else "until something else was broken"
        self.searched.append(f"{world.name} ({machine.model.instance}): {seen.states} states, {extent}")
        self._contradicted(world, seen)
        for part in world.parts:
            if broken := [name for name in self.open if name in seen.violations]:
                self._search_part(part, broken)
        self._refute(world, machine, seen, 1000 * (time.perf_counter() - start))

    def _search_part(self, part: World, broken: Sequence[str]) -> None:
        """Refute what a world breaks in this gentler part of it, where that can break it, too."""
        start = time.perf_counter()
        machine = self.row.machine(part)
        seen = explore(machine, [self.open[name] for name in broken], until=broken)
        self._refute(part, machine, seen, 1000 * (time.perf_counter() - start))

    def _refute(self, world: World, machine: Machine, seen: Search, ms: float) -> None:
        for name in [name for name in self.open if name in seen.violations]:
            run = tuple((action.name, dict(action.arguments)) for action, _ in seen.trace(name) if action)
            *_, (_, last) = _execute(machine, run)
            if not machine.broken(self.protocol.prop(name), last):
                raise Disagreement(f"{self.row} {name}: the search's run does not end in a bad state")
            self._decide(name, Refuted(world, run), ms)

    def _contradicted(self, world: World, seen: Search) -> None:
        for name in self._proved():
            if name in seen.violations:
                raise Disagreement(
                    f"{self.row}: {name} is proved, and broken in {seen.length(name)} steps: {world.name}"
                )
            if self.protocol.prop(name).kind == "liveness" and seen.cyclic:
                raise Disagreement(f"{self.row}: {name} is proved, and the state graph has a cycle: {world.name}")

    def inherit(self, proofs: Mapping[str, Proved]) -> None:
        """Take over what has been proved for more workers; a counterexample with fewer contradicts it."""
        for name, verdict in proofs.items():
            if name not in self.open:
                raise Disagreement(f"{self.row} {name} is proved for more workers, and broken with these")
            self._decide(name, verdict, 0)

    def induce_with_few(self) -> None:
        """Prove what rests on a few lemmas, all such claims together, or else one by one."""
        names = [name for name in self.open if name in self.protocol.few]
        for group in [names, *([name] for name in names if len(names) > 1)]:
            still = [name for name in group if name in self.open]
            lemmas = dict.fromkeys(lemma for name in still for lemma in self.protocol.few[name])
            if still:
                self._earn(self._invariant([self.protocol.lemma(lemma) for lemma in lemmas]), still)

    def induce_with_all(self) -> None:
        """Prove what the whole pool of lemmas proves."""
        if self.open:
            self._earn(self._invariant(self.protocol.lemmas), list(self.open))

    def _invariant(self, lemmas: Iterable[Lemma]) -> Invariant:
        claims = []
        for lemma in lemmas:
            try:
                claims.append(self.theory.claim(lemma))
            except ValueError as error:
                raise UnknownName(f"{self.row.design}: lemma {lemma.name!r}: {error}") from error
        return Invariant(self.theory, tuple(claims))

    def induce_with_what_is_kept(self) -> None:
        """Prove what follows from the part of the pool that this design keeps, for as many of each sort as can be."""
        for world in self.protocol.proved_in:
            if self.open:
                theory = self.theory if world is self.protocol.everything else self._theory_in(world)
                self._earn(keep(theory, self.protocol.lemmas), list(self.open))
        if self.open:
            theory = Theory.of(self.row.machine(self.protocol.bounded))
            self._earn(keep(theory, self.protocol.lemmas), list(self.open))

    def _earn(self, invariant: Invariant, names: Sequence[str]) -> None:
        start = time.perf_counter()
        case = Case.of(invariant, [self.open[name] for name in names])
        taken = {action.label_in(invariant.theory.machine.model.instance) for action in self.taken}
        verdicts = {name: earn(case, self.open[name], taken) for name in names}
        ms = 1000 * (time.perf_counter() - start) / len(names)
        for name, verdict in verdicts.items():
            if isinstance(verdict, Proved):
                self._decide(name, verdict, ms)
            elif isinstance(verdict, Unknown) and verdict.gap and len(invariant.claims) == len(self.protocol.lemmas):
                self.gaps.setdefault(name, verdict.gap)

    def unknown(self, name: str) -> Unknown:
        """Why a property is neither proved nor refuted: where the induction fails, and how far the search went."""
        found = self.gaps.get(name)
        said = found.lines if found else ["no lemma is kept that the property follows from"]
        lines = ["no proof, and no counterexample in any world", *said, *(f"  searched: {w}" for w in self.searched)]
        return Unknown("\n".join(lines), found, tuple(self.searched))

    def confirm(self, *, thorough: bool) -> None:
        """Ask Z3 for the lengths: of every counterexample, or of the headline's."""
        refuted = {name: cell.verdict for name, cell in self.decided.items() if isinstance(cell.verdict, Refuted)}
        if not thorough:
            headline = (self.row.design, self.row.atomicity) in HEADLINES and self.row.workers == 1
            refuted = {name: verdict for name, verdict in refuted.items() if headline and name == "terminal-sticky"}
        for world in self.protocol.all_worlds:
            lengths = {name: verdict.length for name, verdict in refuted.items() if verdict.world == world}
            if lengths:
                runs = Unrolling.of(self.row.machine(world)).shortest(
                    [self.protocol.prop(name) for name in lengths], max(lengths.values())
                )
                for name, length in lengths.items():
                    z3_says = len(runs[name]) if name in runs else "more"
                    if z3_says != length:
                        raise Disagreement(f"{self.row}: {name} takes {length} steps by search, {z3_says} by Z3")

    def _proved(self) -> list[str]:
        return [name for name, cell in self.decided.items() if isinstance(cell.verdict, Proved)]

    def _decide(self, name: str, verdict: Verdict, ms: float) -> None:
        del self.open[name]
        self.decided[name] = Cell(self.row, name, verdict, ms)


def _execute(machine: Machine, run: Sequence[tuple[str, Mapping[str, int]]]) -> Iterator[tuple[Action | None, State]]:
    """Take a run's steps on the concrete semantics."""
    state = machine.initial()
    yield None, state
    for name, arguments in run:
        action = machine.model.action(name, arguments)
        if action is None:
            raise Disagreement(f"the search takes {name}, which the spec does not have")
        state = machine.step(state, action)
        yield action, state


def trace_of(cell: Cell) -> Trace:
    """The counterexample of a refuted cell, as a trace that can be written; ValueError for any other cell."""
    if not isinstance(cell.verdict, Refuted):
        raise ValueError(f"{cell.row} {cell.prop} is not refuted: there is no counterexample")
    row, world = cell.row, cell.verdict.world
    machine = row.machine(world)
    run = list(_execute(machine, cell.verdict.run))
    design, prop = design_of(row.design), machine.protocol.prop(cell.prop)
    return Trace.of(design, row.atomicity, world.network, world.instance(row.workers), prop, run)


def trace_name(cell: Cell) -> str:
    """The file name of a counterexample: what goes without saying (locked, one worker, two ranks) is not said."""
    row = cell.row
    atomicity = [row.atomicity] if row.atomicity != "locked" else []
    crowd = [f"{row.workers}-{row.protocol.crowd}s"] if row.workers != row.protocol.counts[0] else []
    return ".".join([design_of(row.design).name, *atomicity, *crowd, cell.prop]) + SUFFIX
