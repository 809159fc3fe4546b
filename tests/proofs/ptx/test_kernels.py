"""What the solvers say of the kernels' PTX, and that they can say otherwise."""

from __future__ import annotations

import json

import attrs
import pytest
import z3

from kvlatch.proofs.ptx import kernels, thread
from kvlatch.proofs.ptx.contracts import BY_KERNEL, CONTRACTS, World, merged
from kvlatch.proofs.ptx.kernels import ARCHITECTURES, Finding, as_json, exit_code, lines, prove_kernel
from kvlatch.proofs.ptx.planted import PLANTED, Planted
from kvlatch.reference.arrays.kernels import CannotCompile, Compiled, compiled
from kvlatch.spec.merges import failure_overrides, first_terminal_wins
from kvlatch.spec.status import KVPoll


@pytest.fixture(scope="module")
def sm_90() -> str:
    """The PTX of all kernels for one architecture; skip where NVRTC is not installed, and say so."""
    try:
        return compiled(90).ptx
    except CannotCompile as error:
        pytest.skip(str(error))


@pytest.mark.thorough
@pytest.mark.usefixtures("sm_90")
def test_every_obligation_is_proved_on_every_architecture() -> None:
    """Both solvers say unsat to every question; nothing is left out, and the report ends with what is trusted."""
    findings = kernels.prove_kernels()
    assert [str(finding) for finding in findings if finding.verdict != "proved"] == []
    common = {"bounds", "alignment", "access", "address", "step", "once", "exit"}
    proved: dict[tuple[str, int | None], set[str]] = {}
    for finding in findings:
        proved.setdefault((finding.kernel, finding.architecture), set()).add(finding.obligation)
    for contract in CONTRACTS:
        more = {"result", "retry"} if contract.kernel == "write_status" else set()
        assert all(proved[contract.kernel, architecture] == common | more for architecture in ARCHITECTURES)
    assert proved["fold_statuses", None] == proved["first_occurrence", None] == {"order"}
    told = lines(findings)
    assert len(told) == len(CONTRACTS) * len(ARCHITECTURES) + 3
    assert "trusted are ptxas and the GPU" in told[-1]
    assert exit_code(findings) == 0


