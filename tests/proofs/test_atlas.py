"""The atlas: its counts against reasoning, against brute force over small lattices, and against laws written anew."""

from __future__ import annotations

import functools
import io
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import combinations, permutations, product
from math import factorial

import attrs
import pytest
import z3
from rich.console import Console

from kvlatch.commands.atlas import report
from kvlatch.proofs import atlas as subject
from kvlatch.proofs.atlas import Atlas, as_json
from kvlatch.proofs.merge_laws import CLEARS, PROFILES, SHARED, STATUSES, Entry, Law, broken, census, count
from kvlatch.spec.merges import MERGES, first_terminal_wins
from kvlatch.spec.status import KVPoll

LETTER: dict[str, Entry] = {status.name[0]: status for status in KVPoll} | {"A": None}
OF = {entry: letter for letter, entry in LETTER.items()}

# --- The laws, written anew: over whole tables, in letters -----------------------------------------------------------

Table = dict[str, str]
"""What is stored, by two letters: "TF" is Transferring, Failed written."""


def cells(letters: str) -> list[str]:
    return [old + new for old in letters for new in letters if new != "A"]


def within(table: Table, olds: str, news: str) -> Iterable[tuple[str, str, str]]:
    return ((cell[0], cell[1], stored) for cell, stored in table.items() if cell[0] in olds and cell[1] in news)


AGAIN: dict[str, Callable[[Table], bool]] = {
    "nothing made up": lambda t: all(stored in cell for cell, stored in t.items()),
    "Failed is final": lambda t: {stored for *_, stored in within(t, "F", "FBWTS")} <= {"F"},
    "terminal lands": lambda t: all(stored == new for _, new, stored in within(t, "BWT", "FS")),
    "never back": lambda t: all(
        stored not in "ABWT"[: "ABWT".index(old)] for old, _, stored in within(t, "BWT", "BWT")
    ),
    "never lost": lambda t: all(
        stored not in "ABWT"[: "ABWT".index(new)] for _, new, stored in within(t, "BWT", "BWT")
    ),
    "Success is final": lambda t: {stored for *_, stored in within(t, "S", "FBWTS")} <= {"S"},
    "Success yields to Failed alone": lambda t: (
        {stored for *_, stored in within(t, "S", "F")} <= {"F"}
        and {stored for *_, stored in within(t, "S", "BWTS")} <= {"S"}
    ),
    "opening creates": lambda t: t.get("AB", "B") == "B" and t.get("AW", "W") == "W",
    "nothing else creates": lambda t: {stored for *_, stored in within(t, "A", "FTS")} <= {"A"},
    "every write creates": lambda t: all(stored == new for _, new, stored in within(t, "A", "FBWTS")),
}

LAWS = {law.name: law for law in (*SHARED, *PROFILES.values(), *(law for laws in CLEARS.values() for law in laws))}
RANGE = {name: "S" for name in LAWS if name.startswith("Success")} | {name: "A" for name in LAWS if "creates" in name}
"""The row that a law is about, where a small lattice may not have it."""
SETS = [(profile, clear) for profile in PROFILES for clear in CLEARS]


def laws_of(profile: str, clear: str | None = None) -> tuple[Law, ...]:
    return (*SHARED, PROFILES[profile], *(CLEARS[clear] if clear else ()))


def mapping(table: Table) -> dict[tuple[Entry, Entry], Entry]:
    return {(LETTER[cell[0]], LETTER[cell[1]]): LETTER[stored] for cell, stored in table.items()}


@functools.cache
def found() -> Atlas:
    return subject.atlas()


def test_every_law_is_written_anew() -> None:
    """Each law of the atlas has a second formulation here, and no other has one."""
    assert AGAIN.keys() == LAWS.keys()


