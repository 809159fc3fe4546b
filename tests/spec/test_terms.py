"""The language of formulas: typos raise, formulas are data, and one evaluator gives them meaning."""

from __future__ import annotations

from itertools import product

import pytest

from kvlatch.spec.model import Concrete
from kvlatch.spec.terms import (
    FALSE,
    TRUE,
    All,
    Any,
    Field,
    ForAll,
    Is,
    Label,
    LastChunk,
    Merged,
    Not,
    Same,
    Stores,
    Term,
    ThisChunk,
    Var,
    Where,
    assign,
    evaluate,
    fields,
    free,
    rewrite,
    value,
    where,
)

COLOURS = ("red", "green", "blue")
sky = Field("sky", "room", COLOURS)
part = Field("part", "chunk", COLOURS)
hand = Field("hand", "worker", COLOURS)
taken = Field("taken", "worker", ("0", "1"))

left = Var("left", "room", COLOURS, field=sky, place=0)
right = Var("right", "room", COLOURS, field=sky, place=0)
flag = Var("flag", "room", ("off", "on"), field=Field("flag", "room", ("off", "on")), place=0)

MERGE = ((None, 2, 0), (1, 1, 1), (0, 0, 2))
STATES = [{left: one, right: other, flag: third} for one, other, third in product(range(3), range(3), range(2))]


def unchanged(_: Term) -> None:
    """Replaces nothing."""


def meanings(term: Term) -> list[bool]:
    """A formula in every state."""
    return [bool(evaluate(term, Concrete(state, MERGE))) for state in STATES]


def test_unknown_label_raises_where_the_formula_is_written() -> None:
    """A typo in a comparison is an error that names the field and its labels."""
    with pytest.raises(TypeError, match=r"^sky is never 'pink': it is one of red, green, blue$"):
        _ = sky == "pink"
    with pytest.raises(TypeError, match="'gren'"):
        sky.in_("red", "gren")
    with pytest.raises(TypeError, match="never 7"):
        _ = sky != 7


def test_a_formula_is_no_truth_value() -> None:
    """``and``, ``or``, ``not`` and ``if`` on a formula are errors, for they would drop half of it."""
    with pytest.raises(TypeError, match="combine with"):
        bool(sky == "red")


def test_fields_compare_only_if_their_labels_are_the_same() -> None:
    """Two fields with the same labels compare to a formula, two with different labels to an error."""
    assert isinstance(sky == part, Same)
    with pytest.raises(TypeError, match=r"^sky and taken have different labels$"):
        _ = sky == taken


def test_the_first_label_has_index_zero() -> None:
    """A label's index is its place in the field."""
    assert [sky.index(label) for label in COLOURS] == [0, 1, 2]


@pytest.mark.parametrize(
    ("formula", "meaning"),
    [
        (left == "red", lambda s: s[left] == 0),
        (left != "red", lambda s: s[left] != 0),
        (left == right, lambda s: s[left] == s[right]),
        (left != right, lambda s: s[left] != s[right]),
        (left.in_("red", "blue"), lambda s: s[left] != 1),
        (left.in_(), lambda _: False),
        ((left == "red") & (flag == "on"), lambda s: s[left] == 0 and s[flag] == 1),
        ((left == "red") | (flag == "on"), lambda s: s[left] == 0 or s[flag] == 1),
        (~(flag == "on"), lambda s: s[flag] == 0),
        (TRUE, lambda _: True),
        (FALSE, lambda _: False),
        (Stores(left, 0, None), lambda s: s[left] == 0),
        (Stores(left, 0, 1), lambda s: s[left] == 1),
    ],
    ids=range(13),
)
def test_formulas_mean_what_python_would(formula: Term, meaning: object) -> None:
    """Each operator means in every state what it means in Python."""
    assert callable(meaning)
    assert meanings(formula) == [meaning(state) for state in STATES]
    assert meanings(rewrite(formula, unchanged)) == meanings(formula)