def test_the_same_ptx_is_proved_once_and_a_refutation_never_shared(sm_90: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof stands for another architecture with the same text; what is refuted is told with its own lines."""
    bad = _edited(sm_90, "first_occurrence", "atom.global.min.u64", "atom.global.max.u64")
    module = {80: "\n" + bad, 90: bad, 100: sm_90, 120: "\n" + sm_90}
    monkeypatch.setattr(kernels, "second_opinion", lambda _: "unsat")  # for speed: what cvc5 says is not the point
    monkeypatch.setattr(kernels, "compiled", lambda architecture: Compiled(architecture, module[architecture], b""))
    findings = {(f.architecture, f.obligation): f for f in kernels.prove("first_occurrence", list(module))}
    lines_ = [int(findings[target, "step"].at.split(":")[0].removeprefix("line ")) for target in (80, 90)]
    assert lines_[0] == lines_[1] + 1
    assert findings[100, "step"].reason == ""
    assert findings[120, "step"].reason == "the PTX of sm_100"


@pytest.mark.usefixtures("sm_90")
def test_a_kernel_is_proved_on_one_architecture() -> None:
    """The one that every write goes through: a sample of the test above."""
    findings = kernels.prove("write_status", (90,))
    assert {finding.obligation for finding in findings} == {
        "bounds", "alignment", "access", "address", "step", "once", "exit", "result", "retry",
    }  # fmt: skip
    assert [str(finding) for finding in findings if finding.verdict != "proved"] == []


@pytest.mark.usefixtures("sm_90")
def test_a_planted_bug_of_each_kernel_is_refuted_at_its_instruction() -> None:
    """A sample of the test below."""
    sample = {planted.kernel: planted for planted in PLANTED}
    assert sample.keys() == BY_KERNEL.keys()
    found = {planted.name: kernels.refute(planted, 90) for planted in sample.values()}
    assert {name: finding.verdict for name, finding in found.items()} == dict.fromkeys(found, "refuted")
    assert all(planted.instruction in found[planted.name].at for planted in sample.values())


@pytest.mark.thorough
@pytest.mark.usefixtures("sm_90")
def test_every_planted_bug_is_refuted_at_its_instruction() -> None:
    """Each bug shows in the obligation that it is for, at the instruction that has it."""
    findings = kernels.refute_planted()
    assert {finding.planted: finding.verdict for finding in findings} == {p.name: "refuted" for p in PLANTED}
    assert all(p.instruction in found.at for p, found in zip(PLANTED, findings, strict=True))
    assert exit_code(findings) == 0


@pytest.mark.usefixtures("sm_90")
def test_the_incident_is_told_with_its_values() -> None:
    """``atomicMax`` is refuted by a pair of statuses, whichever the solver picks, that Fix A merges in another way."""
    found = kernels.refute(BY_NAME["atomic-max"], 90)
    assert "atom.global.max.s32" in found.at
    numbers = {"Absent": 5, **KVPoll.__members__}  # as the kernel has them: no entry is the greatest
    current, incoming, stores, spec = (found.values[name] for name in ("current", "incoming", "stores", "spec"))
    assert numbers[stores] == max(numbers[current], numbers[incoming])
    merged = first_terminal_wins(None if current == "Absent" else KVPoll[current], KVPoll[incoming])
    assert spec == (current if merged == "keep" else KVPoll(merged).name)
    assert stores != spec


BY_NAME = {planted.name: planted for planted in PLANTED}


@pytest.mark.usefixtures("sm_90")
def test_a_planted_kernel_without_a_bug_is_an_error() -> None:
    """If a bug no longer shows, nothing says that the proofs can fail: unknown, not a pass."""
    harmless = Planted("harmless", "write_status", "stands[i] = next", "stands[i] = (Byte)next", "step", "atom")
    found = kernels.refute(harmless, 90)
    assert found.verdict == "proved"
    assert exit_code([found]) == 3


@pytest.mark.usefixtures("sm_90")
def test_a_bug_that_shows_elsewhere_is_an_error() -> None:
    """A planted kernel is refuted at the instruction that it names, or not as expected."""
    elsewhere = attrs.evolve(BY_NAME["wrong-report"], instruction="atom.global.cas")
    found = kernels.refute(elsewhere, 90)
    assert (found.verdict, found.reason.split(",")[0]) == ("unknown", "refuted elsewhere")


def test_a_passage_that_is_gone_is_an_error() -> None:
    """A planted kernel whose passage is no longer in the source raises with its name."""
    gone = attrs.evolve(BY_NAME["atomic-max"], old="atomicFoo")
    with pytest.raises(ValueError, match="planted kernel atomic-max"):
        gone.source()


def test_another_merge_is_refuted(sm_90: str) -> None:
    """The kernel is first-terminal-wins: held against failure-overrides it fails at Failed over Success."""

    def step(world: World, current: z3.BitVecRef) -> z3.BitVecRef:
        return merged(current, world.read("incoming"), failure_overrides)

    findings = prove_kernel(sm_90, attrs.evolve(BY_KERNEL["write_status"], step=step), 90)
    refuted = {finding.obligation: finding for finding in findings if finding.verdict == "refuted"}
    assert (refuted["exit"].values["saw"], refuted["exit"].values["incoming"]) == ("Success", "Failed")


# --------------------------------------------------------------------------------------------------------------------
# What is not proved is not called so


def _edited(text: str, kernel: str, old: str, new: str) -> str:
    """A module with one passage of one kernel replaced."""
    head, entry, body = text.partition(f".entry {kernel}(")
    assert old in body
    return head + entry + body.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("atom.global.min.u64", "atom.global.inc.u64", ": not known"),
        ("atom.global.min.u64", "atom.acquire.gpu.global.min.u64", ": not known"),
        ("cvta.to.global.u64", "bfind.u64", "bfind.u64 %rd11, %rd5: not known in this form"),
        ("ld.volatile.global.u64", "ld.volatile.global.u32", "u32 is not an element of first_of"),
        (",\n\t.param .u64 first_occurrence_param_4", "", "has 4 parameters, not 5"),
        ("ld.param.u64", "ld.param.u32", "not a parameter of 64 bits"),
        ("\t@%p1 bra", "\tbra", "never reached, so nothing is known of it"),
        ("[%rd2]", "[%rd3]", "the address is not one in an array"),
    ],
)
def test_what_is_unsupported_is_told_and_not_proved(sm_90: str, old: str, new: str, words: str) -> None:
    """PTX that has no meaning here, or that nothing would be known of, gives one finding with the reason, exit 3."""
    findings = prove_kernel(_edited(sm_90, "first_occurrence", old, new), BY_KERNEL["first_occurrence"], 90)
    assert [(finding.verdict, words in finding.reason) for finding in findings] == [("unsupported", True)]
    assert exit_code(findings) == 3


def test_a_kernel_that_is_not_there_is_unsupported(sm_90: str) -> None:
    """A module without the kernel of a contract is not proved."""
    (finding,) = prove_kernel(sm_90.replace("write_status", "write_other"), BY_KERNEL["write_status"], 90)
    assert (finding.verdict, finding.reason) == ("unsupported", "the module has no kernel write_status")


def test_a_kernel_that_never_writes_is_refuted(sm_90: str) -> None:
    """Without its atomic, what is about the write is unknown rather than vacuously proved, and the exit is refuted."""
    text = _edited(sm_90, "first_occurrence", "atom.global.min.u64", "add.s64 %rd1, %rd1, 0; //")
    findings = {f.obligation: f for f in prove_kernel(text, BY_KERNEL["first_occurrence"], 90)}
    assert (findings["step"].verdict, findings["once"].verdict) == ("unknown", "unknown")
    assert findings["exit"].verdict == "refuted"


def test_a_limit_is_not_a_proof(sm_90: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Z3 does not decide within its limit is unknown."""
    monkeypatch.setitem(thread.LIMITS, "z3", 1)
    findings = prove_kernel(sm_90, BY_KERNEL["first_occurrence"], 90)
    assert {finding.verdict for finding in findings if finding.obligation == "step"} == {"unknown"}
    assert exit_code(findings) == 3


def test_one_solver_is_not_enough(sm_90: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cvc5 does not say unsat as well, the verdict is unknown, and both answers are told."""
    monkeypatch.setattr(kernels, "second_opinion", lambda _: "unknown")
    findings = prove_kernel(sm_90, BY_KERNEL["first_occurrence"], 90)
    assert {finding.verdict for finding in findings} == {"unknown"}
    assert all(finding.reason.endswith("Z3 says unsat, cvc5 unknown") for finding in findings)


def test_without_nvrtc_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NVRTC is missing, the reason is told and the exit code is 4."""

    def missing(*_: object) -> object:
        raise CannotCompile("NVRTC is not installed")

    monkeypatch.setattr(kernels, "compiled", missing)
    findings = [*kernels.prove("write_status", [90]), kernels.refute(PLANTED[0], 90)]
    assert [(f.verdict, f.reason) for f in findings] == [("not checked", "NVRTC is not installed")] * 2
    assert exit_code(findings) == 4
    assert lines(findings)[0] == "write_status sm_90: all not checked: NVRTC is not installed"


def test_a_finding_is_json(sm_90: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field of a finding, the values of a refutation included, survives JSON."""
    monkeypatch.setattr(kernels, "second_opinion", lambda _: "unsat")  # for speed: what cvc5 says is not the point
    text = _edited(sm_90, "first_occurrence", "atom.global.min.u64", "atom.global.max.u64")
    found = next(f for f in prove_kernel(text, BY_KERNEL["first_occurrence"], 90) if f.verdict == "refuted")
    told = json.loads(json.dumps(as_json(found)))
    assert (told["kernel"], told["architecture"], told["obligation"]) == ("first_occurrence", 90, "step")
    assert int(told["values"]["stores"]) > int(told["values"]["spec"])


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["proved"], 0), (["proved", "refuted", "unknown"], 1), (["proved", "unknown", "not checked"], 3),
        (["proved", "unsupported"], 3), (["proved", "not checked"], 4),
    ],
)  # fmt: skip
def test_the_worst_finding_gives_the_exit_code(verdicts: list[kernels.Verdict], code: int) -> None:
    """Refuted before unknown before not checked; all proved is 0."""
    assert exit_code(Finding("write_status", 90, "step", verdict) for verdict in verdicts) == code