# --- Brute force ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("letters", ["FBS", "BWT", *("".join(two) + "A" for two in combinations("FBWTS", 2))])
def test_brute_force(letters: str) -> None:
    """Over every table of a small lattice, every set of laws has as many tables as the atlas says."""
    entries = tuple(LETTER[letter] for letter in letters)
    obeyed: Counter[frozenset[str]] = Counter()
    for stored in product(letters, repeat=len(cells(letters))):
        table = dict(zip(cells(letters), stored, strict=True))
        obeyed[frozenset(name for name, holds in AGAIN.items() if holds(table))] += 1
    assert obeyed.total() == len(letters) ** len(cells(letters))
    for profile, clear in SETS:
        laws = laws_of(profile, clear)
        for size in range(len(laws) + 1):
            for some in combinations(laws, size):
                names = {law.name for law in some}
                assert count(some, entries) == sum(number for held, number in obeyed.items() if names <= held)


@pytest.mark.parametrize("letters", ["FBTS", "FWTS", "FBWT", "FBWTS", "FBWTSA"])
def test_sampled(letters: str) -> None:
    """Near the tables that obey, where random ones are never found, both ways of writing each law agree."""
    chance = random.Random(3)  # noqa: S311
    seen = Counter[str]()
    for profile, clear in SETS:
        table = found().full[profile, clear].table
        right = {cell: OF[table[LETTER[cell[0]], LETTER[cell[1]]]] for cell in cells(letters)}
        for _ in range(200):
            near = right | {
                cell: chance.choice(letters) for cell in chance.sample(cells(letters), chance.randint(0, 3))
            }
            breaks = {name for name, holds in AGAIN.items() if not holds(near)}
            assert set(broken(LAWS.values(), mapping(near))) == breaks
            seen.update(breaks)
    assert seen.keys() == {name for name in LAWS if RANGE.get(name, "F") in letters}


# --- The one table ----------------------------------------------------------------------------------------------------

# sglang 0.5.23, as observed (``domain/sglang.md``): under "failure overrides" the laws leave what is published.
SEEN_IN_0_5_23 = """
      F B W T S
    F F F F F F
    B F B W T S
    W F W W T S
    T F T T T S
    S F S S S S
    A A B W A A
"""
SUCCESS = {"first terminal wins": "S S S S S S", "failure overrides": "S F S S S S"}
NO_ENTRY = {"absent": "A A B W A A", "tombstone": "A F B W T S"}


def expected(profile: str, clear: str) -> Table:
    rows = [row.split() for row in SEEN_IN_0_5_23.strip().splitlines()][1:5]
    rows += [SUCCESS[profile].split(), NO_ENTRY[clear].split()]
    return {old + new: stored for old, *row in rows for new, stored in zip("FBWTS", row, strict=True)}


@pytest.mark.parametrize(("profile", "clear"), SETS)
def test_exactly_one_table(profile: str, clear: str) -> None:
    """With all its laws a profile leaves one table, the expected one, with and without the row of an absent room."""
    one = found().full[profile, clear]
    assert (one.tables, one.universe) == (1, "6^30")
    assert one.table == mapping(expected(profile, clear))
    five = found().profiles[profile]
    assert (five.tables, five.universe) == (1, "5^25")
    assert five.table == {cell: stored for cell, stored in one.table.items() if cell[0] is not None}
    assert len(five.laws) == 6


WITHOUT = {
    # Bootstrapping <- Bootstrapping may be any status; the three cells with WaitingForInput and nothing later may be
    # that or later (4); the five with Transferring may be that, Failed or Success. Nothing else is left open.
    "nothing made up": 5 * 4**3 * 3**5,
    # Otherwise an open cell has two values, the old status and the new one, unless they are the same.
    "Failed is final": 2**4,
    "terminal lands": 2**6,
    "never back": 2**3,
    "never lost": 2**3,
    "Success is final": 2**4,
    "Success yields to Failed alone": 2**4,
    "opening creates": 2**2,
    "nothing else creates": 2**3,
    "every write creates": 2**5,
}


def test_without_one_law() -> None:
    """Dropping a law leaves as many tables as the open cells have values, in five rows and in six."""
    for one in (*found().profiles.values(), *found().full.values()):
        assert one.without == {law.name: WITHOUT[law.name] for law in one.laws}
        assert one.redundant == ()


