"""The mutants: each breaks its property, and exactly what it says it breaks."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from kvlatch.proofs.mutants import MUTANTS
from kvlatch.proofs.mutation import LATCH, Mutant, changed, refute, search, without
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.protocol import RULES, phase, status
from kvlatch.spec.protocols import PROTOCOLS
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import ANY

LENGTHS = {
    "reopened": 6,
    "revived by metadata": 4,
    "revived by max": 10,
    "failure overrides": 14,
    "uncounted": 14,
    "unreported failure": 11,
    "no timeout": 1,
    "kept for ever": 12,
    "never cleared": 5,
    "no tombstone": 7,
    "no drain": 15,
    "released by abort": 10,
    "latched blindly": 14,
    "no early metadata": 2,
    "notice without generation": 9,
    "bootstrap thread without generation": 15,
    "worker without generation": 22,
    "queue without generation": 16,
    "given up after success": 17,
    "dropped on admission": 7,
    "metadata beside the vote": 14,
    "failure after success": 15,
    "voted, not written": 4,
    "reason left behind": 5,
    "loop that ends": 4,
    "released with the failure": 6,
    "any end counts": 6,
    "missed late": 5,
    "clock before queue": 8,
    "registered late": 5,
    "waits for ever": 2,
    "an id for each leg": 4,
    "hang-up kept back": 6,
    "retried under the old id": 5,
    "clock from dispatch": 3,
    "error as an answer": 4,
    "error in the log": 4,
    "started dead": 4,
    "retracted from its jobs": 4,
    "flushed under a pin": 2,
    "gauge of events": 3,
    "failures of one kind": 3,
    "first deadline alone": 5,
    "failed after all": 16,
    "reported unwritten": 8,
    "done when posted": 12,
    "counted from the answer": 5,
    "lease outlasted": 9,
}
"""The shortest run of each that breaks its property."""

RECOMMENDED = {
    "room": LATCH,
    **{name: protocol.designs[f"{name}-latch"] for name, protocol in PROTOCOLS.items() if name != "room"},
}

EACH = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))


def test_every_property_has_a_mutant() -> None:
    """No property goes without a mutant that breaks it, and no mutant breaks something unknown."""
    for protocol in PROTOCOLS.values():
        names = {prop.name for prop in protocol.properties}
        mutants = [mutant for mutant in MUTANTS if mutant.of is protocol]
        assert {mutant.prop for mutant in mutants} == names
        assert {prop for mutant in mutants for prop in mutant.also} <= names
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_ten_properties_have_a_mutant_of_their_own() -> None:
    """Each property but two is broken by some mutant that breaks nothing else."""
    alone = {mutant.prop for mutant in MUTANTS if not mutant.also and mutant.of is ROOM}
    assert set(BY_NAME) - alone == {"success-not-overwritten", "no-pin"}


@EACH
def test_mutant_is_refuted(mutant: Mutant) -> None:
    """Explicit search finds the shortest run that breaks the mutant's property, of the length that is pinned."""
    assert refute(mutant) == LENGTHS[mutant.name]


@EACH
def test_mutant_breaks_what_it_says(mutant: Mutant) -> None:
    """It breaks its property and those in ``also``, and no other."""
    assert search(mutant).violations.keys() == {mutant.prop, *mutant.also}


@EACH
def test_unmutated_design_breaks_nothing_there(mutant: Mutant) -> None:
    """On the same instance, the recommended design with the protocol as it is keeps all, and every life ends.

    Where there is no end of lives, the run has none either.
    """
    found = search(attrs.evolve(mutant, rules=mutant.of.rows, design=RECOMMENDED[mutant.of.name]))
    assert found.violations == {}
    assert found.complete
    assert found.cyclic is (mutant.instance.count("request") == ANY)


def answers(mutant: Mutant) -> Iterator[str]:
    """The questions that the mutant's design answers otherwise than the recommended one: switches, or the merge."""
    recommended, design = RECOMMENDED[mutant.of.name], mutant.design
    ours, theirs = (one.positions(mutant.atomicity, mutant.network) for one in (recommended, design))
    yield from (switch.name for switch in ours if ours[switch] != theirs[switch])
    if getattr(recommended, "merge", None) is not getattr(design, "merge", None):
        yield "merge"


@EACH
def test_mutant_is_one_change(mutant: Mutant) -> None:
    """It differs from the protocol in one row, or from the design in one answer, and says how."""
    ours, theirs = ({rule.name: id(rule) for rule in rules} for rules in (mutant.of.rows, mutant.rules))
    rows = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    assert len(rows) + len(list(answers(mutant))) == 1
    assert mutant.says.endswith(".")


def test_mutant_that_breaks_nothing_is_an_error() -> None:
    """The protocol itself is no mutant: refuting it raises, and names what was not broken."""
    nothing = Mutant("nothing", "no-ghost", "Nothing is changed.")
    with pytest.raises(ValueError, match=r"^the mutant 'nothing' does not break no-ghost$"):
        refute(nothing)


def test_a_row_is_changed_in_part() -> None:
    """What is not named stays: the other parts of the row, its other effects, all other rows, and the protocol."""
    before = {rule.name: rule for rule in RULES}
    after = {rule.name: rule for rule in changed("clear_status", then={status: status}, fair=False)}
    assert list(after) == list(before)
    assert [name for name in before if before[name] is not after[name]] == ["clear_status"]
    assert after["clear_status"].then == {**before["clear_status"].then, status: status}
    assert after["clear_status"].when is before["clear_status"].when
    assert not after["clear_status"].fair
    assert after["clear_status"].then[phase] == "forgetting"


def test_only_rows_that_exist_are_changed() -> None:
    """A row that the protocol does not have can be neither changed nor left out."""
    with pytest.raises(KeyError, match=r"^'clear'$"):
        changed("clear", fair=False)
    with pytest.raises(KeyError, match=r"^'clear'$"):
        without("clear")
