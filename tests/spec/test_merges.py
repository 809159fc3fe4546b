"""The merges: each published rule against the table that the wheels were seen to have."""

from __future__ import annotations

from itertools import product

import pytest

from kvlatch.spec import merges
from kvlatch.spec.merges import KEEP, MERGES, Kept, Merge, table
from kvlatch.spec.status import TERMINAL, KVPoll

LETTERS = {"F": KVPoll.Failed, "B": KVPoll.Bootstrapping, "W": KVPoll.WaitingForInput, "T": KVPoll.Transferring}
LETTERS["S"] = KVPoll.Success

# What is stored, by entry (F, B, W, T, S, and A for no entry) and incoming status; a dot where nothing is.
STORED = {
    "plain_max": """
          F B W T S
        F F B W T S
        B B B W T S
        W W W W T S
        T T T T T S
        S S S S S S
        A F B W T S
    """,
    "failed_else_max": """
          F B W T S
        F F B W T S
        B F B W T S
        W F W W T S
        T F T T T S
        S F S S S S
        A F B W T S
    """,
    "failed_else_max_if_present": """
          F B W T S
        F F B W T S
        B F B W T S
        W F W W T S
        T F T T T S
        S F S S S S
        A . B W T S
    """,
    "nixl_override": """
          F B W T S
        F . . . . .
        B F B W T S
        W F W W T S
        T F T T T S
        S F S S S S
        A . B W T S
    """,
    "mori_override": """
          F B W T S
        F F . . . .
        B F B W T S
        W F W W T S
        T F T T T S
        S F S S S S
        A . B W . .
    """,
    "sglang_0_5_20": """
          F B W T S
        F F . . . .
        B F B W T S
        W F W W T S
        T F T T T S
        S F S S S S
        A . B W . .
    """,
    "failure_overrides": """
          F B W T S
        F F . . . .
        B F B W T S
        W F W W T S
        T F T T T S
        S F . . . .
        A F B W T S
    """,
    "first_terminal_wins": """
          F B W T S
        F . . . . .
        B F B W T S
        W F W W T S
        T F T T T S
        S . . . . .
        A F B W T S
    """,
}

# What sglang 0.5.23 leaves in the table (common, nixl, mooncake, mori and ascend), as observed from outside.
SEEN_IN_0_5_23 = """
      F B W T S
    A A B W A A
    F F F F F F
    B F B W T S
    W F W W T S
    T F T T T S
    S F S S S S
"""

CELLS = list(product((*KVPoll, None), KVPoll))


def grid(text: str) -> dict[tuple[KVPoll | None, KVPoll], str]:
    """A table as text, by current and incoming status."""
    head, *rows = [line.split() for line in text.strip().splitlines()]
    return {
        (LETTERS.get(current), LETTERS[incoming]): cell
        for current, *cells in rows
        for incoming, cell in zip(head, cells, strict=True)
    }


def after(merge: Merge, current: KVPoll | None, incoming: KVPoll) -> KVPoll | None:
    """What the table shows after a write."""
    stored = merge(current, incoming)
    return current if isinstance(stored, str) else stored


@pytest.mark.parametrize("name", MERGES)
def test_every_cell_is_the_published_one(name: str) -> None:
    """Every merge stores, in all thirty cells, exactly what its table says, and returns where it has a dot."""
    expected = grid(STORED[name])
    assert {cell: MERGES[name](*cell) for cell in CELLS} == {
        cell: LETTERS.get(letter, KEEP) for cell, letter in expected.items()
    }


def test_newest_published_rule_leaves_what_was_observed() -> None:
    """The rule of 0.5.20 leaves the table that 0.5.23 was seen to leave."""
    seen = {cell: after(merges.sglang_0_5_20, *cell) for cell in CELLS}
    assert seen == {cell: LETTERS.get(letter) for cell, letter in grid(SEEN_IN_0_5_23).items()}


@pytest.mark.parametrize(
    ("name", "sticky"),
    [
        ("plain_max", "S"),
        ("failed_else_max", ""),
        ("failed_else_max_if_present", ""),
        ("nixl_override", "F"),
        ("mori_override", "F"),
        ("sglang_0_5_20", "F"),
        ("failure_overrides", "F"),
        ("first_terminal_wins", "FS"),
    ],
)
def test_which_terminal_statuses_are_sticky(name: str, sticky: str) -> None:
    """Only first-terminal-wins keeps both terminal statuses; no published rule does."""
    kept = {status for status in TERMINAL if all(after(MERGES[name], status, new) == status for new in KVPoll)}
    assert kept == {LETTERS[letter] for letter in sticky}


def test_failure_overrides_lets_only_failed_replace_success() -> None:
    """Under failure-overrides no live status replaces Success, and Failed does."""
    replaced = [new for new in KVPoll if after(merges.failure_overrides, KVPoll.Success, new) != KVPoll.Success]
    assert replaced == [KVPoll.Failed]


def test_keeping_is_not_storing_the_same_value() -> None:
    """A merge that stores the old value once more says so: only KEEP means that the table is not touched."""
    failed = KVPoll.Failed
    assert merges.sglang_0_5_20(failed, failed) == failed
    assert merges.first_terminal_wins(failed, failed) == KEEP
    assert table(merges.sglang_0_5_20)[0][0] == failed
    assert table(merges.first_terminal_wins)[0][0] == KEEP


@pytest.mark.parametrize("name", MERGES)
def test_table_is_the_merge(name: str) -> None:
    """A table has a row for each status and one for no entry, with the merge's answers in the order of KVPoll."""
    assert [cell for row in table(MERGES[name]) for cell in row] == [MERGES[name](*cell) for cell in CELLS]


@pytest.mark.parametrize(
    ("current", "name"), [(KVPoll.Transferring, "Transferring"), (None, "Absent")], ids=["live", "absent"]
)
def test_table_names_the_cell_that_is_no_status(current: KVPoll | None, name: str) -> None:
    """A merge that answers with something else than a status is refused, with the cell and the answer."""

    def wrong(entry: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
        return 7 if (entry, incoming) == (current, KVPoll.Success) else KEEP  # type: ignore[return-value]  # the point

    with pytest.raises(ValueError, match=rf"^merge wrong: {name} <- Success gives 7, not a KVPoll$"):
        table(wrong)