@pytest.mark.parametrize("profile", PROFILES)
def test_without_one_law_by_z3(profile: str) -> None:
    """Z3 lists the 5 x 5 tables that obey all laws but one, one after the other, and finds no more."""
    for dropped in laws_of(profile):
        if WITHOUT[dropped.name] <= 64:
            assert models([law.name for law in laws_of(profile) if law is not dropped]) == WITHOUT[dropped.name]


def models(names: Iterable[str]) -> int:
    """How many tables obey, each found by Z3 and then excluded; the laws as formulas over 25 unknowns."""
    f, b, _, t, s = range(5)
    live = range(b, t + 1)
    cell = {(old, new): z3.Int(f"{old},{new}") for old, new in product(range(5), repeat=2)}
    later = {old: [z3.Or(cell[old, new] >= old, cell[old, new] == f) for new in live] for old in live}
    no_less = {new: [z3.Or(cell[old, new] >= new, cell[old, new] == f) for old in live] for new in live}
    formulas = {
        "nothing made up": [z3.Or(value == old, value == new) for (old, new), value in cell.items()],
        "Failed is final": [cell[f, new] == f for new in range(5)],
        "terminal lands": [cell[old, new] == new for old in live for new in (f, s)],
        "never back": [formula for old in live for formula in later[old]],
        "never lost": [formula for new in live for formula in no_less[new]],
        "Success is final": [cell[s, new] == s for new in range(5)],
        "Success yields to Failed alone": [cell[s, f] == f, *(cell[s, new] == s for new in range(1, 5))],
    }
    solver = z3.Solver()
    solver.add([z3.And(value >= 0, value <= 4) for value in cell.values()])
    solver.add([formula for name in names for formula in formulas[name]])
    number = 0
    while solver.check() == z3.sat:
        model = solver.model()
        solver.add(z3.Or([value != model.eval(value) for value in cell.values()]))
        number += 1
    assert solver.check() == z3.unsat
    return number


def test_every_mutant_breaks_a_law() -> None:
    """Each of the 30 cells set to each of the five other values is noticed, also by the laws written anew."""
    for (profile, clear), one in found().full.items():
        right = expected(profile, clear)
        assert (len(one.mutants), one.survivors) == (150, ())
        for cell, value in product(right, "FBWTSA"):
            if value != right[cell]:
                changed = (LETTER[cell[0]], LETTER[cell[1]]), LETTER[value]
                names = [law.name for law in one.laws]
                assert one.mutants[changed] == tuple(name for name in names if not AGAIN[name](right | {cell: value}))


def test_each_law_alone_notices_some_mutant() -> None:
    """As many as the values that its open cells have besides the right one."""
    alone = {
        "nothing made up": 4 + 3 * 3 + 5 * 2,
        "Failed is final": 4,
        "terminal lands": 6,
        "never back": 3,
        "never lost": 3,
        "Success is final": 4,
        "Success yields to Failed alone": 4,
        "opening creates": 2,
        "nothing else creates": 3,
        "every write creates": 5,
    }
    for one in found().full.values():
        assert one.alone == {law.name: alone[law.name] for law in one.laws}


def test_a_missing_law_is_an_error() -> None:
    """A census whose laws leave several tables is refused, and says how many and by which laws."""
    with pytest.raises(ValueError, match=r"^64 tables obey, not one: nothing made up, Failed is final, never back"):
        census(tuple(law for law in laws_of("failure overrides") if law.name != "terminal lands"), STATUSES)


def test_a_doubled_law_is_redundant_and_a_survivor_is_shown() -> None:
    """What the atlas says of its own laws, that none is redundant and no mutant survives, can come out otherwise."""
    laws = laws_of("failure overrides")
    again = attrs.evolve(SHARED[1], name="again")
    assert census((*laws, again), STATUSES).redundant == ("Failed is final", "again")
    one = census(laws, STATUSES)
    mutant = next(iter(one.mutants))
    assert attrs.evolve(one, mutants=one.mutants | {mutant: ()}).survivors == (mutant,)  # type: ignore[operator]  # a dict


