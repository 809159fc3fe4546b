"""Certificates: written whole, complete by the spec, and whatever is done to them is found and named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import attrs
import cvc5
import pytest

from kvlatch.commands import main as cli
from kvlatch.proofs import archives, recheck
from kvlatch.proofs.archives import Malformed, opened
from kvlatch.proofs.bmc import script
from kvlatch.proofs.certificates import Refused, certify, check_target, same
from kvlatch.proofs.induction import Invariant, Theory
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.prove import Cell, Row, decide
from kvlatch.proofs.recheck import MANIFEST, Manifest, Theorem, answer, demanded, files_in, scopes
from kvlatch.proofs.verdicts import Proved
from kvlatch.proofs.worlds import EVERYTHING, scope_of
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.lemmas import LEMMAS
from kvlatch.spec.model import ANY, Machine
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Atomicity
from kvlatch.spec.traces import Meaning, read, verify


def scope(workers: int) -> str:
    """The scope of a proof about a number of workers, or any number."""
    return scope_of(ROOM, (ROOM.bounded if workers else EVERYTHING).instance(workers), EVERYTHING.network)


STEP = "fix-a.locked/step-create.smt2"
TRACE = "seed-control.no-ghost.itf.json"
SHORTER = "seed-control.locked/shorter-1w2c1r-orderly.smt2"
GHOST = "fix-a.no-ghost.itf.json"
WITHIN = "shorter no-ghost within 6 steps; 1 worker, 2 chunks, 1 request, 1 room, orderly network"
LISTED = f"{MANIFEST}: fix-a locked terminal-sticky"
LEVELS = [(name, level) for name, design in DESIGNS.items() for level in design.atomicities]


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    """Two proofs and a counterexample, each with one worker and with two; and a counterexample of another design."""
    decided = decide("fix-a", "locked", [2, 1], ["terminal-sticky", "no-ghost", "released-once"])
    return [cell for row in [*decided, *decide("seed-control", "locked", [1], ["no-ghost"])] for cell in row]


@pytest.fixture(scope="module")
def written(cells: list[Cell], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate directory, written from the cells."""
    directory = tmp_path_factory.mktemp("certificates") / "certs"
    assert certify(cells, directory) == len(files_in(directory))
    return directory


