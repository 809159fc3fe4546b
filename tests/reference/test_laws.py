"""The catalogue of laws, and what a set of answers amounts to."""

import pytest

from kvlatch.reference.laws import LAWS, Broken, Judgement, Kept, NotJudged, UnknownLaw, exit_code, select
from kvlatch.spec.properties import BY_NAME

KEPT = Judgement("no-ghost", Kept(3, "plays"))
BROKEN = Judgement("no-pin", Broken("pinned"))
UNJUDGED = Judgement("told-once", NotJudged("no call tells decode anything"))


def test_the_properties_of_the_spec_are_laws() -> None:
    assert set(BY_NAME) < set(LAWS)


def test_kept_needs_a_look() -> None:
    with pytest.raises(ValueError, match="must be > 0"):
        Kept(0, "plays")


@pytest.mark.parametrize(
    ("judgements", "only", "code"),
    [
        ([KEPT], (), 0),
        ([KEPT, UNJUDGED], (), 0),
        ([KEPT, UNJUDGED], ("told-once",), 3),
        ([KEPT, UNJUDGED], ("no-ghost",), 0),
        ([KEPT, BROKEN, UNJUDGED], (), 1),
        ([KEPT, BROKEN, UNJUDGED], ("told-once",), 1),
        ([UNJUDGED], (), 3),
        ([], (), 3),
        ([late := Judgement("no-ghost", NotJudged("no clear"), "late"), KEPT], ("no-ghost",), 0),
        ([late, KEPT], ("no-ghost/late",), 3),
    ],
)
def test_exit_codes(judgements: list[Judgement], only: tuple[str, ...], code: int) -> None:
    """Broken is 1 whatever else there is; nothing judged, or nothing of what was named, is 3."""
    assert exit_code(judgements, only) == code


def test_selection() -> None:
    """A law's name selects its scenarios; a name of nothing is an error."""
    names = ["no-ghost/late", "no-ghost/early", "no-pin"]
    assert select(names, ()) == names
    assert select(names, ("no-ghost",)) == ["no-ghost/late", "no-ghost/early"]
    assert select(names, ("no-pin", "no-ghost/early")) == ["no-ghost/early", "no-pin"]
    with pytest.raises(UnknownLaw, match="no law is called 'ghost'"):
        select(names, ("ghost",))