# --- Algebra ----------------------------------------------------------------------------------------------------------


def test_algebra() -> None:
    """Both tables are associative and idempotent; only "failure overrides", a maximum, is commutative."""
    assert found().algebra == {
        "first terminal wins": {"associative": True, "idempotent": True, "commutative": False},
        "failure overrides": {"associative": True, "idempotent": True, "commutative": True},
    }


def test_algebra_cannot_replace_the_law_about_success() -> None:
    """Of the tables that differ in the row of Success, being associative and idempotent leaves five, not two.

    Besides the two profiles: Success yields to Failed, and to live writes from some point on.
    """
    right = expected("failure overrides", "absent")
    left = []
    for row in product("FBWTS", repeat=5):
        m = {cell: stored for cell, stored in right.items() if cell[0] != "A"}
        m |= {"S" + new: stored for new, stored in zip("FBWTS", row, strict=True)}
        if m["SS"] == "S" and all(m[m[a + b] + c] == m[a + m[b + c]] for a, b, c in product("FBWTS", repeat=3)):
            left.append("".join(row))
    assert sorted(left) == ["FSSSS", "FSSTS", "FSTTS", "FTTTS", "SSSSS"]


def test_commutative() -> None:
    """Z3: any two of the three demands have a table, all three have none."""
    answers = found().commutative.answers
    assert found().commutative.impossible
    assert {len(names): answers[names] for names in answers} == {1: "sat", 2: "sat", 3: "unsat"}
    assert sorted(answers.values()) == ["sat"] * 6 + ["unsat"]
    assert not subject.Clash({("a",): "sat", ("a", "b"): "unknown"}).impossible


def test_commutative_by_brute_force() -> None:
    """Over all tables of three statuses: both final and commutative, none; without one demand, some."""
    held = Counter[tuple[bool, bool, bool]]()
    for stored in product("FBS", repeat=9):
        m = dict(zip(cells("FBS"), stored, strict=True))
        commutative = all(m[cell] == m[cell[::-1]] for cell in m)
        held[AGAIN["Failed is final"](m), AGAIN["Success is final"](m), commutative] += 1
    assert held[True, True, True] == 0
    assert held[True, True, False] == 3**3
    assert held[True, False, True] == held[False, True, True] == 3**3


# --- Renumberings -----------------------------------------------------------------------------------------------------


def test_renumberings() -> None:
    """How many of the 120 orders of the statuses obey each law, by counting; none serves both time and ranks."""
    counts = found().renumberings
    assert counts.total == factorial(5)
    assert counts.laws == {
        "nothing made up": 120,
        "Failed is final": factorial(4),  # on top
        "terminal lands": 2 * factorial(3),  # Failed and Success on top, in either order
        "never back": 120 // factorial(3),  # one order of the three live statuses
        "never lost": 120 // factorial(3),
        "Success is final": factorial(4),
        "Success yields to Failed alone": factorial(3),  # Success above all live ones, Failed above it
    }
    assert counts.both_sticky == 0
    f, b, w, t, s = STATUSES
    assert counts.over_time == {"first terminal wins": set(), "failure overrides": {(b, w, t, s, f)}}
    assert counts.over_ranks == {(f, b, w, t, s)}  # the shipped one
    assert counts.both == counts.turned == set()


def test_renumberings_can_be_right() -> None:
    """What is none here is found where it is, and backwards too where minimum and maximum may be exchanged."""
    f, b, w, t, s = STATUSES
    counts = attrs.evolve(found().renumberings, over_ranks=frozenset({(b, w, t, s, f)}))
    assert counts.both == {(b, w, t, s, f)}
    assert counts.turned == {(b, w, t, s, f), (f, s, t, w, b)}
    backwards = attrs.evolve(counts, over_ranks=frozenset({(f, s, t, w, b)}))
    assert backwards.both == set()
    assert backwards.turned == counts.turned