@pytest.mark.parametrize(
    ("term", "meaning"),
    [
        (Label("blue"), lambda _: 2),
        (left, lambda s: s[left]),
        (where(flag == "on", "green", left), lambda s: 1 if s[flag] else s[left]),
        (Merged(left, 1), lambda s: (2, 1, 0)[s[left]]),
        (Merged(left, 0), lambda s: (0, 1, 0)[s[left]]),
    ],
    ids=["label", "variable", "where", "merged", "kept"],
)
def test_terms_give_values(term: Term, meaning: object) -> None:
    """A label, a variable, a choice and a merge each give the target an index; a merge that keeps gives the old one."""
    assert callable(meaning)
    for changed in (term, rewrite(term, unchanged)):
        assert [assign(right, changed, Concrete(state, MERGE)) for state in STATES] == [meaning(s) for s in STATES]


@pytest.mark.parametrize("formula", [sky == "red", sky == part, ForAll("chunk", TRUE), LastChunk(), ThisChunk(), left])
def test_only_ground_formulas_have_a_meaning(formula: Term) -> None:
    """A field that is bound to no room, a quantifier and a bare variable are not evaluated but refused."""
    with pytest.raises(TypeError, match=r"^not a ground formula"):
        evaluate(formula, Concrete(STATES[0], MERGE))


def test_only_values_that_fit_are_assigned() -> None:
    """A label or variable that does not fit its target, and a formula, are no values."""
    algebra = Concrete(STATES[0], MERGE)
    with pytest.raises(TypeError, match=r"^left is never 'on'"):
        assign(left, Label("on"), algebra)
    with pytest.raises(TypeError, match=r"^flag cannot be stored in left: different labels$"):
        assign(left, flag, algebra)
    with pytest.raises(TypeError, match=r"^not a value for left"):
        assign(left, left == "red", algebra)


def test_where_takes_labels_as_strings() -> None:
    """A string is a label; a term stays itself."""
    choice = where(TRUE, "red", left)
    assert isinstance(choice, Where)
    assert isinstance(choice.then, Label)
    assert choice.then.label == "red"
    assert value(left) is left


def test_rewriting_simplifies_around_true_and_false() -> None:
    """Where a part becomes true or false, what it decides disappears."""
    some = left == "red"
    assert isinstance(rewrite(All((TRUE, some)), unchanged), Is)
    assert rewrite(All((FALSE, some)), unchanged) is FALSE
    assert rewrite(All((TRUE, TRUE)), unchanged) is TRUE
    assert isinstance(rewrite(Any((FALSE, some)), unchanged), Is)
    assert rewrite(Any((TRUE, some)), unchanged) is TRUE
    assert rewrite(Any((FALSE,)), unchanged) is FALSE
    assert rewrite(Not(TRUE), unchanged) is FALSE
    assert rewrite(Not(FALSE), unchanged) is TRUE
    assert rewrite(Where(TRUE, left, right), unchanged) is left
    assert rewrite(Where(FALSE, left, right), unchanged) is right


def test_rewriting_reaches_every_field() -> None:
    """A renaming of a field is carried out wherever the field stands."""

    def rename(term: Term) -> Term | None:
        return right if term is left else None

    before: list[Term] = [
        left == "red", Same(left, flag), ~(left == "red"), (left == "red") & (left == "blue"), Merged(left, 0),
        Stores(left, 0, 1), Where(left == "red", left, Label("blue")), left,
    ]  # fmt: skip
    for term in before:
        assert left in fields(term)
        assert left not in fields(rewrite(term, rename))


def test_footprint_is_every_field_that_is_read() -> None:
    """The footprint of a term holds the fields in its comparisons, choices and quantifiers."""
    assert fields((sky == "red") & ForAll("chunk", part == "red")) == {sky, part}
    assert fields(where(sky == part, hand, "red")) == {sky, part, hand}
    assert fields(ThisChunk(taken)) == {taken}
    assert fields(ThisChunk()) == set()


def test_free_is_what_a_term_leaves_open() -> None:
    """A quantifier closes its owner, and one over other or earlier places needs a place to start from."""
    assert free((sky == "red") & (hand == "red")) == {"room", "worker"}
    assert free(ForAll("chunk", part == "red")) == set()
    assert free(ForAll("worker", (hand == "red") | (sky == "red"))) == {"room"}
    assert free(ForAll("earlier chunk", part == "red")) == {"chunk"}
    assert free(ForAll("other worker", hand == "red")) == {"worker"}
    assert free(ThisChunk()) == {"chunk"}
    assert free(ThisChunk(taken)) == {"chunk", "worker"}
