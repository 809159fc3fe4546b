"""Test vectors: which there are, what they allow, who passes them; and the managers in C and Rust."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlatch.proofs import pins
from kvlatch.proofs.columns import Columns
from kvlatch.proofs.search import explore
from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.oracle import vector_plays, vectors
from kvlatch.reference.oracle.checks import LAWS, examine, laws_of
from kvlatch.reference.oracle.explore import Play, replay
from kvlatch.reference.oracle.inprocess import InProcess
from kvlatch.reference.oracle.moves import Bounds, Seen
from kvlatch.reference.oracle.process import Process, reply
from kvlatch.reference.oracle.spec_manager import SpecManager
from kvlatch.reference.oracle.vector_plays import Chosen, Situation, breaches, choose
from kvlatch.reference.oracle.vectors import Box, VectorError, allowed, is_allowed, read, run, write
from kvlatch.reference.oracle.wrong_managers import LATCH, WRONG, Wrong
from kvlatch.spec import protocol
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.status import KVPoll
from kvlatch.spec.terms import ForAll, Term, evaluate
from tests.reference.oracle.managers import Right

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FIRST_TERMINAL_WINS = frozenset(laws_of("first terminal wins"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small vectors."""
    directory = tmp_path_factory.mktemp("vectors") / "small"
    write(directory)
    return directory


def manifests(directory: Path) -> list[dict[str, object]]:
    """Every manifest of a set of vectors."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*/manifest.json"))]


@pytest.fixture(scope="module")
def plays(small: Path) -> list[Play]:
    """The play of each case, by the text in its manifest, played on latch."""
    latch = SpecManager(LATCH)
    return [replay(latch, str(manifest["play"])) for manifest in manifests(small)]


# --- Which there are ------------------------------------------------------------------------------


def reachable() -> set[Situation]:
    """Every situation of two chunks and two requests, from the states of the spec in which every thread rests."""
    machine = Machine.of(LATCH, "locked", "disorderly", Instance(workers=1, chunks=2, requests=2))
    p = protocol
    first, second = p.gen == "first", p.gen == "second"
    transferring = p.worker == "transferring"
    releasing = (p.phase == "forgetting") | ((p.phase == "releasing") & p.drained)
    resting = (p.bootstrap == "idle") & ForAll("worker", p.worker.in_("idle", "transferring")) & ~releasing
    rules = {rule.name: rule for rule in protocol.RULES}

    def some(owner: Term) -> Term:
        return ~ForAll("worker", ~(transferring & owner))

    def waits(chunk: Term) -> Term:
        return ForAll("worker", p.worker == "idle") & ~ForAll("chunk", ~chunk)

    events: dict[tuple[str, int, int], Term] = {}
    for life, gen in ((1, first), (2, second)):
        own = {
            "create": rules["create"].when,
            "poll": p.phase.in_("boot", "inflight"),
            "abort": rules["abort"].when,
            "clear": p.phase == "clearing",
            "metadata": p.metadata_due,
            "abort_notice": p.notice_due,
            "start": waits(p.chunk == "queued") & ForAll("chunk", p.stale == "no"),
            "finish": some(p.job_gen == p.gen),
            "break": some(p.job_gen == p.gen),
        }
        events |= {(event, life, life): gen & when for event, when in own.items()}
    late = {
        "metadata": p.straggler == "due",
        "abort_notice": p.straggler == "due",
        "start": waits(p.stale == "yes"),
        "finish": some(p.job_gen == "first"),
        "break": some(p.job_gen == "first"),
    }
    events |= {(event, 1, 2): second & when for event, when in late.items()}

    claims = {event: machine.model.claim(resting & when) for event, when in events.items()}
    statuses = {name: machine.model.claim(p.status == name) for name in KVPoll.__members__}
    statuses["Absent"] = machine.model.claim(p.missing)
    search = explore(machine, [])
    found = set()
    for level in search.levels:
        for _, block in Columns.blocks(search.layout, level.packed):
            said = {status: evaluate(claim, block) for status, claim in statuses.items()}
            for (event, request, life), claim in claims.items():
                possible = evaluate(claim, block)
                found |= {Situation(status, event, request, life) for status in said if (said[status] & possible).any()}
    return found


def test_every_situation_that_can_arise_has_a_case(small: Path) -> None:
    """The cases cover all that the state space of the spec has, and nothing else."""
    covered = {Situation(**covers) for manifest in manifests(small) for covers in manifest["covers"]}  # type: ignore[attr-defined]  # a list
    expected = reachable()
    assert len(expected) > 80
    assert covered == expected


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.law)
def test_every_law_has_a_case_on_which_somebody_fails(small: Path, wrong: Wrong) -> None:
    """The case that bears a law's name says that it is about it, and the manager that breaks the law fails there."""
    (case,) = [outcome for outcome in run(wrong.manager, small) if outcome.case.endswith(f"-{wrong.law}")]
    assert case.failed
    (manifest,) = [manifest for manifest in manifests(small) if manifest["name"] == case.case]
    assert wrong.law in manifest["laws"]  # type: ignore[operator]  # a list
    assert wrong.says in str(manifest["says"])