def test_renumberings_by_numbers() -> None:
    """Numbers given to the letters, ``max`` and ``min`` of numbers, and MIN over all triples of ranks."""
    over_time, over_ranks, both_sticky = set(), set(), 0
    for numbers in permutations(range(5)):
        number = dict(zip("FBWTS", numbers, strict=True))
        letter = dict(sorted(zip(numbers, "FBWTS", strict=True)))
        table = {a + b: letter[max(number[a], number[b])] for a, b in product("FBWTS", repeat=2)}
        both_sticky += AGAIN["Failed is final"](table) and AGAIN["Success is final"](table)
        for profile in PROFILES:
            if table.items() <= expected(profile, "absent").items():
                over_time.add((profile, "".join(letter.values())))
        reduced = {ranks: letter[min(map(number.__getitem__, ranks))] for ranks in product("FBWTS", repeat=3)}
        if all(status == min(ranks, key="FBWTS".index) for ranks, status in reduced.items()):
            over_ranks.add(numbers)
    assert over_time == {("failure overrides", "BWTSF")}
    assert over_ranks == {tuple(KVPoll)}  # the shipped one
    assert both_sticky == 0


def test_ties_do_what_numbers_cannot() -> None:
    """``max(old, new, key=…)`` with Failed and Success equally high is "first terminal wins"; swapped, it is not."""
    height = dict(zip("BWTFS", (0, 1, 2, 3, 3), strict=True))
    right = {cell: stored for cell, stored in expected("first terminal wins", "absent").items() if cell[0] != "A"}
    assert {cell: max(cell, key=height.__getitem__) for cell in right} == right
    assert {cell: max(cell[::-1], key=height.__getitem__) for cell in right} != right


# --- Published rules --------------------------------------------------------------------------------------------------

FAILED_OVERWRITTEN = "FB:B FW:W FT:T FS:S"
FAILED_LOST = "BF:B WF:W TF:T"
CHANGES = {
    # rule: cells to change for first terminal wins, failure overrides, no entry, no entry behind tombstones
    "plain_max": (
        f"{FAILED_OVERWRITTEN} {FAILED_LOST}",
        f"{FAILED_OVERWRITTEN} {FAILED_LOST} SF:S",
        "AF:F AT:T AS:S",
        "",
    ),
    "failed_else_max": (f"{FAILED_OVERWRITTEN} SF:F", FAILED_OVERWRITTEN, "AF:F AT:T AS:S", ""),
    "failed_else_max_if_present": (f"{FAILED_OVERWRITTEN} SF:F", FAILED_OVERWRITTEN, "AT:T AS:S", "AF:A"),
    "nixl_override": ("SF:F", "", "AT:T AS:S", "AF:A"),
    "mori_override": ("SF:F", "", "", "AF:A AT:A AS:A"),
    "sglang_0_5_20": ("SF:F", "", "", "AF:A AT:A AS:A"),
    "failure_overrides": ("SF:F", "", "AF:F AT:T AS:S", ""),
    "first_terminal_wins": ("", "SF:S", "AF:F AT:T AS:S", ""),
}


def test_rules() -> None:
    """The cells that must change, from the published tables by hand; ``stored, should be right`` for each."""
    assert [rule.name for rule in found().rules] == list(MERGES) == list(CHANGES)
    for rule in found().rules:
        assert list(rule.changes) == [*PROFILES, *CLEARS]
        for demand, text in zip(rule.changes, CHANGES[rule.name], strict=True):
            right = expected(
                demand if demand in PROFILES else "failure overrides", demand if demand in CLEARS else "absent"
            )
            assert [str(change) for change in rule.changes[demand]] == [
                f"{cell[0]} <- {cell[1]}: {stored}, should be {right[cell]}"
                for cell, _, stored in (word.partition(":") for word in text.split())
            ]
            assert bool(rule.changes[demand]) == bool(rule.breaks[demand])


