"""The expected verdicts: the file against the facts and the spec, offline; and all of it run again, on the wheels."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang import verdicts as sglang_verdicts
from kvlatch.reference.published.sglang.laws import LAWS, Examination, Finding, Row
from kvlatch.reference.published.sglang.verdicts import Verdicts, heading, pairs, pinned, render, text, verdict_table
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
    plain = version == "0.4.6" or (backend == "nixl" and version not in since("0.5.6"))
    return "plain_max" if plain else "failed_else_max"


def of(line: Verdicts, name: str) -> str:
    """The verdict of a law in a line."""
    return line.cells[[law.name for law in LAWS].index(name)]


def test_the_file_is_what_its_writer_writes() -> None:
    """Read and written again, it is the same; every version is there, with a verdict on every law."""
    lines = pinned()
    assert text(lines) == sglang_verdicts.PINNED.read_text(encoding="utf-8")
    assert list(dict.fromkeys(line.version for line in lines)) == list(VERSIONS)
    assert {len(line.cells) for line in lines} == {len(LAWS)}
    assert all(re.fullmatch(r"kept|-|[1-9]", word) for line in lines for word in line.cells)


def test_the_readme_shows_them() -> None:
    """The README has the table of what is pinned: `make sglang` renews both."""
    readme = (Path(__file__).parents[4] / "README.md").read_text(encoding="utf-8")
    assert f"<!-- sglang: begin -->\n{render(pinned())}\n<!-- sglang: end -->" in readme


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
        assert (of(line, "terminal-sticky") == "kept") == sticky
        overwritten = table[success][failed] == failed
        assert (of(line, "success-not-overwritten") == "kept") != overwritten


@pytest.mark.parametrize("law", ["no-lost-wakeup", "no-ghost-split", "no-ghost-late-metadata"])
def test_what_every_published_manager_breaks(law: str) -> None:
    """A wake-up is lost and a ghost appears in every version, wherever the code is there."""
    words = {of(line, law) for line in pinned()} - {"-"}
    assert words
    assert "kept" not in words


@pytest.mark.parametrize("law", ["failed-wins-over-ranks", "other-rooms-untouched"])
def test_what_every_published_manager_keeps(law: str) -> None:
    """The reduction over ranks is right, and no write touches another room."""
    assert {of(line, law) for line in pinned()} - {"-"} == {"kept"}


def aborts_lose(line: Verdicts) -> bool:
    """From the facts: a chunk in flight ends an aborted request as Success."""
    if line.version in since("0.5.20") or line.backend == "mori":
        return False
    return line.backend != "nixl" or line.version not in since("0.5.16")


def ghosts_in_flight(line: Verdicts) -> bool:
    """From the facts: a chunk in flight brings a cleared room back."""
    return line.version not in since("0.5.20") and line.backend != "mori"


def workers_die(line: Verdicts) -> bool:
    """From the facts: Mooncake's worker reads without a look after it has looked."""
    return line.backend in ("mooncake", "ascend")


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        ("terminal-sticky-in-flight", aborts_lose),
        ("no-ghost-in-flight", ghosts_in_flight),
        ("worker-survives-clear", workers_die),
    ],
)
def test_the_verdicts_are_those_that_the_facts_name(law: str, broken: Callable[[Verdicts], bool]) -> None:
    """Where a backend has the code, the law is broken in the versions that the facts name, and kept in the others."""
    judged = [line for line in pinned() if of(line, law) != "-"]
    assert judged
    assert [of(line, law) != "kept" for line in judged] == [broken(line) for line in judged]


def test_the_two_steps_of_the_seed_incident() -> None:
    """The published rule before 0.5.20 breaks terminal-sticky by plain writes, in two steps."""
    [line] = [v for v in pinned() if (v.version, v.backend) == ("0.5.15.post1", "common")]
    assert of(line, "terminal-sticky") == "2"


def test_a_line_of_an_examination() -> None:
    """Broken is the number of steps, from the creation on; a merge that the spec does not have is a question mark."""
    row = Row("scheduler", "create", "Bootstrapping", "")
    trace = (row, Row("worker 0", "write Failed", "Failed", ""))
    findings = (Finding("a", "broken", "!", trace), Finding("b", "kept", "."), Finding("c", "absent", "?"))
    merge = merges.table(merges.plain_max)
    assert Verdicts.of("1", "nixl", Examination(findings, merge)) == Verdicts(
        "1", "nixl", "plain_max", ("1", "kept", "-")
    )
    assert sglang_verdicts.rule((*merge[:5], (merges.KEEP,) * 5)) == "?"


def test_the_table_for_people() -> None:
    """Versions in a row that differ in nothing but lengths share a line; backends come in their usual order."""
    numbered = [heading(number) for number, law in enumerate(LAWS) if law.numbers]
    cells = ("2", *["kept"] * (len(LAWS) - 1))
    other = ("-", *cells[1:])
    lines = [
        Verdicts("1", "nixl", "plain_max", cells),
        Verdicts("1", "common", "plain_max", other),
        Verdicts("2", "nixl", "plain_max", ("3", *cells[1:])),
        Verdicts("3", "nixl", "plain_max", other),
    ]
    rest = " | ".join(["·"] * (len(numbered) - 1))
    assert render(lines).splitlines() == [
        f"| backend | versions | {' | '.join(numbered)} |",
        f"| --- | --- | {' | '.join(['---'] * len(numbered))} |",
        f"| common | 1 |  | {rest} |",
        f"| nixl | 1 to 2 | ✗ | {rest} |",
        f"| nixl | 3 |  | {rest} |",
    ]


@pytest.mark.network
def test_every_published_manager_has_the_expected_verdicts() -> None:
    """All laws on all backends of all versions, by the real code: no verdict, length or merge has changed."""
    try:
        wanted = pairs()
    except sglang.CannotFetch as reason:
        pytest.skip(str(reason))
    assert verdict_table(wanted) == pinned()