@pytest.fixture
def certs(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return shutil.copytree(written, tmp_path / "certs")


def edit(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest."""
    path = directory / MANIFEST
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def forge(directory: Path, name: str, text: str) -> None:
    """Replace a file, and its hash."""
    (directory / name).write_text(text, encoding="utf-8")
    digest = sha256(text.encode()).hexdigest()
    edit(directory, lambda doc: next(file for file in doc["files"] if file["name"] == name).update(sha256=digest))


def finding(directory: Path) -> str:
    """The only thing that is wrong."""
    try:
        (only,) = recheck.recheck(directory).findings
    except Malformed as error:
        only = str(error)
    assert "\n" not in only
    return only


def test_a_round_trip_finds_nothing(written: Path) -> None:
    """What has been written is complete, and cvc5 says unsat to all of it."""
    report = recheck.recheck(written)
    assert report == recheck.Report(2, 3, len(files_in(written)), ())
    theorems = Manifest.read(written).theorems
    assert [(theorem.prop, theorem.scope) for theorem in theorems] == [
        (prop, scope(ANY)) for prop in ("terminal-sticky", "released-once")
    ]


def test_the_texts_are_computed_from_the_spec(written: Path) -> None:
    """Computed again, every text and the manifest are the same, byte for byte."""
    assert same(written) == []


def test_a_forged_assertion_is_seen_by_z3_alone(certs: Path) -> None:
    """Who forges a file and its hash gets past cvc5, and not past the comparison."""
    forge(certs, STEP, (certs / STEP).read_text(encoding="utf-8").replace("(check-sat)", "(assert false)\n(check-sat)"))
    assert recheck.recheck(certs).findings == ()
    assert same(certs) == [STEP, MANIFEST]


def test_every_file_is_standard(written: Path) -> None:
    """A file says what it is, and cvc5 reads it strictly and answers it with no other option."""
    for path in written.rglob("*.smt2"):
        text = path.read_text(encoding="utf-8")
        assert "(set-info :status unsat)" in text
        assert recheck.spec_hash() in text
        solver = cvc5.Solver(cvc5.TermManager())
        solver.setOption("strict-parsing", "true")
        parser = cvc5.InputParser(solver)
        parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, path.name)
        said = ""
        while not (command := parser.nextCommand()).isNull():
            said += command.invoke(solver, parser.getSymbolManager())
        assert said == "unsat\n"


def test_z3_is_not_in_the_process(written: Path) -> None:
    """Rechecking imports cvc5, not Z3."""
    script = f"""
import sys
from pathlib import Path
from kvlatch.proofs.recheck import recheck
if __name__ == "__main__":
    assert not recheck(Path({str(written)!r})).findings
    sys.exit("z3" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_one_byte_changed(certs: Path) -> None:
    """A flipped bit is named, with its file."""
    content = bytearray((certs / STEP).read_bytes())
    content[-20] ^= 1
    (certs / STEP).write_bytes(content)
    assert finding(certs) == f"{STEP}: altered: its hash is not the manifest's"


def test_one_file_removed(certs: Path) -> None:
    """A file that the manifest lists and that is gone is named."""
    (certs / STEP).unlink()
    assert finding(certs) == f"{STEP}: missing"


@pytest.mark.parametrize("name", ["more.smt2", "fix-a.locked/.hidden", "deep/down/step.smt2"])
def test_one_file_added(certs: Path, name: str) -> None:
    """A file that the manifest does not list is named, hidden ones and folders included."""
    (certs / name).parent.mkdir(parents=True, exist_ok=True)
    (certs / name).write_text("(check-sat)", encoding="utf-8")
    assert finding(certs) == f"{name}: not in the manifest"


def test_an_obligation_dropped_from_one_theorem(certs: Path) -> None:
    """The file is still there, and still serves the other theorem."""
    edit(certs, lambda doc: doc["theorems"][0]["files"].remove(STEP))
    missing, header = recheck.recheck(certs).findings
    assert missing == f"{LISTED}: without the obligation: step create"
    assert header == f"{STEP}: its header is not what the manifest says of it"


def test_an_obligation_dropped_altogether(certs: Path) -> None:
    """Without its file and every mention of it, the spec still demands it."""

    def drop(document: dict[str, Any]) -> None:
        document["files"] = [file for file in document["files"] if file["name"] != STEP]
        for theorem in document["theorems"]:
            theorem["files"].remove(STEP)

    edit(certs, drop)
    (certs / STEP).unlink()
    assert recheck.recheck(certs).findings == tuple(
        f"{MANIFEST}: fix-a locked {prop}: without the obligation: step create"
        for prop in ("terminal-sticky", "released-once")
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda doc: doc["files"].append(doc["files"][0]), "fix-a.locked/initial.smt2: listed twice"),
        (
            lambda doc: doc["theorems"][0]["files"].append(STEP),
            f"{LISTED}: obligation twice: step create",
        ),
        (
            lambda doc: doc["theorems"][0].update(lemmas=["first terminal Failed"]),
            f"{LISTED}: shares fix-a.locked/initial.smt2 with released-once, which has another scope or other lemmas",
        ),
        (
            lambda doc: doc["theorems"][0].update(design="fix-z"),
            f"{MANIFEST}: fix-z locked terminal-sticky: the spec has no such design, atomicity, property or scope",
        ),
        (
            lambda doc: doc["theorems"][0].update(prop="no-pin"),
            f"{MANIFEST}: fix-a locked no-pin: without the obligation: property no-pin",
        ),
        (
            lambda doc: doc["theorems"][0].update(scope=scope(3)),
            f"{LISTED}: unknown obligation: step leave",
        ),
        (lambda doc: doc["theorems"].pop(), "fix-a.locked/property-released-once.smt2: part of no theorem"),
        (lambda doc: doc["shortest"].pop(), f"{SHORTER}: part of no theorem"),
        (lambda doc: doc["shortest"][-1]["traces"].clear(), f"{SHORTER}: serves traces of 0 instances, not of one"),
        (
            lambda doc: doc["shortest"][-1]["traces"].append(GHOST),
            f"{SHORTER}: serves traces of 2 instances, not of one",
        ),
        (
            lambda doc: doc["shortest"][-1].update(traces=[GHOST]),
            f"{SHORTER}: seed-control locked {WITHIN}, where the traces need fix-a locked {WITHIN}",
        ),
        (
            lambda doc: doc["files"][1].update(design="fix-ab"),
            f"{STEP}: its header is not what the manifest says of it",
        ),
    ],
)
def test_an_edited_manifest(certs: Path, change: Callable[[dict[str, Any]], object], expected: str) -> None:
    """Whatever is changed in the manifest, something is no longer what the spec or the files say."""
    edit(certs, change)
    assert expected in recheck.recheck(certs).findings


def test_another_spec(certs: Path) -> None:
    """Then the obligations are about something else, and nothing more is said."""
    edit(certs, lambda doc: doc.update(spec="0" * 64))
    assert finding(certs) == f"{MANIFEST}: about the spec {'0' * 64}, and {recheck.spec_hash()} is installed"


@pytest.mark.parametrize("text", ["", "[]", "{}", "7", '{"format": 1}', '{"format": 2, "files": [7]}', '{"format": 2}'])
def test_a_manifest_that_is_none(certs: Path, text: str) -> None:
    """A manifest that cannot be read is one line, which begins with its name."""
    (certs / MANIFEST).write_text(text, encoding="utf-8")
    assert finding(certs).startswith(f"{MANIFEST}: ")


def test_no_manifest(tmp_path: Path) -> None:
    """A directory without a manifest holds no certificates."""
    assert finding(tmp_path) == f"{MANIFEST}: missing"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("(check-sat)", "(check-sat)\n(assert false)", "not in this place"),
        ("(check-sat)", "(exit)", "not in this place"),
        ("(check-sat)", "(push 1)\n(assert false)\n(check-sat)", "(push 1) is not a command"),
        ("(check-sat)", "(check-sat)\n(check-sat)", "not in this place"),
        ("(check-sat)", "(set-option :produce-models true)\n(check-sat)", "not a command of a certificate"),
        ("(check-sat)", "", "not unsat"),
        ("(check-sat)", "(check-sat", "not unsat"),
        ("(assert", "(assert true) ;", "not unsat"),
        ("(set-info :status unsat)", "(set-info :status sat)", "its header is not what the manifest says"),
    ],
)
def test_a_forged_file(certs: Path, old: str, new: str, why: str) -> None:
    """Its hash is right, and yet it does not do what a certificate does."""
    forge(certs, STEP, (certs / STEP).read_text(encoding="utf-8").replace(old, new))
    found = finding(certs)
    assert found.startswith(f"{STEP}: ")
    assert why in found