def test_rule_breaks() -> None:
    """What a published merge breaks is named, by profile and by what clearing leaves."""
    breaks = {rule.name: rule.breaks for rule in found().rules}
    assert breaks["plain_max"]["first terminal wins"] == ("Failed is final", "terminal lands")
    assert breaks["sglang_0_5_20"]["first terminal wins"] == ("Success is final",)
    assert breaks["nixl_override"]["absent"] == ("nothing else creates",)
    assert breaks["mori_override"]["tombstone"] == ("every write creates",)


def test_no_smaller_change_mends_a_rule() -> None:
    """The changes of ``failed_else_max`` mend it, and no part of them does."""
    rule = next(rule for rule in found().rules if rule.name == "failed_else_max")
    changes = rule.changes["failure overrides"]
    table = {cell: stored for cell, stored in subject.result(MERGES[rule.name]).items() if cell[0] is not None}
    mended = table | {change.cell: change.should for change in changes}
    assert broken(laws_of("failure overrides"), mended) == ()
    for size in range(len(changes)):
        for some in combinations(changes, size):
            assert broken(laws_of("failure overrides"), table | {each.cell: each.should for each in some})


# --- Output -----------------------------------------------------------------------------------------------------------


def printed(width: int = 160) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(*report(found()), sep="\n")
    return output.getvalue()


def test_report() -> None:
    """The printed atlas has both tables and every sentence that it is there for."""
    lines = [line.split() for line in printed().splitlines()]
    start = lines.index(["F", "B", "W", "T", "S"] * 2)
    both = [
        [old, *(expected(profile, "absent")[old + new] for new in "FBWTS")] for old in "FBWTSA" for profile in PROFILES
    ]
    assert lines[start + 2 : start + 8] == [left + right for left, right in zip(both[::2], both[1::2], strict=True)]
    words = " ".join(printed().split())
    assert "first terminal wins: 1 of 5^25 tables of 5 x 5 obeys; unasked, it is associative, idempotent." in words
    assert "150 of 150 mutants break a law; no law is redundant" in words
    assert "both, max for either profile 0" in words
    assert "Z3: there is none among all 5 x 5 tables." in words
    assert "S <- F: F, should be S" in words
    assert all(law.says in words for law in (*SHARED, *PROFILES.values(), *CLEARS["absent"]))


@pytest.mark.parametrize("width", [40, 80])
def test_report_on_a_narrow_terminal(width: int) -> None:
    """No line is longer than the terminal is wide."""
    assert all(len(line) <= width for line in printed(width).splitlines())


def test_json() -> None:
    """The JSON says the same as the printed atlas: tables, counts and laws."""
    data = json.loads(json.dumps(as_json(found())))
    assert data["renumberings"]["over_time"] == {"first terminal wins": [], "failure overrides": ["B < W < T < S < F"]}
    assert data["renumberings"]["over_ranks"] == ["F < B < W < T < S"]
    assert data["renumberings"]["both"] == []
    assert data["commutative"]["impossible"] is True
    assert data["profiles"]["first terminal wins"]["tables"] == 1
    six = data["full"][0]
    assert (six["profile"], six["clear"], six["universe"], six["mutants"]) == (
        "first terminal wins",
        "absent",
        "6^30",
        150,
    )
    assert six["table"]["Success"]["Failed"] == "Success"
    assert six["table"]["Absent"] == {
        "Failed": "Absent",
        "Bootstrapping": "Bootstrapping",
        "WaitingForInput": "WaitingForInput",
        "Transferring": "Absent",
        "Success": "Absent",
    }
    assert {law["name"]: law["without"] for law in six["laws"]} == {
        name: WITHOUT[name] for name in (law["name"] for law in six["laws"])
    }
    assert data["rules"]["sglang_0_5_20"]["first terminal wins"] == {
        "breaks": ["Success is final"],
        "changes": ["S <- F: F, should be S"],
    }
    assert data["rules"][first_terminal_wins.__name__]["first terminal wins"]["changes"] == []


def test_it_takes_no_time() -> None:
    """Well under the two seconds that the command has, start included."""
    start = time.process_time()
    subject.atlas()
    assert time.process_time() - start < 1
