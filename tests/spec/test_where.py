"""Each row names its place in published code, and it is there: looked up in the pinned wheels, by parsing them."""

from __future__ import annotations

import ast
import re
import zipfile
from functools import cache

import pytest

from kvlatch.reference.published.sglang.wheels import PACKAGE
from kvlatch.reference.published.wheels import CannotFetch
from kvlatch.spec.protocol import RULES
from kvlatch.spec.schema import Rule

KEY = re.compile(r"(common|nixl|mooncake|scheduler) (\S+) to (\S+)")
PLACE = re.compile(r"(\S+\.py): (\w+)\.(\w+)")
PLACES = sorted({(backend, place) for rule in RULES for backend, place in rule.where.items() if backend != "ours"})


def versions(key: str) -> list[str]:
    """The pinned versions that a key is about, both ends included."""
    match = KEY.fullmatch(key)
    assert match, key
    pinned = PACKAGE.versions()
    return list(pinned[pinned.index(match[2]) : pinned.index(match[3]) + 1])


@cache
def functions(version: str, file: str) -> dict[str, str]:
    """The methods of a file of a wheel, by class and name, with their source."""
    wheel = zipfile.ZipFile(PACKAGE.fetch(version))
    text = wheel.read(f"sglang/srt/disaggregation/{file}").decode()
    return {
        f"{owner.name}.{method.name}": ast.get_source_segment(text, method) or ""
        for owner in ast.parse(text).body
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef)
    }


@pytest.mark.parametrize("row", RULES, ids=lambda row: row.name)
def test_every_row_has_a_place(row: Rule) -> None:
    """A row names at least one, in the one form; what is ours alone names no published code."""
    places = row.where
    assert places
    if "ours" in places:
        assert len(places) == 1
    else:
        assert all(KEY.fullmatch(key) and PLACE.fullmatch(place) for key, place in places.items())


def test_few_rows_are_ours_alone() -> None:
    """Only the build of the incident, which nobody has published, pops the infos after an abort notice."""
    assert [rule.name for rule in RULES if "ours" in rule.where] == ["abort_pop"]


@pytest.mark.network
@pytest.mark.parametrize(("key", "place"), PLACES)
def test_the_place_is_in_every_wheel(key: str, place: str) -> None:
    """File, class and function exist in each pinned version of the range."""
    match = PLACE.fullmatch(place)
    assert match
    try:
        for version in versions(key):
            assert f"{match[2]}.{match[3]}" in functions(version, match[1]), version
    except CannotFetch as error:
        pytest.skip(str(error))


@pytest.mark.network
@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.write and "ours" not in rule.where], ids=lambda r: r.name
)
def test_a_row_that_writes_stands_where_that_status_is_written(rule: object) -> None:
    """In the last version of each range the function, or one that it calls by name, mentions the status."""
    (row,) = (known for known in RULES if known is rule)
    try:
        for key, place in row.where.items():
            match = PLACE.fullmatch(place)
            assert match
            known = functions(versions(key)[-1], match[1])
            text = known[f"{match[2]}.{match[3]}"]
            called = {name for name in known if f".{name.partition('.')[2]}(" in text}
            assert any(f"KVPoll.{row.write}" in known[name] for name in {f"{match[2]}.{match[3]}", *called}), key
    except CannotFetch as error:
        pytest.skip(str(error))