def test_no_law_of_the_spec_is_left_out(small: Path) -> None:
    """Between them the cases are about all twelve properties."""
    about = {law for manifest in manifests(small) for law in manifest["laws"]}  # type: ignore[attr-defined]  # a list
    assert about == {prop.name for prop in PROPERTIES}


def test_larger_sizes_have_more_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the same bounds: few plays; then one to each situation; then one to each answer in each of them."""
    monkeypatch.setattr(vector_plays, "COVERED", (Bounds(),))
    monkeypatch.setattr(vector_plays, "BEYOND", (Bounds(), Bounds(chunks=2)))
    few, each, most = (choose(size, []) for size in ("small", "medium", "large"))
    situations = {situation for case in each for situation in vector_plays.situations(case.play)}
    assert len(few) < len(each) == len(situations) < len(most)
    assert {s for case in few for s in vector_plays.situations(case.play)} == situations


# --- What they allow ------------------------------------------------------------------------------


def test_latch_passes_every_case(small: Path) -> None:
    """The expected answers are those of the manager made of latch's rows, and each is allowed."""
    outcomes = run(SpecManager(LATCH), small)
    assert {outcome.result for outcome in outcomes} == {"passed"}
    for case in read(small):
        for answer, boxes in zip(case.expected, case.allowed, strict=True):
            assert is_allowed(answer, boxes), case.name


Place = tuple[Play, int, tuple[Box, ...]]
"""A play, the number of one of its moves, and what is allowed there."""


@pytest.fixture(scope="module")
def places(small: Path, plays: list[Play]) -> list[Place]:
    """Every place in every case at which the manager is told something."""
    found = []
    for play, case in zip(plays, read(small), strict=True):
        told = (at for at, move in enumerate(play.moves) if move.told)
        found += [(play, at, boxes) for at, boxes in zip(told, case.allowed, strict=True)]
    return found


@given(data=st.data())
@settings(max_examples=200)
def test_an_answer_is_allowed_exactly_if_it_breaks_no_law(places: list[Place], data: st.DataObject) -> None:
    """Boxes say of any answer what the laws say of the life after it."""
    play, at, boxes = places[data.draw(st.integers(0, len(places) - 1))]
    world, move = play.worlds[at], play.moves[at]
    now = world.life.request
    status = st.sampled_from([None, *KVPoll])
    answer = {"poll": status, "start": st.booleans()}.get(str(move.event), st.none())
    word = st.tuples(st.integers(1, now), st.sampled_from([KVPoll.Failed, KVPoll.Success]))
    drawn = Seen(
        data.draw(status | st.just(play.seen[at].status)),
        answer=data.draw(answer),
        released=data.draw(st.sampled_from([(), (now,)])),
        told=data.draw(st.just(()) | st.tuples(word)),
    )
    broken = set(vector_plays.breaks(world.after(move, drawn)))
    assert is_allowed(reply(world.call(move), drawn), boxes) == (not broken), (str(play), at, drawn, broken)


