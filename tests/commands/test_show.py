"""What a person sees of a trace."""

from __future__ import annotations

import functools
import io

import attrs
import pytest
from rich.console import Console

from kvlatch.commands.show import table
from kvlatch.proofs.search import Search, explore
from kvlatch.reference.story import Story, mermaid
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.schema import Atomicity
from kvlatch.spec.traces import Trace, TraceError


@functools.cache
def search(design: str, atomicity: Atomicity) -> Search:
    return explore(Machine.of(DESIGNS[design], atomicity, "orderly", Instance()), PROPERTIES)


@functools.cache
def found(design: str, atomicity: Atomicity, prop: str) -> Trace:
    run = search(design, atomicity).trace(prop)
    return Trace.of(DESIGNS[design], atomicity, "orderly", Instance(), BY_NAME[prop], run)


LOCKED = found("seed-control", "locked", "terminal-sticky")
SPLIT = found("fix-a", "split", "terminal-sticky")


def printed(story: Story, width: int | None = None, color: bool = False) -> str:
    output = io.StringIO()
    Console(file=output, width=width, force_terminal=color, color_system="standard" if color else None).print(story)
    return output.getvalue()


def row(text: str, number: int) -> list[str]:
    """The words of one step's row, up to the next one."""
    lines = [line.split() for line in text.splitlines()]
    start = next(i for i, words in enumerate(lines) if words and words[0].rstrip("*") == str(number))
    return lines[start]


# --- What it says ---------------------------------------------------------------------------------


def test_locked() -> None:
    """A locked trace reads as one line a step, with the fatal one marked and a sentence that says why."""
    story = table(LOCKED)
    assert story.heading == "seed-control, locked, orderly network; 1 worker, 2 chunks, 1 request: 12 steps"
    assert story.threads == ("scheduler", "bootstrap", "worker 0")
    assert [line.text for line in story.lines] == [
        "create: Absent -> Bootstrapping",
        "hear_metadata, infos first",
        "write_w: Bootstrapping -> WaitingForInput",
        "admit, pages held",
        "enqueue(0)",
        "take(0)",
        "check_status(0)",
        "check_infos(0)",
        "hear_abort",
        "write_f: WaitingForInput -> Failed",
        "write_t: Failed -> Transferring",
        "enqueue(1)",
    ]
    assert story.fatal == 11
    assert story.sentence == (
        "terminal-sticky is broken: the table said Failed, and the next poll reads Transferring, "
        "because in step 11 worker 0 wrote Transferring over Failed."
    )


def test_split() -> None:
    """A split update is two lines, and the sentence says what was stored and from what it had been computed."""
    story = table(SPLIT)
    texts = [line.text for line in story.lines]
    assert "write_t reads WaitingForInput" in texts
    assert "write_t stores Transferring (over Failed)" in texts
    assert story.sentence.endswith(
        "because in step 15 worker 0 stored Transferring, which it had computed from WaitingForInput, over Failed."
    )


def test_the_poll_is_shown_where_it_differs_from_the_table() -> None:
    """A sender that has been cleared goes on reporting what it has latched; after the clearing there is none."""
    story = table(found("seed-control", "locked", "no-ghost"))
    entries = {line.text.partition(":")[0]: (line.entry, line.poll) for line in story.lines}
    assert entries["clear_status"] == ("Absent", "Failed")
    assert entries["release"][1] == ""


def test_chunks_are_summed_up() -> None:
    """A step that loses a chunk says so, once."""
    trace = found("seed-control", "locked", "settlement")
    lost = [line.text for line in table(trace).lines if "lost" in line.text]
    assert lost == ["enqueue(1), chunk_1 lost"]


BROKEN = list(search("fix-b", "split").violations)


@pytest.mark.parametrize("prop", BROKEN)
def test_every_counterexample_is_told(prop: str) -> None:
    """No field of a property's sentence is left open, and the diagram takes any of them."""
    trace = found("fix-b", "split", prop)
    sentence = table(trace).sentence
    assert sentence.startswith(f"{prop} is broken: ")
    assert " because in step " in sentence
    assert not set("{};#\n") & set(sentence)
    assert mermaid(table(trace)).count("\n  ") >= len(trace.steps)


def test_a_run_that_breaks_nothing() -> None:
    """Without a property there is no fatal step, and the sentence says how the run ends."""
    story = table(attrs.evolve(LOCKED, prop=None))
    assert story.fatal is None
    assert story.sentence == "The status is Transferring in the end."
    nothing = table(attrs.evolve(LOCKED, prop=None, steps=LOCKED.steps[:1]))
    assert nothing.sentence == "The status is Absent in the end."
    assert "0 steps" in printed(nothing)


def test_a_false_trace_is_not_shown() -> None:
    """A trace that its design does not allow is refused, with the step."""
    with pytest.raises(TraceError, match="step 11"):
        table(attrs.evolve(LOCKED, design="fix-a"))


# --- How it looks ---------------------------------------------------------------------------------


def test_a_column_for_each_thread_at_width_80() -> None:
    """Which is also what a pipe gets."""
    text = printed(table(SPLIT), width=80)
    heading, columns, *rows = text.splitlines()
    assert heading.strip().endswith("16 steps")
    assert columns.split() == ["#", "scheduler", "bootstrap", "worker", "0", "table", "poll"]
    assert all(len(line) <= 80 for line in rows)
    assert "…" not in text
    assert row(text, 15) == ["15*", "write_t", "stores", "Transferring", "same"]
    assert " ".join(text.split()).endswith(table(SPLIT).sentence)


@pytest.mark.parametrize("width", [52, 60])
def test_narrow_terminals_get_one_column_for_all_threads(width: int) -> None:
    """Where the columns do not fit, the thread is a word of its own, and nothing is cut off."""
    text = printed(table(SPLIT), width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    assert row(text, 14)[:4] == ["14", "bootstrap", "write_f", "stores"]


def test_colour_marks_the_fatal_step_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line is red, on a terminal only, and never with NO_COLOR."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    red = "\x1b[1;31m"
    fatal = [line for line in printed(table(LOCKED), 120, color=True).splitlines() if red in line]
    assert len(fatal) == 1
    assert "Failed -> Transferring" in fatal[0]
    assert "\x1b" not in printed(table(LOCKED), 120)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "31m" not in printed(table(LOCKED), 120, color=True)


def test_mermaid() -> None:
    """The diagram has a participant for each thread, the steps as messages or notes, and the fatal one framed."""
    lines = mermaid(table(SPLIT)).splitlines()
    assert lines[:5] == [
        "sequenceDiagram",
        "  participant scheduler as scheduler",
        "  participant bootstrap as bootstrap",
        "  participant worker0 as worker 0",
        "  participant table as status table",
    ]
    assert "  table-->>worker0: write_t reads WaitingForInput" in lines
    assert "  Note over worker0: take(0)" in lines
    fatal = lines.index("  worker0->>table: write_t stores Transferring (over Failed)")
    assert (lines[fatal - 1], lines[fatal + 1]) == ("  rect rgba(255, 0, 0, 0.2)", "  end")
    assert lines[-1].startswith("  Note over scheduler,table: terminal-sticky is broken: ")
