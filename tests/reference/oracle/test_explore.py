"""Exploration is exhaustive and shortest, random plays shrink, and a play is its text."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from kvlatch.reference.oracle.checks import LAWS
from kvlatch.reference.oracle.explore import STAGES, Play, explore, replay
from kvlatch.reference.oracle.formulas import broken
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.inprocess import InProcess
from kvlatch.reference.oracle.moves import EVENTS, Bounds, Call, Move, Script, Seen, Step
from kvlatch.reference.oracle.turns import turns
from kvlatch.spec.status import KVPoll
from tests.reference.oracle import managers

ORDERLY = Bounds()


def test_shortest() -> None:
    """Nothing shorter with as few preemptions breaks the law: every such play is made, and none does."""
    found = explore(InProcess(managers.FailureOverrides), ORDERLY, ["success-not-overwritten"]).found[
        "success-not-overwritten"
    ]
    longest = len(found.moves) - 1
    level = [Play(ORDERLY)]
    player = InProcess(managers.FailureOverrides)
    for _ in range(longest):
        grown = [(play, move) for play in level for move in play.world.moves()]
        longer = [replay(player, f"{play} {move}") for play, move in grown]
        level = [play for play in longer if play.world.preemptions <= found.world.preemptions]
        assert not any("success-not-overwritten" in play.broken() for play in level)
        level = list({play.place: play for play in level}.values())


def test_complete_or_not() -> None:
    """An exploration says whether anything was left out."""
    assert explore(InProcess(managers.Right), ORDERLY, LAWS).complete
    assert not explore(InProcess(managers.Right), ORDERLY, LAWS, limit=50).complete


def test_preemptions() -> None:
    """A race is not found if no thread may be left although it could go on."""
    player = InProcess(managers.Unlocked)
    assert "terminal-sticky" not in explore(player, ORDERLY, ["terminal-sticky"], preemptions=0).found
    assert "terminal-sticky" in explore(player, ORDERLY, ["terminal-sticky"], preemptions=1).found


def test_text_of_a_play() -> None:
    """A play's text plays it again."""
    play = explore(InProcess(managers.NoTombstone), STAGES[0], ["no-ghost"]).found["no-ghost"]
    assert replay(InProcess(managers.NoTombstone), str(play)) == play


@pytest.mark.parametrize("event", EVENTS)
def test_text_of_a_move(event: str) -> None:
    """A move's text is read as that move."""
    thread = "worker 3" if event in ("start", "finish", "break") else None
    move = Move.parse(f"{event}/3" if thread else event)
    assert move.event == event
    assert Move.parse(str(move)) == move
    assert thread in (None, move.thread)
    going_on = attrs.evolve(move, event=None)
    assert Move.parse(str(going_on)) == going_on


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' are no bounds"),
        ("orderly-9-1-1", "'orderly-9-1-1' are no bounds"),
        ("orderly-1-1-1 dance", "'dance' is no move"),
        ("orderly-1-1-1 create clear", "move 2, clear, is not possible there; possible are poll, abort, metadata"),
    ],
)
def test_text_that_is_no_play(text: str, says: str) -> None:
    """What is wrong with a text is said in one line."""
    with pytest.raises(ValueError, match=says):
        replay(InProcess(managers.Right), text)


def test_turns() -> None:
    """Steps in which a thread just goes on belong to one turn; the last step stands alone."""
    create, poll = Call("create", 1), Call("poll", 1)
    script: Script = (
        Step("scheduler", create),
        Step("scheduler"),
        Step("scheduler"),
        Step("scheduler", poll),
        Step("bootstrap", Call("metadata", 1)),
        Step("scheduler"),
    )
    assert [(turn.step, turn.passes, turn.undisturbed) for turn in turns(script)] == [
        (script[0], 2, True),
        (script[3], 0, False),
        (script[4], 0, False),
        (script[5], 0, False),
    ]


class Scripted:
    """A player that sees what it is told to see."""

    def __init__(self, *sights: Seen) -> None:
        self.sights = sights

    def play(self, scripts: Sequence[Script]) -> list[Seen]:
        return [self.sights[len(script) - 1] for script in scripts]


def lived(moves: str, *sights: Seen, bounds: str = "orderly-1-1-1") -> World:
    """What is known after a play in which that is seen."""
    return replay(Scripted(*sights), f"{bounds} {moves}").world


F, B, W, T, S = (Seen(status) for status in KVPoll)