def test_a_limit_is_not_unsat(monkeypatch: pytest.MonkeyPatch, written: Path) -> None:
    """What cvc5 cannot decide within its limit is not discharged."""
    monkeypatch.setattr(recheck, "_LIMIT", 1000)
    assert answer((written / SHORTER).read_text(encoding="utf-8")) != "unsat"


def test_a_counterexample_is_executed(certs: Path) -> None:
    """A trace that is none is named; so is one with another length than the certificate says."""
    run = verify(read(certs / TRACE))
    assert len(run.actions) == 7
    assert WITHIN in (certs / SHORTER).read_text(encoding="utf-8")
    forge(certs, TRACE, (certs / TRACE).read_text(encoding="utf-8").replace('"Failed"', '"Success"'))
    assert finding(certs).startswith(f"{TRACE}: ")


def test_the_unrolling_is_not_vacuous(written: Path) -> None:
    """With one step more for one of its properties the counterexample is in it, also where that run goes no further."""
    machine = Meaning.of(read(written / TRACE)).machine
    for lengths, said in (((7, 11), "unsat"), ((8, 11), "sat"), ((7, 12), "sat")):
        text = script(machine, dict(zip(("no-ghost", "no-resurrection"), lengths, strict=True)))
        assert answer(text, "shorter") == said


@pytest.mark.parametrize(("name", "atomicity"), LEVELS, ids=[" ".join(level) for level in LEVELS])
@pytest.mark.parametrize("about", [scope(1), scope(2), *list(scopes(ROOM))[-2:]])
def test_what_is_demanded_is_what_is_proved(name: str, atomicity: Atomicity, about: str) -> None:
    """The names that are computed without Z3 are those of the prover's obligations."""
    sizes, network = scopes(ROOM)[about]
    machine = Machine.of(DESIGNS[name], atomicity, network, sizes)
    theory = (AnyNumber if machine.model.any else Theory).of(machine)
    invariant = Invariant(theory, tuple(theory.claim(lemma) for lemma in LEMMAS[:1]))
    for prop in PROPERTIES:
        theorem = Theorem(name, atomicity, prop.name, about, (), ())
        if prop.kind == "liveness" and machine.model.any and DESIGNS[name].queues == "sharded":
            with pytest.raises(ValueError, match="for each worker there is another worker"):
                invariant.obligations(prop)  # a worker waits for another: that a room is stuck cannot be asked
            continue
        assert sorted(demanded(theorem)) == sorted(obligation.name for obligation in invariant.obligations(prop))


