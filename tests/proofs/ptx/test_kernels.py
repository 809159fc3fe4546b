"""What the solvers say of the kernels' PTX, and that they can say otherwise."""

from __future__ import annotations

import json

import attrs
import pytest
import z3

from kvlatch.proofs.ptx import kernels, thread
from kvlatch.proofs.ptx.contracts import BY_KERNEL, CONTRACTS, World, written
from kvlatch.proofs.ptx.kernels import ARCHITECTURES, Finding, as_json, exit_code, lines, prove_kernel
from kvlatch.proofs.ptx.planted import PLANTED, Planted
from kvlatch.reference.arrays.kernels import CannotCompile, Compiled, compiled


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
        more = {"result", "retry"} if contract.kernel == "write_entry" else set()
        assert all(proved[contract.kernel, architecture] == common | more for architecture in ARCHITECTURES)
    told = lines(findings)
    assert len(told) == len(CONTRACTS) * len(ARCHITECTURES) + 1
    assert "trusted are ptxas and the GPU" in told[-1]
    assert exit_code(findings) == 0


def test_the_same_ptx_is_proved_once_and_a_refutation_never_shared(sm_90: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof stands for another architecture with the same text; what is refuted is told with its own lines."""
    bad = _edited(sm_90, "mark_rooms", "atom.global.or.b32", "atom.global.max.u32")
    module = {80: "\n" + bad, 90: bad, 100: sm_90, 120: "\n" + sm_90}
    monkeypatch.setattr(kernels, "second_opinion", lambda _: "unsat")  # for speed: what cvc5 says is not the point
    monkeypatch.setattr(kernels, "compiled", lambda architecture: Compiled(architecture, module[architecture], b""))
    findings = {(f.architecture, f.obligation): f for f in kernels.prove("mark_rooms", list(module))}
    lines_ = [int(findings[target, "step"].at.split(":")[0].removeprefix("line ")) for target in (80, 90)]
    assert lines_[0] == lines_[1] + 1
    assert findings[100, "step"].reason == ""
    assert findings[120, "step"].reason == "the PTX of sm_100"


@pytest.mark.usefixtures("sm_90")
def test_a_kernel_is_proved_on_one_architecture() -> None:
    """A sample of the test above."""
    findings = kernels.prove("mark_rooms", (90,))
    assert {finding.obligation for finding in findings} == {
        "bounds", "alignment", "access", "address", "step", "once", "exit",
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
    """``atomicMax`` is refuted by an entry that is the larger number and not what the update leaves."""
    found = kernels.refute(BY_NAME["atomic-max"], 90)
    assert "atom.global.max.u32" in found.at
    current, stores, spec = (found.values[name] for name in ("current", "stores", "spec"))
    assert " of request " in current
    assert stores != spec


BY_NAME = {planted.name: planted for planted in PLANTED}


@pytest.mark.usefixtures("sm_90")
def test_a_planted_kernel_without_a_bug_is_an_error() -> None:
    """If a bug no longer shows, nothing says that the proofs can fail: unknown, not a pass."""
    harmless = Planted("harmless", "mark_rooms", "marks |= Suspect", "marks += Suspect", "step", "atom")
    found = kernels.refute(harmless, 90)
    assert found.verdict == "proved"
    assert exit_code([found]) == 3


@pytest.mark.usefixtures("sm_90")
def test_a_bug_that_shows_elsewhere_is_an_error() -> None:
    """A planted kernel is refuted at the instruction that it names, or not as expected."""
    elsewhere = attrs.evolve(BY_NAME["lost-mark"], instruction="atom.global.or")
    found = kernels.refute(elsewhere, 90)
    assert (found.verdict, found.reason.split(",")[0]) == ("unknown", "refuted elsewhere")


def test_a_passage_that_is_gone_is_an_error() -> None:
    """A planted kernel whose passage is no longer in the source raises with its name."""
    gone = attrs.evolve(BY_NAME["atomic-max"], old="atomicFoo")
    with pytest.raises(ValueError, match="planted kernel atomic-max"):
        gone.source()


def test_an_update_without_a_stamp_is_refuted(sm_90: str) -> None:
    """Held against an update that forgets which request has written, the kernel fails at a write by the second."""

    def step(world: World, entry: z3.BitVecRef) -> z3.BitVecRef:
        return z3.If(written(world, entry) == entry, entry, written(world, entry) & ~z3.BitVecVal(0xFF00, 32))

    execution = kernels._execute(sm_90, attrs.evolve(BY_KERNEL["write_entry"], step=step))
    found = kernels._judge(execution, "step", 90)
    assert found.verdict == "refuted"
    assert " of request 1" in found.values["stores"]


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
        ("atom.global.or.b32", "atom.global.inc.u32", ": not known"),
        ("atom.global.or.b32", "atom.acquire.gpu.global.or.b32", ": not known"),
        ("cvta.to.global.u64", "bfind.u64", "bfind.u64 %rd1, %rd19: not known in this form"),
        ("ld.volatile.global.u32", "ld.volatile.global.u64", "u64 is not an element of marks_of"),
        (",\n\t.param .u64 mark_rooms_param_9", "", "has 9 parameters, not 10"),
        ("ld.param.u64", "ld.param.u32", "not a parameter of 64 bits"),
        ("\t@%p1 bra", "\tbra", "never reached, so nothing is known of it"),
        ("[%rd10]", "[%rd2]", "the address is not one in an array"),
    ],
)
def test_what_is_unsupported_is_told_and_not_proved(sm_90: str, old: str, new: str, words: str) -> None:
    """PTX that has no meaning here, or that nothing would be known of, gives one finding with the reason, exit 3."""
    findings = prove_kernel(_edited(sm_90, "mark_rooms", old, new), BY_KERNEL["mark_rooms"], 90)
    assert [(finding.verdict, words in finding.reason) for finding in findings] == [("unsupported", True)]
    assert exit_code(findings) == 3


def test_a_kernel_that_is_not_there_is_unsupported(sm_90: str) -> None:
    """A module without the kernel of a contract is not proved."""
    (finding,) = prove_kernel(sm_90.replace("write_entry", "write_other"), BY_KERNEL["write_entry"], 90)
    assert (finding.verdict, finding.reason) == ("unsupported", "the module has no kernel write_entry")


def test_a_kernel_that_never_writes_is_refuted(sm_90: str) -> None:
    """Without its atomic, what is about the write is unknown rather than vacuously proved, and the exit is refuted."""
    text = _edited(sm_90, "mark_rooms", "atom.global.or.b32", "add.s64 %rd1, %rd1, 0; //")
    findings = {f.obligation: f for f in prove_kernel(text, BY_KERNEL["mark_rooms"], 90)}
    assert (findings["step"].verdict, findings["once"].verdict) == ("unknown", "unknown")
    assert findings["exit"].verdict == "refuted"


def test_a_limit_is_not_a_proof(sm_90: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Z3 does not decide within its limit is unknown."""
    monkeypatch.setitem(thread.LIMITS, "z3", 1)
    findings = prove_kernel(sm_90, BY_KERNEL["mark_rooms"], 90)
    assert {finding.verdict for finding in findings if finding.obligation == "step"} == {"unknown"}
    assert exit_code(findings) == 3


def test_one_solver_is_not_enough(sm_90: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cvc5 does not say unsat as well, the verdict is unknown, and both answers are told."""
    monkeypatch.setattr(kernels, "second_opinion", lambda _: "unknown")
    findings = prove_kernel(sm_90, BY_KERNEL["mark_rooms"], 90)
    assert {finding.verdict for finding in findings} == {"unknown"}
    assert all(finding.reason.endswith("Z3 says unsat, cvc5 unknown") for finding in findings)


def test_without_nvrtc_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NVRTC is missing, the reason is told and the exit code is 4."""

    def missing(*_: object) -> object:
        raise CannotCompile("NVRTC is not installed")

    monkeypatch.setattr(kernels, "compiled", missing)
    findings = [*kernels.prove("write_entry", [90]), kernels.refute(PLANTED[0], 90)]
    assert [(f.verdict, f.reason) for f in findings] == [("not checked", "NVRTC is not installed")] * 2
    assert exit_code(findings) == 4
    assert lines(findings)[0] == "write_entry sm_90: all not checked: NVRTC is not installed"


def test_a_finding_is_json(sm_90: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field of a finding, the values of a refutation included, survives JSON."""
    monkeypatch.setattr(kernels, "second_opinion", lambda _: "unsat")  # for speed: what cvc5 says is not the point
    text = _edited(sm_90, "mark_rooms", "atom.global.or.b32", "atom.global.max.u32")
    found = next(f for f in prove_kernel(text, BY_KERNEL["mark_rooms"], 90) if f.verdict == "refuted")
    told = json.loads(json.dumps(as_json(found)))
    assert (told["kernel"], told["architecture"], told["obligation"]) == ("mark_rooms", 90, "step")
    assert int(told["values"]["stores"]) != int(told["values"]["spec"])


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["proved"], 0), (["proved", "refuted", "unknown"], 1), (["proved", "unknown", "not checked"], 3),
        (["proved", "unsupported"], 3), (["proved", "not checked"], 4),
    ],
)  # fmt: skip
def test_the_worst_finding_gives_the_exit_code(verdicts: list[kernels.Verdict], code: int) -> None:
    """Refuted before unknown before not checked; all proved is 0."""
    assert exit_code(Finding("write_entry", 90, "step", verdict) for verdict in verdicts) == code
