"""What is proved of the CUDA kernels: their PTX, on each architecture, does what its contract says.

``contracts.py`` says what that is, ``thread.py`` what has to be shown and how. A question is one obligation of one
instruction, on whatever path, negated. If Z3 and cvc5 both say unsat it is proved; if Z3 says sat it is refuted, with
the instruction and the values; anything else is unknown. ``planted.py`` has the kernels with one bug each that show
that a proof can fail.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from multiprocessing import get_context
from typing import Final, Literal

import attrs
import z3

from kvlatch.proofs.processes import pool_of_cores
from kvlatch.proofs.ptx import reader as ptx
from kvlatch.proofs.ptx.contracts import BY_KERNEL, Contract
from kvlatch.proofs.ptx.planted import PLANTED, Planted
from kvlatch.proofs.ptx.reader import Instruction, Unsupported
from kvlatch.proofs.ptx.thread import Execution, Obligation, new_solver, second_opinion
from kvlatch.reference.arrays.kernels import CannotCompile, compiled
from kvlatch.reference.arrays.tables import NOTHING, TOMBSTONE
from kvlatch.spec.status import STATUS

ARCHITECTURES: Final = (80, 90, 100)
"""The compute capabilities, times ten, for which the kernels are proved."""
TRUSTED: Final = (
    "All this is about the PTX that NVRTC emits, for any number of threads and retries; trusted are ptxas and the GPU, "
    "which run it, proofs/ptx/reader.py and proofs/ptx/thread.py, which say what it means, and the launch in "
    "reference/arrays/kernels.py."
)
Verdict = Literal["proved", "refuted", "unknown", "unsupported", "not checked"]


@attrs.frozen
class Finding:
    """One obligation of one kernel on one architecture, over all instructions that it is about.

    Refuted: ``at`` is the first instruction, in the order of the text, for which it is wrong, and ``values`` are an
    example. Otherwise ``reason`` says why it is not proved, or that another architecture has the same PTX, which is.
    ``planted`` names the bug of a kernel that has one.
    """

    kernel: str
    architecture: int
    obligation: str
    verdict: Verdict
    ms: float = 0.0
    questions: int = 0
    at: str = ""
    values: Mapping[str, str] = attrs.field(factory=dict)
    reason: str = ""
    planted: str = ""

    def __str__(self) -> str:
        bug = f" with {self.planted}" if self.planted else ""
        shown = ", ".join(f"{name} {value}" for name, value in self.values.items())
        why = self.reason or (f"{self.at}: {shown}" if self.at else "")
        head = f"{self.kernel}{bug} sm_{self.architecture}: {self.obligation} {self.verdict}"
        return f"{head}: {why}" if why else head


def prove_kernel(text: str, contract: Contract, architecture: int) -> list[Finding]:
    """Every obligation of one kernel in a PTX module, or one finding that says what in it is unsupported."""
    start = time.perf_counter()
    try:
        execution = _execute(text, contract)
    except Unsupported as why:
        ms = 1000 * (time.perf_counter() - start)
        return [Finding(contract.kernel, architecture, "all", "unsupported", ms, reason=str(why))]
    return [_judge(execution, name, architecture) for name in execution.names]


def _execute(text: str, contract: Contract) -> Execution:
    kernels = ptx.read(text)
    if contract.kernel not in kernels:
        raise Unsupported(f"the module has no kernel {contract.kernel}")
    return Execution(kernels[contract.kernel], contract)


def _judge(execution: Execution, name: str, architecture: int) -> Finding:
    """One obligation, instruction by instruction."""
    start = time.perf_counter()
    mine: dict[Instruction, list[Obligation]] = {}
    for obligation in sorted(execution.obligations, key=lambda one: one.instruction.line):
        if obligation.name == name:
            mine.setdefault(obligation.instruction, []).append(obligation)
    finding = Finding(execution.kernel.name, architecture, name, "proved", questions=len(mine))
    if not mine:
        finding = attrs.evolve(finding, verdict="unknown", reason="no instruction of the kernel is about this")
    for instruction, obligations in mine.items():
        solver = new_solver()
        solver.add(*execution.world.facts, z3.Or(*(obligation.denied for obligation in obligations)))
        answer = str(solver.check())
        if answer == "sat":
            solver.add(*execution.world.exact)
            answer = str(solver.check())
        if answer == "sat":
            values = _example(execution.contract, solver.model(), obligations)
            finding = attrs.evolve(finding, verdict="refuted", at=str(instruction), values=values, reason="")
            break
        second = second_opinion(solver) if answer == "unsat" else "not asked"
        if second != "unsat":
            finding = attrs.evolve(finding, verdict="unknown", reason=f"{instruction}: Z3 says {answer}, cvc5 {second}")
    return attrs.evolve(finding, ms=1000 * (time.perf_counter() - start))


def _example(contract: Contract, model: z3.ModelRef, obligations: Iterable[Obligation]) -> dict[str, str]:
    """The values of a model, on the path that it takes."""
    taken = (o for o in obligations if z3.is_true(model.eval(o.denied, model_completion=True)))
    terms = next(taken).values
    numbers = {name: model.eval(term, model_completion=True).as_long() for name, term in terms.items()}
    return {name: _told(contract, name, number) for name, number in numbers.items()}


def _told(contract: Contract, name: str, number: int) -> str:
    """A value of a model: a status by its name, an entry by its three fields."""
    if contract.kernel == "write_entry" and name in ("current", "stores", "spec", "saw"):
        request, first = number >> 8 & 255, number >> 16
        return f"{_status(number & 255)} of request {request}" + (
            f" after {_status(first)}" if first != NOTHING else ""
        )
    return _status(number) if name in ("incoming", "read", "reports") else str(number)


def _status(number: int) -> str:
    return (*STATUS, "Tombstone")[number] if number <= TOMBSTONE else str(number)


def prove_kernels(architectures: Sequence[int] = ARCHITECTURES) -> list[Finding]:
    """Every obligation of every kernel on each architecture; not checked where NVRTC is missing."""
    with pool_of_cores(get_context("spawn")) as pool:
        return list(chain.from_iterable(pool.map(prove, BY_KERNEL, repeat(tuple(architectures)))))


def refute_planted(architecture: int = 90) -> list[Finding]:
    """For each planted kernel the obligation that it must break: ``refuted`` only if at the right instruction."""
    with pool_of_cores(get_context("spawn")) as pool:
        return list(pool.map(refute, PLANTED, repeat(architecture)))


def prove(kernel: str, architectures: Sequence[int]) -> list[Finding]:
    """Every obligation of one kernel on each architecture, where the PTX is the same to the letter, once."""
    findings: list[Finding] = []
    proved: dict[str | None, list[Finding]] = {}
    for architecture in architectures:
        try:
            text = compiled(architecture).ptx
        except CannotCompile as why:
            findings.append(Finding(kernel, architecture, "all", "not checked", reason=str(why)))
            continue
        own = ptx.texts(text).get(kernel)
        mine = [
            attrs.evolve(finding, architecture=architecture, ms=0.0, reason=f"the PTX of sm_{finding.architecture}")
            for finding in proved.get(own, [])
        ] or prove_kernel(text, BY_KERNEL[kernel], architecture)
        if all(finding.verdict == "proved" for finding in mine):
            proved.setdefault(own, mine)
        findings += mine
    return findings


def refute(planted: Planted, architecture: int) -> Finding:
    """The obligation that one planted kernel must break."""
    nothing = Finding(planted.kernel, architecture, planted.obligation, "not checked", planted=planted.name)
    try:
        execution = _execute(compiled(architecture, planted.source()).ptx, BY_KERNEL[planted.kernel])
    except CannotCompile as why:
        return attrs.evolve(nothing, reason=str(why))
    except Unsupported as why:
        return attrs.evolve(nothing, verdict="unsupported", reason=str(why))
    found = attrs.evolve(_judge(execution, planted.obligation, architecture), planted=planted.name)
    if found.verdict == "refuted" and f": {planted.instruction}" not in found.at:
        return attrs.evolve(found, verdict="unknown", reason=f"refuted elsewhere, at {found.at}")
    return found


# --------------------------------------------------------------------------------------------------------------------
# Telling


def lines(findings: Sequence[Finding]) -> list[str]:
    """What a person reads: a line for each kernel and architecture, one for all that is not as it should be."""
    told = []
    proper = [finding for finding in findings if not finding.planted]
    for kernel, architecture in dict.fromkeys((f.kernel, f.architecture) for f in proper):
        mine = [f for f in proper if (f.kernel, f.architecture) == (kernel, architecture)]
        if proved := [f for f in mine if f.verdict == "proved"]:
            names = ", ".join(f.obligation for f in proved)
            asked, ms = sum(f.questions for f in proved), sum(f.ms for f in proved)
            how = proved[0].reason or f"{asked} questions, {ms:.0f} ms"
            told.append(f"{kernel:<17} sm_{architecture:<4} proved: {names} ({how})")
        told += [str(f) for f in mine if f.verdict != "proved"]
    told += [str(finding) for finding in findings if finding.planted]
    return [*told, TRUSTED]


def as_json(finding: Finding) -> dict[str, object]:
    """One finding, for machines; ``ms`` are milliseconds of both solvers."""
    return attrs.asdict(finding) | {"ms": round(finding.ms, 1)}


def exit_code(findings: Iterable[Finding]) -> int:
    """0: all proved, and each planted kernel refuted; 1: a kernel is refuted; 3: something is unknown; 4: not checked.

    A planted kernel that is not refuted is unknown: then a proof of the others is worth nothing.
    """
    verdicts = {_as_it_counts(finding) for finding in findings}
    for verdict, code in (("refuted", 1), ("unknown", 3), ("unsupported", 3), ("not checked", 4)):
        if verdict in verdicts:
            return code
    return 0


def _as_it_counts(finding: Finding) -> Verdict:
    if not finding.planted or finding.verdict == "not checked":
        return finding.verdict
    return "proved" if finding.verdict == "refuted" else "unknown"