def test_pages_that_are_released_twice_are_never_allowed(places: list[Place]) -> None:
    """Neither twice in one answer, nor those of the first request in the life of the second."""
    for play, at, boxes in places:
        world = play.worlds[at]
        now = world.life.request
        for released in ((now, now), *[(1,)] * (now == 2)):
            answer = reply(world.call(play.moves[at]), attrs.evolve(play.seen[at], released=released))
            assert not is_allowed(answer, boxes), (str(play), at)


@pytest.mark.parametrize("name", [name for name in DESIGNS if name != "latch"])
def test_a_design_fails_only_by_what_the_proofs_refute(small: Path, plays: list[Play], name: str) -> None:
    """A manager made of a design's rows fails some cases, by laws which the design is refuted of, and no other case."""
    manager, design = SpecManager(DESIGNS[name]), DESIGNS[name]
    level = "locked" if "locked" in design.atomicities else "split"
    expected = pins.pinned()
    refuted = {prop for prop in BY_NAME if any(expected[name, level, n, prop] != "holds" for n in (1, 2))}
    broken = [breaches(manager, play) for play in plays]
    assert set() < set().union(*broken) <= refuted
    assert [outcome.failed for outcome in run(manager, small)] == [bool(laws) for laws in broken]


def test_under_the_other_profile_a_late_failure_may_replace_success() -> None:
    """What a vector allows depends on which reading of terminal the manager has."""
    play = replay(SpecManager(LATCH), "orderly-1-1-1 create metadata poll send start/0 finish/0 poll")
    assert play.moves[-1].event == "poll"
    answer = {"status": "Failed", "answer": "Failed", "released": [], "told": []}
    before, move = play.worlds[-2], play.moves[-1]
    untold = attrs.evolve(before.life.now, words=())
    world = attrs.evolve(before, lives=(attrs.evolve(before.life, requests=(untold,)),))
    other = frozenset(laws_of("failure overrides"))
    assert not is_allowed(answer, allowed(world, move, FIRST_TERMINAL_WINS))
    assert is_allowed(answer, allowed(world, move, other))


# --- Files ----------------------------------------------------------------------------------------


WRITE = """
import pathlib, sys
from kvlatch.reference.oracle import vector_plays
from kvlatch.reference.oracle.harness import Bounds
from kvlatch.reference.oracle.vectors import write
vector_plays.COVERED = (Bounds(), Bounds(chunks=2))
vector_plays.WRONG = ()
write(pathlib.Path(sys.argv[1]))
"""