def say(sight: Seen, answer: KVPoll | bool | None = None) -> Seen:
    """A sight with an answer: a poll's own status, if nothing else is said."""
    return attrs.evolve(sight, answer=sight.status if answer is None else answer)


def test_a_good_life() -> None:
    """A request that is transferred is done, and nothing is broken on the way."""
    done = Seen(None, released=(1,))
    world = lived(
        "create metadata poll send start/0 finish/0 poll clear",
        B, W, say(W), say(T, True), attrs.evolve(S, told=((1, KVPoll.Success),)), say(S), done,
    )  # fmt: skip
    one = world.life.now
    assert (one.phase, one.pages, one.wire, one.chunks) == ("done", "released", "Success", ("done",))
    assert broken(world) == []
    assert list(world.moves()) == []


def test_a_pinned_request() -> None:
    """A poll that shows a live status in the inflight queue, with nobody left to act, is a pin."""
    world = lived("create metadata poll send start/0 poll", B, W, say(W), say(W, False), say(W))
    assert broken(world) == ["no-pin", "settlement"]


def test_success_with_a_chunk_missing() -> None:
    """Success in the table before the chunk has arrived is seen at once."""
    assert broken(lived("create metadata poll send start/0", B, W, say(W), say(S, True))) == ["success-complete"]


def test_pages_under_a_transfer() -> None:
    """A release while the transfer reads is seen, and a second release is another law."""
    released = attrs.evolve(say(F, KVPoll.Failed), released=(1,))
    moves = "create metadata poll send start/0 abort poll"
    sights = (B, W, say(W), say(T, True), F)
    assert "pages-held" in broken(lived(moves, *sights, released))
    twice = attrs.evolve(released, released=(1, 1))
    assert "released-once" in broken(lived(moves, *sights, twice))


def test_late_release() -> None:
    """A late release of the first request's pages is a second one, if it ever had any."""
    late = attrs.evolve(B, released=(1,))
    without = lived("create abort poll clear reuse create", B, F, say(F), Seen(None), late, bounds="late-1-1-2")
    assert broken(without) == []
    held = "create metadata poll send start/0 finish/0 poll clear reuse create"
    done = attrs.evolve(Seen(None), released=(1,))
    sights = (B, W, say(W), say(T, True), S, say(S), done, late)
    assert broken(lived(held, *sights, bounds="late-1-1-2")) == ["released-once"]


def test_the_senders_own_word_is_not_the_tables() -> None:
    """An aborted sender that says Failed while the table says Success breaks no law about the table."""
    moves = "create metadata poll send start/0 finish/0 abort poll"
    sights = (B, W, say(W), say(T, True), S, S, say(S, KVPoll.Failed))
    assert "success-not-overwritten" not in broken(lived(moves, *sights))
    hidden = "create metadata poll send start/0 finish/0 poll"  # Success, shown as Transferring for a while
    assert broken(lived(hidden, *sights[:-2], say(S, KVPoll.Transferring))) == ["no-pin", "settlement"]
    overwritten = (*sights[:-2], F, say(F))
    assert "success-not-overwritten" in broken(lived(moves, *overwritten))


def test_an_abort_notice_may_take_the_metadata_away() -> None:
    """Metadata, an abort notice, and only then the room: nobody is waiting for a wake-up."""
    polled = attrs.evolve(B, answer=KVPoll.Bootstrapping)
    early = (
        ("metadata create poll", W, B, polled),
        ("metadata abort_notice create poll", W, Seen(None), B, polled),
    )
    assert [broken(lived(*play, bounds="disorderly-1-1-1")) for play in early] == [["no-lost-wakeup"], []]


def test_deadlock() -> None:
    """All that have begun something wait for each other; whoever moves lets the others try again."""
    held, blocked = attrs.evolve(B, held="here"), attrs.evolve(B, held="there", blocked=True)
    assert not lived("create metadata", held, blocked, bounds="disorderly-1-1-1").deadlock
    assert lived("create metadata scheduler+", held, blocked, blocked, bounds="disorderly-1-1-1").deadlock
    assert not lived("create metadata scheduler+", held, blocked, B, bounds="disorderly-1-1-1").deadlock


def test_words_about_the_first_request_do_not_count_for_the_second() -> None:
    """What decode is told about the first request is no outcome of the second."""
    again = "create abort poll clear reuse create"
    late = attrs.evolve(B, told=((1, KVPoll.Failed),))
    world = lived(again, B, F, say(F), Seen(None), late, bounds="late-1-1-2")
    assert (world.life.request, world.life.now.wire, world.life.now.phase) == (2, "none", "boot")
