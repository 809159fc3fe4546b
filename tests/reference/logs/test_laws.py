"""The verdict on every event after every status, against rules in plain words and against the spec's merges."""

from itertools import product

import pytest

from kvlatch.reference.logs.laws import (
    CODES,
    EVENTS,
    LIVE,
    MERGE,
    OPS,
    PROFILES,
    SILENT,
    STATUSES,
    UNOBSERVED,
    UNSAID,
    Event,
    Laws,
    encode,
)
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.merges import KEEP, MERGES
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.schema import Profile
from kvlatch.spec.status import KVPoll


def in_words(before: str, event: Event, profile: Profile) -> str | None:
    """The law that an event breaks, as the sentences of the properties say it."""
    if event.observed in (None, "Absent"):
        return None
    create = event.op == "create"
    cleared = event.op == "clear" or (before == "Absent" and not create)
    if not cleared:
        if before == "Failed" and event.observed != "Failed":
            return "terminal-sticky"
        if before == "Success" and event.observed in ("Bootstrapping", "WaitingForInput", "Transferring"):
            return "terminal-sticky"
        if before == "Success" and event.observed == "Failed" and profile == "first terminal wins":
            return "success-not-overwritten"
        if before in ("WaitingForInput", "Transferring") and event.observed == "Bootstrapping":
            return "no-lost-wakeup"
        if create and before not in LIVE and event.observed in ("Failed", "Transferring", "Success"):
            return "room-reusable"
        return None
    if before == "Failed" and event.observed in ("Transferring", "Success"):
        return "no-resurrection"
    return "no-ghost"


@pytest.mark.parametrize("profile", PROFILES)
def test_every_verdict_is_the_one_that_the_properties_say_in_words(profile: Profile) -> None:
    """All six statuses times seventy events are judged as the sentences of the properties would."""
    broken = Laws.of(profile).broken
    cells = list(product(enumerate(STATUSES), enumerate(EVENTS)))
    assert len(cells) == 6 * 70
    for (row, before), (code, event) in cells:
        assert broken[row][code] == in_words(before, event, profile), (before, event)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_terminal_status_may_become_exactly_what_the_merge_of_that_name_makes_of_it(profile: Profile) -> None:
    """The profiles are two merges of the spec: a write over a terminal status is judged as its merge decides."""
    merge = MERGES[profile.replace(" ", "_")]
    laws = Laws.of(profile)
    for before, after in product((KVPoll.Failed, KVPoll.Success), KVPoll):
        reachable = {before} | {new for new in (merge(before, incoming) for incoming in KVPoll) if new != KEEP}
        verdict = laws.broken[before][encode(OPS.index("write"), UNSAID, after)]
        assert (verdict is None) == (after in reachable), (before, after)


@pytest.mark.parametrize("profile", PROFILES)
def test_no_merge_step_of_the_profile_is_called_broken(profile: Profile) -> None:
    """Whatever a sticky merge stores over a status in the table passes every law."""
    merge = MERGES[profile.replace(" ", "_")]
    laws = Laws.of(profile)
    for before, incoming in product(KVPoll, KVPoll):
        stored = merge(before, incoming)
        after = before if stored == KEEP else KVPoll(stored)
        assert laws.broken[before][encode(OPS.index("write"), incoming, after)] is None, (before, incoming)


@pytest.mark.parametrize("name", DESIGNS)
def test_with_a_design_a_write_must_leave_what_its_merge_makes_of_it(name: str) -> None:
    """For each design, status and write, exactly one observed status does not break the law of the merge."""
    design = DESIGNS[name]
    laws, plain = Laws.of(design=design), Laws.of()
    for before, incoming in product(KVPoll, KVPoll):
        stored = design.merge(before, incoming)
        right = before if stored == KEEP else KVPoll(stored)
        for after in KVPoll:
            code = encode(OPS.index("write"), incoming, after)
            expected = plain.broken[before][code] or (None if after == right else MERGE)
            assert laws.broken[before][code] == expected, (before, incoming, after)


def test_a_lost_failure_is_found_where_the_design_is_named() -> None:
    """An abort that leaves Transferring breaks no property, but it does break the merge of a design that takes it."""
    code = encode(OPS.index("abort"), UNSAID, KVPoll.Transferring)
    assert Laws.of().broken[KVPoll.Transferring][code] is None
    laws = Laws.of(design=DESIGNS["latch"])
    assert laws.broken[KVPoll.Transferring][code] == MERGE
    assert laws.says(MERGE, "Transferring", EVENTS[code]) == "In latch, Failed written over Transferring leaves Failed."


def test_behind_a_tombstone_only_a_create_is_held_against_the_merge() -> None:
    """Whether a write reaches a tombstone depends on its request, so a write there that stores nothing is no fault."""
    absent = STATUSES.index("Absent")
    late = encode(OPS.index("write"), KVPoll.WaitingForInput, absent)
    assert Laws.of(design=DESIGNS["latch"]).broken[absent][late] is None
    assert Laws.of(design=DESIGNS["fix-a"]).broken[absent][late] == MERGE
    assert Laws.of(design=DESIGNS["latch"]).broken[absent][encode(0, UNSAID, absent)] == MERGE


def test_bytes_and_events_are_one_to_one() -> None:
    """Every event that a log can say has a byte of its own, below CODES, that decodes to it."""
    seen = set()
    for (op, name), incoming, observed in product(enumerate(OPS), range(UNSAID + 1), range(UNOBSERVED + 1)):
        code = encode(op, incoming, observed)
        event = Event.of(code)
        seen.add(code)
        assert event.op == name
        assert event.observed == (*STATUSES, None)[observed]
        if name == "write":
            assert event.incoming == (*STATUSES[:5], None)[incoming]
    assert seen == set(range(CODES))


def test_silent_events_are_those_that_leave_a_status_unknown_to_the_log() -> None:
    """An unobserved poll, abort or write says nothing of the room; an unobserved create or clear does."""
    silent = {event for code, event in enumerate(EVENTS) if code >= SILENT}
    assert silent == {event for event in EVENTS if event.observed is None and event.op not in ("create", "clear")}


def test_live_statuses_are_those_that_pin_an_idle_request() -> None:
    """LIVE agrees with the property no-pin: in the inflight queue, with every thread idle, they are the pinned ones."""
    machine = Machine.of(DESIGNS["latch"], "locked", "orderly", Instance(workers=1, chunks=1))
    bad = machine.model.claim(BY_NAME["no-pin"].bad)

    def pins(status: str) -> bool:
        labels = {"phase": "inflight", "status": status}
        state = {var: var.index(labels.get(var.field.name, var.labels[0])) for var in machine.model.variables}
        return machine.holds(bad, state)

    assert [status.name for status in KVPoll if pins(status.name)] == list(LIVE)


def test_an_unknown_profile_is_named() -> None:
    """A profile that there is not is refused, with those that there are."""
    with pytest.raises(ValueError, match=r"no profile is called 'sticky': they are first terminal wins"):
        Laws.of("sticky")  # type: ignore[arg-type]  # what a caller without a type checker may pass