def test_the_same_files_are_written_every_time(tmp_path: Path) -> None:
    """Two processes that hash strings differently write the same bytes."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE, tmp_path / seed], env=os.environ | {"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    one, other = (
        {path.relative_to(tmp_path / seed): path.read_bytes() for path in (tmp_path / seed).rglob("*.*json")}
        for seed in ("1", "2")
    )
    assert len(one) > 30
    assert one == other


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """One case is enough to see how it is written."""
    case = Chosen("late-failure", "Said.", replay(SpecManager(LATCH), "disorderly-1-1-1 create abort_notice"))
    monkeypatch.setattr(vectors, "choose", lambda *_: [case])


@pytest.mark.usefixtures("one_case")
def test_a_case_is_three_files(tmp_path: Path) -> None:
    """The files are as they are documented, and an empty directory is filled."""
    directory = tmp_path / "new" / "vectors"
    directory.mkdir(parents=True)
    assert write(directory) == 1
    assert [path.name for path in directory.iterdir()] == ["0001-late-failure"]
    calls, expected, manifest = (
        (directory / "0001-late-failure" / name).read_text(encoding="utf-8")
        for name in ("calls.ndjson", "expected.ndjson", "manifest.json")
    )
    assert calls.splitlines() == [
        '{"event":"fresh"}',
        '{"event":"create","room":7,"request":1}',
        '{"event":"abort_notice","room":7,"request":1}',
    ]
    rows = [json.loads(row) for row in expected.splitlines()]
    assert [row["expected"]["status"] for row in rows] == ["Bootstrapping", "Failed"]
    assert all(is_allowed(row["expected"], row["allowed"]) for row in rows)
    said = json.loads(manifest)
    assert len(said.pop("spec")) == 64
    assert said == {
        "format": 1,
        "name": "0001-late-failure",
        "says": "Said.",
        "laws": [],
        "covers": [
            {"status": "Absent", "event": "create", "request": 1, "life": 1},
            {"status": "Bootstrapping", "event": "abort_notice", "request": 1, "life": 1},
        ],
        "bounds": "disorderly network, 1 chunk, 1 worker, 1 request",
        "play": "disorderly-1-1-1 create abort_notice",
        "profile": "first terminal wins",
    }


@pytest.mark.usefixtures("one_case")
def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A directory with something in it, or a file, stays as it is."""
    (tmp_path / "vectors").mkdir()
    mine = tmp_path / "vectors" / "mine"
    mine.write_text("", encoding="utf-8")
    for target in (tmp_path / "vectors", mine):
        with pytest.raises(VectorError, match="is there already: remove it, or name another directory"):
            write(target)
    assert list(tmp_path.rglob("*")) == [tmp_path / "vectors", mine]


def test_what_breaks_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where writing fails, there is no directory, and no draft of one."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(VectorError, match="Not a directory"):
        write(tmp_path / "file" / "vectors")
    monkeypatch.setattr(vectors, "choose", lambda *_: [None])
    with pytest.raises(AttributeError):
        write(tmp_path / "vectors")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


