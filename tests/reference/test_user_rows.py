"""Rows and lemmas of a user's own design: they leave their process unchanged, and what is wrong is said in one line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from kvlatch.commands import main
from kvlatch.proofs.search import explore
from kvlatch.reference import user_rows
from kvlatch.reference.faults import Refused
from kvlatch.reference.user_design import user_design
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.protocol import phase
from kvlatch.spec.protocols import PROTOCOLS, protocol_of
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Rule
from kvlatch.spec.terms import Field

MODULE = """
import attrs
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.protocol import job, pages, phase, worker
from kvlatch.spec.ranks import RANKS
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Lemma, Rule
from kvlatch.spec.terms import TRUE, Field, ForAll, Label, ThisChunk, implies, some

LATCH = attrs.evolve(DESIGNS["latch"], atomicities=("locked",))


def mine(*rows, **changes):
    return attrs.evolve(LATCH, rows=rows, **changes)


def row(**parts):
    return Rule(**{"name": "mine", "actor": "scheduler", "at": "free", "to": "free", **parts})


UNDRAINED = mine(attrs.evolve(ROOM.row("release"), when=phase == "releasing"), name="undrained")
STUCK = mine(name="stuck", without=("release",))
HASTY = attrs.evolve(RANKS.designs["ranks-latch"], name="hasty", without=(RANKS.rows[-1].name,))
asked = Field("asked", "room", ("no", "yes"))
ASKS = mine(
    row(name="ask", when=(phase == "inflight") & (asked == "no"), then={asked: "yes"}, fair=False),
    row(name="give_up", when=asked == "yes", then={asked: "no"}, write="Failed", fair=False),
    name="asks",
)
SPLIT = attrs.evolve(ASKS, atomicities=("split",))
TYPO = mine(without=("relaese",))
ACTOR = mine(row(actor="schedular"))
PLACE = mine(row(to="nowhere"))
LABEL = mine(row(then={phase: "nowhere"}))
DEEP = mine(row(then={phase: Label("nowhere")}))
TWIN = mine(row(when=Field("phase", "room", ("a", "b")) == "a"))
NOBODY = mine(row(when=worker == "idle"))
SORT = mine(row(per="rank"))
STATUS = mine(row(write="Done"))
TWICE = mine(row(), row())
OWNER = mine(row(when=Field("spare", "rank", ("a", "b")) == "a"))
NO_ROWS = mine("release")
NO_NAMES = mine(without="release")
BARE = mine(name="bare", without_lemmas=("drained",))
MORE = mine(
    name="more",
    lemmas=(Lemma("drained", phase != "done"), Lemma("no pages yet", (phase != "new") | (pages == "none"))),
)
WRONG = attrs.evolve(ASKS, name="wrong", lemmas=(Lemma("never asked", asked == "no"),))
ROUND = mine(name="round", lemmas=(Lemma("round", implies(ThisChunk(job), some("worker", worker == "idle"))),))
NO_LEMMA = mine(without_lemmas=("drain",))
NO_CLAIM = mine(lemmas=(Lemma("mine", phase),))
NO_FIELD = mine(lemmas=(Lemma("mine", asked == "no"),))
NO_SORT = mine(lemmas=(Lemma("mine", ForAll("rank", phase == "new")),))
NO_ORDER = mine(row(when=ForAll("erlier chunk", phase == "new")))
NO_LEMMAS = mine(lemmas="drained")
TWO_LEMMAS = mine(lemmas=(Lemma("mine", phase == "new"), Lemma("mine", phase != "new")))
"""


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``kvlatch``: its exit code, and what it printed."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["kvlatch", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return run


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_rows_come_back_as_they_were(name: str) -> None:
    """Every row that ships, through JSON: the same data, over the protocol's own fields."""
    protocol = PROTOCOLS[name]
    data = json.loads(json.dumps(user_rows.dumped(protocol.rows, protocol)))
    back, _ = user_rows.loaded(data, [], protocol)
    assert user_rows.dumped(back, protocol) == data
    claims = json.loads(json.dumps(user_rows.dumped_lemmas(protocol.lemmas, protocol)))
    assert user_rows.dumped_lemmas(user_rows.loaded([], claims, protocol)[1], protocol) == claims
    assert protocol.with_rows(back).state == protocol.state
    assert [rule.name for rule in back] == [rule.name for rule in protocol.rows]


def test_rows_that_came_back_have_the_same_states() -> None:
    """All of the room's rows, as a user's: as many states, and as long counterexamples."""
    rows, _ = user_rows.loaded(user_rows.dumped(ROOM.rows, ROOM), [], ROOM)
    design = attrs.evolve(DESIGNS["seed-control"], rows=rows)
    sizes = Instance(workers=1, chunks=1)
    found = explore(Machine.of(design, "locked", "orderly", sizes, protocol_of(design)), ROOM.properties)
    shipped = explore(Machine.of(DESIGNS["seed-control"], "locked", "orderly", sizes), ROOM.properties)
    assert found.states == shipped.states > 100
    assert [found.length(p.name) for p in ROOM.properties] == [shipped.length(p.name) for p in ROOM.properties]


