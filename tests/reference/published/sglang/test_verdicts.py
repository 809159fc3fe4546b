"""The expected verdicts: the file against the facts and the spec, offline; and all of it run again, on the wheels."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kvlatch.reference.laws import LAWS, Broken, Judgement, Kept, NotJudged
from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang import verdicts as sglang_verdicts
from kvlatch.reference.published.sglang.judge import Examination
from kvlatch.reference.published.sglang.scenarios import NAMES
from kvlatch.reference.published.sglang.verdicts import Verdicts, pinned, render, text, verdict_table
from kvlatch.spec import merges
from kvlatch.spec.status import KVPoll

VERSIONS = sglang.versions()


def since(version: str) -> frozenset[str]:
    """A version and the later ones."""
    return frozenset(VERSIONS[VERSIONS.index(version) :])


def published_merge(version: str, backend: str) -> str:
    """The rule of update_status in a published version, from the facts and not from the code."""
    if version in since("0.5.20"):
        return "sglang_0_5_20"
    if version in since("0.5.16") and backend == "nixl":
        return "nixl_override"
    if version in since("0.5.12"):
        return "sglang_0_5_20" if backend == "mori" else "failed_else_max_if_present"
    plain = version not in since("0.4.7") or (backend == "nixl" and version not in since("0.5.6"))
    return "plain_max" if plain else "failed_else_max"


def of(line: Verdicts, name: str) -> str:
    """The verdict of a scenario in a line."""
    return line.cells[NAMES.index(name)]


def test_the_file_is_what_its_writer_writes() -> None:
    """Read and written again, it is the same: pinned versions in their order, with a verdict on every scenario."""
    lines = pinned()
    versions = [*dict.fromkeys(line.version for line in lines)]
    assert text(lines) == sglang_verdicts.PINNED.read_text(encoding="utf-8")
    assert versions == [version for version in VERSIONS if version in versions]
    assert {"0.4.6", "0.5.15.post1", "0.5.23"} < {*versions}
    assert {len(line.cells) for line in lines} == {len(NAMES)}
    assert all(re.fullmatch(r"\.|-|[1-9]\d*", word) for line in lines for word in line.cells)


def test_the_merges_are_those_of_the_spec() -> None:
    """Every published rule is in the spec, where the facts say."""
    assert {(v.version, v.backend): v.merge for v in pinned()} == {
        (v.version, v.backend): published_merge(v.version, v.backend) for v in pinned()
    }


def test_plain_verdicts_follow_from_the_merge() -> None:
    """A law of plain writes is broken exactly where the table of the merge breaks it."""
    failed, live, success = (
        KVPoll.Failed,
        (KVPoll.Bootstrapping, KVPoll.WaitingForInput, KVPoll.Transferring),
        KVPoll.Success,
    )
    for line in pinned():
        table = merges.table(merges.MERGES[line.merge])
        sticky = all(table[failed][new] in (failed, merges.KEEP) for new in (*live, success)) and all(
            table[success][new] in (success, merges.KEEP) for new in live
        )
        assert (of(line, "terminal-sticky/plain") == ".") == sticky
        overwritten = table[success][failed] == failed
        assert (of(line, "success-not-overwritten/plain") == ".") != overwritten


@pytest.mark.parametrize("law", ["no-lost-wakeup/early-metadata", "no-ghost/two-writers", "no-ghost/late-metadata"])
def test_what_every_published_manager_breaks(law: str) -> None:
    """A wake-up is lost and a ghost appears in every version, wherever the code is there."""
    words = {of(line, law) for line in pinned()} - {"-"}
    assert words
    assert "." not in words


def test_what_every_published_manager_keeps() -> None:
    """The reduction over ranks is right."""
    assert {of(line, "one-outcome/ranks") for line in pinned()} - {"-"} == {"."}


def aborts_lose(line: Verdicts) -> bool:
    """From the facts: a chunk in flight ends an aborted request as Success."""
    if line.version in since("0.5.20") or line.backend == "mori":
        return False
    if line.backend == "nixl":
        return line.version not in since("0.5.16")
    return line.version in since("0.5.12")  # Mooncake keeps to the sender's abort; decode sends none before


def ghosts_in_flight(line: Verdicts) -> bool:
    """From the facts: a chunk in flight brings a cleared room back."""
    return line.version not in since("0.5.20") and line.backend != "mori"


def workers_die(line: Verdicts) -> bool:
    """From the facts: Mooncake's worker reads without a look after it has looked."""
    return line.backend in ("mooncake", "ascend")