BROKEN: dict[str, tuple[str, str | None, str]] = {
    "no such file": ("calls.ndjson", None, "calls.ndjson: No such file"),
    "not JSON": ("expected.ndjson", "{", "expected.ndjson: not JSON"),
    "other format": ("manifest.json", '{"format": 2}', "manifest.json: not a manifest of format 1"),
    "no fresh": ("calls.ndjson", '{"event":"create","room":7,"request":1}\n', "the first line is not"),
    "empty": ("calls.ndjson", "", "the first line is not"),
    "other count": ("expected.ndjson", "", "has 0 lines for 1 calls"),
    "no call": ("calls.ndjson", '{"event":"fresh"}\n{"event":"reuse","room":7,"request":1}\n', "is no call"),
    "a list": ("calls.ndjson", '{"event":"fresh"}\n["create"]\n', "is no call"),
    "other box": (
        "expected.ndjson",
        '{"expected":{"status":null},"allowed":[{"state":[null]}]}\n',
        "a box has other members than the answer",
    ),
    "no such event": ("calls.ndjson", '{"event":"fresh"}\n{"event":"crate","room":7,"request":1}\n', "is no call"),
    "no answer": ("expected.ndjson", '{"allowed":[]}\n', "not a test vector: 'expected'"),
    "other answer": ("expected.ndjson", '{"expected":{"status":"Lost"},"allowed":[]}\n', "the status is none of"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_is_no_test_vector_is_refused(small: Path, tmp_path: Path, how: str) -> None:
    """A damaged case is named in one line, with what is wrong."""
    name, text, why = BROKEN[how]
    case = tmp_path / "vectors" / "0001-case"
    shutil.copytree(next(path for path in sorted(small.iterdir()) if len(read_lines(path)) == 2), case)
    (case / name).unlink()
    if text is not None:
        (case / name).write_text(text, encoding="utf-8")
    with pytest.raises(VectorError, match=why) as caught:
        read(case.parent)
    assert "\n" not in str(caught.value)


def read_lines(case: Path) -> list[str]:
    """The calls of a case."""
    return (case / "calls.ndjson").read_text(encoding="utf-8").splitlines()


def test_where_there_are_no_test_vectors_it_is_said(tmp_path: Path) -> None:
    """An empty directory, or none, is no set of vectors that everybody passes."""
    with pytest.raises(VectorError, match="has no test vectors"):
        read(tmp_path)
    with pytest.raises(VectorError, match="nowhere: No such file or directory"):
        read(tmp_path / "nowhere")


# --- Managers -------------------------------------------------------------------------------------


def test_an_adapter_can_be_held_against_the_vectors(small: Path) -> None:
    """A right manager in Python, written by hand, fails no case."""
    player = InProcess(Right)
    try:
        outcomes = run(player, small)
    finally:
        player.close()
    assert len(outcomes) == len(manifests(small))
    assert not [outcome.sentence for outcome in outcomes if outcome.failed]


def test_a_fault_is_said_with_the_name_of_the_case(small: Path) -> None:
    """A program that is no manager has not failed a case: it is at fault, and the case is named."""
    with Process([sys.executable, "-c", ""]) as process, pytest.raises(AdapterFault, match=r"^0001-.*has ended"):
        run(process, small)


def compiled(folder: Path, compiler: str, *arguments: str | Path) -> Path:
    """A program, compiled without a warning; skips the test where there is no such compiler."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    subprocess.run([compiler, *arguments, "-o", folder / "manager"], check=True, timeout=100)
    return folder / "manager"


def in_c(folder: Path, name: str) -> Path:
    """A manager in C."""
    return compiled(folder, "cc", "-O2", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", EXAMPLES / "c" / name)


def in_rust(folder: Path) -> Path:
    """The manager in Rust."""
    return compiled(folder, "rustc", "-O", "--edition=2021", "-Dwarnings", EXAMPLES / "rust" / "manager.rs")


@pytest.fixture(params=["c", "rust"])
def right(request: pytest.FixtureRequest, tmp_path: Path) -> Sequence[str]:
    """The right manager in each language."""
    return [str(in_c(tmp_path, "manager.c") if request.param == "c" else in_rust(tmp_path))]


@pytest.fixture(params=["c", "rust"])
def by_max(request: pytest.FixtureRequest, tmp_path: Path) -> Sequence[str]:
    """The manager with max() in each language."""
    return [str(in_c(tmp_path, "manager_max.c"))] if request.param == "c" else [str(in_rust(tmp_path)), "--max"]


def test_the_right_managers_pass_every_case_and_keep_every_law(small: Path, right: Sequence[str]) -> None:
    """The examples answer as latch does, and the oracle's own plays find nothing in them."""
    with Process(right) as process:
        outcomes = run(process, small)
        report = examine(process, "example", tuple(LAWS), limit=400, walks=100)
    assert [outcome.sentence for outcome in outcomes if outcome.result != "passed"] == []
    assert report.findings == {}
    assert report.looked_at["plays"] > 500


def test_the_managers_with_max_fail_by_the_name_of_the_case(small: Path, by_max: Sequence[str]) -> None:
    """The incident is found by the cases that are about it, and said with the call and what is allowed."""
    with Process(by_max) as process:
        failed = {outcome.case.partition("-")[2]: outcome.sentence for outcome in run(process, small) if outcome.failed}
    assert {"terminal-sticky", "no-resurrection"} <= failed.keys()
    assert (
        '{"event":"metadata","room":7,"request":1}, is answered {"status": "WaitingForInput"'
        in failed["terminal-sticky"]
    )
    assert '"status": [null, "Failed"]' in failed["terminal-sticky"]
    assert "no-ghost" not in failed