def test_a_changed_row_changes_what_holds(command: Command) -> None:
    """Pages that are released at once; the trace is shown and replayed with the design, and refused without."""
    code, said = command("prove", "--design", "mine:UNDRAINED", "--property", "pages-held", "--workers", "1")
    assert (code, "16* release" in said) == (1, True)
    trace = "traces/undrained.pages-held.itf.json"
    assert "pages-held is broken" in command("show", trace, "--design", "mine:UNDRAINED")[1]
    assert command("replay", trace, "--design", "mine:UNDRAINED")[0] == 1
    assert command("show", trace)[0] == 2
    assert command("explore", trace, "--design", "mine:UNDRAINED", "--output", "page.html")[0] == 0


def test_rows_are_taken_out_and_added(command: Command) -> None:
    """Without a row nothing settles; a new row writes, over a field of its own; other protocols can be changed too."""
    assert "release" not in [rule.name for rule in protocol_of(user_design("mine:STUCK")).rows]
    asks = protocol_of(user_design("mine:ASKS"))
    assert [rule.name for rule in asks.rows[-2:]] == ["ask", "give_up"]
    assert [field.name for field in asks.state[len(ROOM.state) :]] == ["asked"]
    code, said = command("prove", "--design", "mine:ASKS", "--property", "no-ghost", "--workers", "1")
    assert (code, "mine:ASKS locked" in said) == (0, True)
    assert command("prove", "--design", "mine:HASTY", "--property", "all-settle")[0] == 1


def test_a_lemma_is_taken_out(command: Command) -> None:
    """What rested on it is unknown: the step at which the induction fails, and the two states."""
    code, said = command("prove", "--design", "mine:BARE", "--property", "pages-held", "--workers", "1")
    assert code == 3
    step, before, after = said[said.index("unknown: ") :].splitlines()[1:4]
    assert step == "step reuse does not keep the lemma 'old workers'"
    assert "phase = done" in before
    assert before.startswith("  before: gen = first")
    assert after.startswith("  after:  gen = second")
    assert "to the end" in said


def test_lemmas_of_ones_own(command: Command) -> None:
    """One in the place of another and one more; a wrong one does no harm, and one that cannot be decided is refused."""
    shipped = [lemma.name for lemma in ROOM.lemmas]
    assert [lemma.name for lemma in protocol_of(user_design("mine:MORE")).lemmas] == [*shipped, "no pages yet"]
    lemmas = {lemma.name for lemma in protocol_of(user_design("mine:BARE")).lemmas}
    assert lemmas == set(shipped) - {"drained"}
    code, said = command("prove", "--design", "mine:WRONG", "--property", "no-ghost", "--workers", "1")
    assert (code, "mine:WRONG locked" in said) == (0, True)
    code, said = command("prove", "--design", "mine:ROUND", "--property", "pages-held", "--workers", "1")
    assert (code, "lemma 'round': for each" in said) == (2, True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("TYPO", "no row of the protocol room is called 'relaese'"),
        ("ACTOR", "row mine: no actor is called 'schedular': they are scheduler, bootstrap, worker"),
        ("PLACE", "row mine: the scheduler is never at 'nowhere'"),
        ("LABEL", "row mine: phase is never 'nowhere'"),
        ("DEEP", "row mine: phase is never 'nowhere'"),
        ("TWIN", "row mine: 'phase' is a field of the protocol, and this is another one of that name"),
        ("NOBODY", "worker needs a worker"),
        ("SORT", "row mine: 'rank' is no sort of the protocol: worker, chunk"),
        ("STATUS", "row mine: 'Done' is no status that this protocol could write"),
        ("TWICE", "two rows have one name: mine, mine"),
        ("OWNER", "row mine: its field 'spare' belongs to no sort of the protocol"),
        ("SPLIT", "row give_up writes, and in split it needs a place between reading and storing"),
        ("NO_ROWS", "its rows are no tuple of kvlatch.spec.schema.Rule"),
        ("NO_NAMES", "`without` is a tuple of names of rows, not 'release'"),
        ("NO_LEMMA", "no lemma of the protocol room is called 'drain': they are "),
        ("NO_CLAIM", "lemma mine: what it claims is no formula"),
        ("NO_FIELD", "lemma 'mine': no row reads or sets its field 'asked'"),
        ("NO_SORT", "a formula is about every 'rank': sorts are worker, chunk"),
        ("NO_ORDER", "a formula is about every 'erlier chunk': sorts are worker, chunk"),
        ("NO_LEMMAS", "its lemmas are no tuple of kvlatch.spec.schema.Lemma"),
        ("TWO_LEMMAS", "two lemmas have one name: mine, mine"),
    ],
)
def test_what_is_no_row_or_lemma_is_one_line(name: str, says: str) -> None:
    """With what could have been meant."""
    with pytest.raises(Refused, match=r"^mine:") as refused:
        user_design(f"mine:{name}")
    assert says in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("asked", [["storm", "--build"], ["check", "log", "--design"]])
def test_no_manager_follows_rows(tmp_path: Path, command: Command, asked: list[str]) -> None:
    """What follows switches only says so, and does not ignore the rows."""
    (tmp_path / "log").write_text('{"kvlatch-log": 2}\n')
    code, said = command(*asked, "mine:UNDRAINED")
    assert (code, "rows of its own" in said) == (2, True)


def test_two_fields_of_one_name() -> None:
    """In one protocol a name means one field."""
    rows = tuple(
        Rule(name, "scheduler", "free", "free", (phase == "boot") & (Field("mine", "room", labels) == "a"))
        for name, labels in (("one", ("a", "b")), ("two", ("a", "c")))
    )
    with pytest.raises(ValueError, match="its field 'mine' is another one"):
        protocol_of(attrs.evolve(DESIGNS["latch"], rows=rows))