def test_the_prover_names_scopes_in_the_same_words(cells: list[Cell]) -> None:
    """The scope of a proof is one that the checker can read back."""
    assert {cell.verdict.scope for cell in cells if isinstance(cell.verdict, Proved)} == {scope(ANY)}


def test_names_that_nothing_has() -> None:
    """A theorem about a design or an atomicity that the spec lacks is refused."""
    with pytest.raises(Malformed, match="the spec has no such"):
        demanded(Theorem("latch", "split", "no-pin", scope(ANY), (), ()))


def test_a_proof_for_some_number_of_workers(tmp_path: Path) -> None:
    """Its certificate says how many, and is rechecked like any other."""
    ((cell,),) = decide("fix-a", "locked", [1], ["terminal-sticky"])
    assert isinstance(cell.verdict, Proved)
    narrower = attrs.evolve(cell, verdict=attrs.evolve(cell.verdict, scope=scope(1)))
    certify([narrower], tmp_path / "certs")
    assert recheck.recheck(tmp_path / "certs").findings == ()
    assert same(tmp_path / "certs") == []
    assert [theorem.scope for theorem in Manifest.read(tmp_path / "certs").theorems] == [scope(1)]


def test_an_older_directory_is_replaced(certs: Path, cells: list[Cell]) -> None:
    """Whole, and nothing is left beside it."""
    certify(cells[2:3], certs)
    assert recheck.recheck(certs).theorems == 1
    assert not (certs / TRACE).exists()
    assert [path.name for path in certs.parent.iterdir()] == ["certs"]


def test_an_archive_is_the_directory_packed(written: Path, cells: list[Cell], tmp_path: Path) -> None:
    """It holds the same files, is the same bytes whenever it is written, and is checked like the directory."""
    archive = tmp_path / "certs.tar.gz"
    contents = []
    for _ in range(2):
        certify(cells, archive)
        contents.append(archive.read_bytes())
    assert contents[0] == contents[1]
    with opened(archive) as directory:
        assert {*files_in(directory), MANIFEST} == {*files_in(written), MANIFEST}
        assert all((directory / name).read_bytes() == (written / name).read_bytes() for name in files_in(directory))
    assert recheck.recheck(archive) == recheck.recheck(written)
    assert [path.name for path in tmp_path.iterdir()] == ["certs.tar.gz"]


def pack(archive: Path, member: tarfile.TarInfo) -> Path:
    """An archive with one member."""
    with tarfile.open(archive, "w:gz") as packed:
        packed.addfile(member, BytesIO(b"x" * member.size))
    return archive


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])  # noqa: S108  # never written
def test_an_archive_reaches_nowhere_else(tmp_path: Path, name: str) -> None:
    """A member that would lie outside of the archive's own folder is refused, by name."""
    member = tarfile.TarInfo(name)
    member.size = 1
    assert finding(pack(tmp_path / "certs.tar.gz", member)) == f"{name}: not a file of a certificate directory"
    assert not (tmp_path.parent / "outside").exists()


def test_an_archive_has_files_alone(tmp_path: Path) -> None:
    """A link is refused."""
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    assert finding(pack(tmp_path / "certs.tar.gz", link)) == "link: not a file of a certificate directory"