def bootstrap_thread_dies(line: Verdicts) -> bool:
    """From the facts: the thread has no branch for the ABORT that decode sends since 0.5.13."""
    return line.backend == "nixl" and line.version in since("0.5.13") - since("0.5.16")


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        ("terminal-sticky/in-flight", aborts_lose),
        ("no-ghost/in-flight", ghosts_in_flight),
        ("no-crash/worker", workers_die),
        ("no-crash/abort-notice", bootstrap_thread_dies),
    ],
)
def test_the_verdicts_are_those_that_the_facts_name(law: str, broken: Callable[[Verdicts], bool]) -> None:
    """Where a backend has the code, the law is broken in the versions that the facts name, and kept in the others."""
    judged = [line for line in pinned() if of(line, law) != "-"]
    assert judged
    assert [of(line, law) != "." for line in judged] == [broken(line) for line in judged]


def test_the_two_steps_of_the_seed_incident() -> None:
    """The published rule before 0.5.20 breaks terminal-sticky by plain writes, in two steps."""
    [line] = [v for v in pinned() if (v.version, v.backend) == ("0.5.15.post1", "common")]
    assert of(line, "terminal-sticky/plain") == "2"


def test_a_line_of_an_examination() -> None:
    """Broken is the number of steps, from the creation on; a merge that the spec does not have is a question mark."""
    judgements = (
        Judgement("no-pin", Broken("!"), "a"), Judgement("no-pin", Kept(1, "plays"), "b"),
        Judgement("no-ghost", NotJudged("?"), "c"),
    )  # fmt: skip
    merge = merges.table(merges.plain_max)
    examination = Examination(judgements, 3, 0, 0, {"no-pin/a": 1}, merge)
    assert Verdicts.of("1", "nixl", examination) == Verdicts("1", "nixl", "plain_max", ("1", ".", "-"))
    assert sglang_verdicts.rule((*merge[:5], (merges.KEEP,) * 5)) == "?"


def test_the_table_for_people() -> None:
    """Versions in a row that differ in nothing but lengths share a line; backends come in their usual order."""
    cells = ("2", *["."] * (len(NAMES) - 1))
    unjudged = ("-",) * len(NAMES)
    lines = [
        Verdicts("1", "nixl", "plain_max", cells),
        Verdicts("1", "common", "plain_max", unjudged),
        Verdicts("2", "nixl", "plain_max", ("3", *cells[1:])),
        Verdicts("3", "nixl", "plain_max", unjudged),
    ]
    rest = " | ".join(["·"] * (len(LAWS) - 1))
    empty = " | ".join([""] * len(LAWS))
    assert render(lines).splitlines() == [
        f"| backend | versions | {' | '.join(LAWS)} |",
        f"| --- | --- | {' | '.join(['---'] * len(LAWS))} |",
        f"| common | 1 | {empty} |",
        f"| nixl | 1 to 2 | ✗ | {rest} |",
        f"| nixl | 3 | {empty} |",
    ]


@pytest.mark.network
@pytest.mark.parametrize("every", [37, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_published_manager_has_the_expected_verdicts(every: int) -> None:
    """All scenarios on all backends of all versions, or on every 37th, by the real code: nothing has changed."""
    expected = pinned()[::every]
    try:
        found = verdict_table([(line.version, line.backend) for line in expected])
    except sglang.CannotFetch as reason:
        pytest.skip(str(reason))
    assert found == expected