@pytest.mark.parametrize(
    ("many", "size", "limit"),
    [(3, 10, {"MOST_FILES": 2}), (1, 11, {"MOST_BYTES_OF_A_FILE": 10}), (3, 10, {"MOST_BYTES": 29})],
)
def test_an_archive_that_holds_too_much_is_not_unpacked(
    many: int, size: int, limit: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many files, too large a one, too many bytes: noticed before anything is written."""
    archive = tmp_path / "certs.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for number in range(many):
            member = tarfile.TarInfo(f"file-{number}")
            member.size = size
            packed.addfile(member, BytesIO(b"x" * size))
    monkeypatch.setattr(archives, "_unpack", lambda *_: pytest.fail("written"))
    with pytest.raises(pytest.fail.Exception, match="written"), opened(archive):
        pass
    for name, value in limit.items():
        monkeypatch.setattr(archives, name, value)
    with pytest.raises(Malformed, match=r"more than|too large, or one too many"), opened(archive):
        pass


def test_an_archive_cannot_lie_about_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of a member is bounded as well as its content: both are read into memory."""
    monkeypatch.setattr(archives, "MOST_BYTES", 100_000)
    archive = tmp_path / "certs.tar.gz"
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as packed:
        member = tarfile.TarInfo("small")
        member.pax_headers = {"comment": "x" * 1_000_000}
        packed.addfile(member, BytesIO())
    with pytest.raises(Malformed, match="more than"), opened(archive):
        pass


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    """Else the second would hide the first from whoever looks into the archive with another program."""
    archive = tmp_path / "certs.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for _ in range(2):
            packed.addfile(tarfile.TarInfo("twice"), BytesIO())
    assert finding(archive) == "twice: not a file of a certificate directory"


def test_a_directory_with_a_device_in_it_is_not_read(certs: Path) -> None:
    """A link to /dev/zero has no end."""
    (certs / "zero").symlink_to("/dev/zero")
    assert finding(certs) == "zero: not a file of a certificate directory"


def test_an_archive_that_is_none(cells: list[Cell], tmp_path: Path) -> None:
    """Something else, or half an archive, is one line that begins with its name, and is not replaced."""
    whole = tmp_path / "whole.tar.gz"
    certify(cells[:1], whole)
    for content in (b"", b"no archive", whole.read_bytes()[:-500]):
        broken = tmp_path / "broken.tar.gz"
        broken.write_bytes(content)
        assert finding(broken).startswith(f"{broken}: not an archive of certificates: ")
        with pytest.raises(Refused, match="holds no certificates"):
            certify(cells, broken)
        assert broken.read_bytes() == content


def test_an_archive_is_called_one(certs: Path, tmp_path: Path) -> None:
    """A directory does not take the place of an archive, nor the other way round."""
    named = certs.rename(tmp_path / "certs.tar.gz")
    (tmp_path / "archive").write_bytes(b"")
    for target in (named, tmp_path / "archive"):
        with pytest.raises(Refused):
            check_target(target)


def test_the_command_line_says_what_is_wrong(
    certs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``kvlatch recheck`` exits with 0 and counts, or with 1 and names the file; as JSON it says the same."""

    def command(*options: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["kvlatch", "recheck", str(certs), *options])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return exit_.value.code, capsys.readouterr().out

    files = len(files_in(certs))
    said = f"2 theorems, 3 counterexamples, {files} files: every obligation is unsat by cvc5 alone\n"
    assert command() == (0, said)
    (certs / STEP).unlink()
    assert command() == (1, f"{STEP}: missing\n")
    code, line = command("--json")
    assert (code, json.loads(line)) == (
        1, {"theorems": 2, "counterexamples": 3, "files": files - 1, "findings": [f"{STEP}: missing"]}
    )  # fmt: skip


def test_certificates_of_nothing_are_not_green(
    certs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A manifest without a single file: exit 3. What is not a manifest: exit 2."""

    def code() -> object:
        monkeypatch.setattr(sys, "argv", ["kvlatch", "recheck", str(certs)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return exit_.value.code

    for name in files_in(certs):
        (certs / name).unlink()
    edit(certs, lambda doc: doc.update(files=[], theorems=[], shortest=[]))
    assert code() == 3
    assert "nothing is certified" in capsys.readouterr().out
    (certs / MANIFEST).write_text("{}", encoding="utf-8")
    assert code() == 2


def test_other_things_are_not_replaced(certs: Path, tmp_path: Path, cells: list[Cell]) -> None:
    """A directory with anything else in it, or a file, stays as it is."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine", encoding="utf-8")
    (certs / "notes").write_text("mine", encoding="utf-8")
    for target in (tmp_path / "mine", tmp_path / "mine" / "notes", certs):
        with pytest.raises(Refused) as error:
            certify(cells, target)
        assert "\n" not in str(error.value)
    assert (tmp_path / "mine" / "notes").read_text(encoding="utf-8") == "mine"
    check_target(tmp_path / "new")


def test_only_what_ships_is_certified(tmp_path: Path, cells: list[Cell]) -> None:
    """A stranger's spec does not have the reader's own design."""
    own = Cell(Row("mine:DESIGN", "locked", 1), "no-pin", cells[0].verdict, 0)
    with pytest.raises(Refused, match="does not ship"):
        certify([own], tmp_path / "certs")


def test_nothing_is_half_written(certs: Path, cells: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    """When writing fails, the older directory is still there, and nothing beside it."""

    def fail(_: Manifest, __: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Manifest, "write", fail)
    with pytest.raises(OSError, match="disk full"):
        certify(cells[:1], certs)
    assert recheck.recheck(certs).findings == ()
    assert [path.name for path in certs.parent.iterdir()] == ["certs"]
