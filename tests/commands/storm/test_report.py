"""What a person is told about an abort storm: the file, the page, as a browser shows it, and the terminal."""

from __future__ import annotations

import functools
import html as markup
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlatch.commands.storm import page as pages
from kvlatch.commands.storm import report, terminal
from kvlatch.commands.storm.plot import blocks, describe
from kvlatch.commands.storm.records_json import as_json, from_json
from kvlatch.reference.live.records import (
    BrokenRoom,
    Build,
    Conclusion,
    Counts,
    Death,
    Metric,
    Outcome,
    Phase,
    PinnedRoom,
    Rank,
    Request,
    Role,
    Run,
    Storm,
    Traces,
)
from tests.browser import needs_browser, visit

SEED = Build("seed-control/split", "seed-control", "split", "sha256:5eed")
LATCH = Build("latch/cas", "latch", "cas", "sha256:1a7c")
FOREIGN = Build("http://10.0.0.7:30000", None, None, "sglang 0.5.19, 63 rules")
NASTY = (
    "$\\nope$<script>alert(1)</script>\"'><img src=http://example.test/x onerror=alert(2)>&amp; \x1b[2J\x00\u202eé 字\n"
)
SEEN = ("pinned", "lost_failures", "ghosts", "released_early", "wrong_digests")


def requests(number: int) -> tuple[Request, ...]:
    """Aborts at 6, 7, ... seconds; one more request completes at 2.5 seconds."""
    one = Request(0, 4, 1.0, 2.5, "completed", False, 200, "")
    outcome: Outcome = "aborted"
    return (one, *(Request(n, 4, 5.0, 5.0 + n, outcome, False, None, "gone") for n in range(1, number)))


def run(role: Role, repetition: int, build: Build, pinned: int = 0, **change: Any) -> Run:
    """A run with a baseline of 5 seconds, a storm of 10, and a drain of at most 8."""
    log = Path(f"{role} {repetition}.ndjson")
    rooms = tuple(
        PinnedRoom(
            7_000_000_000_000_000 + n,
            "Transferring",
            "terminal-sticky",
            40 + n,
            f"worker {n} wrote Transferring over Failed.",
            f"kvlatch show '{log}' --room {7_000_000_000_000_000 + n}",
        )
        for n in range(pinned)
    )
    counts = Counts(
        sent=1000 + repetition,
        completed=400,
        failed=3,
        aborted=590 + repetition,
        unaccounted=7,
        pinned=pinned,
        hits=20 + repetition,
        lost_failures=pinned,
        ghosts=0,
        released_early=0,
        wrong_digests=0,
    )
    phases = (
        Phase("baseline", 0.0, 5.0, build.fingerprint),
        Phase("storm", 5.0, 15.0, build.fingerprint),
        Phase("drain", 15.0, 23.0, build.fingerprint),
    )
    plain = Run(
        role=role,
        repetition=repetition,
        build=build,
        phases=phases,
        gauge=((0.0, 0.0), (2.0, 4.0), (9.0, 40.0), (16.0, float(pinned)), (23.0, float(pinned))),
        requests=requests(9),
        counts=counts,
        metric=Metric(500, 430, 0),
        idle=0.0,
        longest=2.0,
        deadline=8.0,
        drained=None if pinned else 16.0,
        pinned=rooms,
        log=log,
    )
    return attrs.evolve(plain, **change)


def storm(*runs: Run, **change: Any) -> Storm:
    plain = Storm(
        command="kvlatch storm --control seed-control --treatment latch --seed 11",
        seed=20_260_101,
        version="0.1.0",
        settings={"requests": 1000, "client timeout": [0.2, 0.9]},
        runs=runs,
        conclusion="inconclusive",
        sentence="Nothing can be said.",
        p=None,
    )
    return attrs.evolve(plain, **change)


FIXES = storm(
    *(
        made
        for repetition in (1, 2, 3)
        for made in (run("treatment", repetition, LATCH), run("control", repetition, SEED, 4 * repetition))
    ),
    conclusion="treatment fixes it",
    sentence="latch fixes it: seed-control pinned requests in 3 of 3 repetitions, latch in none.",
    p=0.1,
    proofs={"latch/cas": {"pinned": "proved: never"}, "seed-control/split": {"pinned": "refuted in 19 steps"}},
)
ALONE = storm(
    run("alone", 1, SEED, 6),
    run("alone", 1, Build("seed-control/locked", "seed-control", "locked", "sha256:10c4"), 5),
    run("alone", 1, LATCH, 2),
    conclusion="pins",
    proofs={
        "seed-control/split": {"pinned": "refuted in 19 steps", "ghosts": "refuted in 10 steps"},
        "seed-control/locked": {"pinned": "refuted in 15 steps"},
        "latch/cas": {"pinned": "proved: never", "ghosts": "proved: never"},
    },
)
UNSEEN: Any = dict.fromkeys(("hits", *SEEN[1:]))
"""What cannot be known of a foreign build."""
BLACK_BOX = storm(
    run(
        "alone",
        1,
        FOREIGN,
        counts=attrs.evolve(run("alone", 1, FOREIGN, 5).counts, **UNSEEN),
        metric=None,
        log=None,
        drained=None,
    ),
    conclusion="pins",
)
BROKEN_OFF = storm(
    run("control", 1, SEED, 2),
    run(
        "treatment",
        1,
        LATCH,
        phases=(Phase("baseline", 0.0, 3.0, "sha256:1a7c"),),
        drained=None,
        gauge=(),
        interrupted=True,
    ),
)
NASTY_ONE = storm(
    attrs.evolve(
        run("control", 1, Build(NASTY, NASTY, NASTY, NASTY)),
        pinned=(PinnedRoom(1, NASTY, NASTY, 3, NASTY, NASTY),),
        log=Path("/tmp") / "a b; rm -rf $HOME",  # noqa: S108  # only its name matters
        traces=Traces("kvlatch check '/tmp/a b; rm -rf $HOME'", 1, (BrokenRoom(1, NASTY, NASTY, (NASTY,)),)),
        faults=(NASTY,),
        left_behind=(NASTY,),
    ),
    run("treatment", 1, Build(f"_{'long ' * 40}", None, None, NASTY)),
    sentence=NASTY,
    command=NASTY,
    settings={NASTY: NASTY},
    version=NASTY,
)
ALL = {
    "fixes": FIXES,
    "alone": ALONE,
    "foreign": BLACK_BOX,
    "broken off": BROKEN_OFF,
    "nasty": NASTY_ONE,
    "none": storm(),
}


class Page(HTMLParser):
    """The page as a parser sees it: its tags with their attributes, and the text of some of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.texts[tag][-1] += data
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data

    def row(self, first: str) -> list[str]:
        """The first row that begins so, its words without line breaks."""
        rows = [[" ".join(cell.split()) for cell in row] for row in self.rows]
        return next(row for row in rows if row and row[0].startswith(first))


def shown(text: str) -> str:
    """A text as it must be shown: no control characters."""
    return text.replace("\n", "\\n").replace("\x1b", "\\x1b").replace("\x00", "\\x00").replace("\u202e", r"\u202e")


def as_json_text(one: Storm) -> Any:
    """The storm as its file is read."""
    return json.loads(json.dumps(as_json(one)))


def needs_live() -> None:
    pytest.importorskip("matplotlib", reason="the report is drawn with matplotlib, of the extra `live`")
    pytest.importorskip("jinja2", reason="the report is written with jinja2, of the extra `live`")


@functools.cache
def html(name: str) -> str:
    """The page of one of the storms above."""
    needs_live()
    text: str = pages.html(ALL[name])
    return text


# --- The file ---------------------------------------------------------------------------------------------------------

for kind in (Storm, Run, Build, Phase, Request, Counts, Metric, PinnedRoom, BrokenRoom, Traces):
    attrs.resolve_types(kind)  # Hypothesis does not read names of types
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=5,
)
RUNS = st.builds(
    Run,
    phases=st.lists(st.builds(Phase, start=NUMBERS, end=NUMBERS), max_size=3).map(tuple),
    gauge=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple),
    requests=st.lists(st.builds(Request, start=NUMBERS, end=NUMBERS), max_size=2).map(tuple),
    idle=NUMBERS,
    longest=NUMBERS,
    deadline=NUMBERS,
    drained=st.none() | NUMBERS,
    log=st.none() | st.text(max_size=9).map(Path),
)
STORMS = st.builds(
    Storm,
    settings=st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    runs=st.lists(RUNS, max_size=2).map(tuple),
    p=st.none() | NUMBERS,
)


@given(STORMS)
def test_round_trip(one: Storm) -> None:
    """A storm that was written and read again is the same storm."""
    assert from_json(json.loads(json.dumps(as_json(one), allow_nan=False))) == one


def test_version_comes_first() -> None:
    """The file says in its first member what it is, and in which version."""
    assert json.dumps(as_json(FIXES)).startswith('{"kvlatch-storm": 5, ')


def changed(*path: Any, to: Any = None) -> Any:
    """The file of FIXES with one member changed, or taken out."""
    data = as_json_text(FIXES)
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    if to is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return data


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ([], "no report of a storm: it has no member kvlatch-storm"),
        ({"seed": 1}, "no report of a storm: it has no member kvlatch-storm"),
        (changed("kvlatch-storm", to=1), "kvlatch-storm is 1, and this version of kvlatch reads 5"),
        (changed("seed"), "the report lacks seed"),
        (changed("seed", to="7"), "seed is '7', not an integer"),
        (changed("seed", to=True), "seed is True, not an integer"),
        (changed("p", to=float("nan")), "p is nan, not a finite number"),
        (changed("more", to=1), "the report has a member that no report has: 'more'"),
        (changed("runs", 1, "counts", "sent"), "runs[1].counts lacks sent"),
        (changed("runs", 1, "counts", to=[]), "runs[1].counts is [], not an object"),
        (changed("runs", 0, "role", to="both"), "runs[0].role is 'both', not one of control, treatment, alone"),
        (changed("runs", 0, "gauge", 2, to=[1.0]), "runs[0].gauge[2] is [1.0], not a list of 2"),
        (changed("runs", 0, "gauge", 2, 0, to=10**400), "runs[0].gauge[2][0] is 1000000"),
        (changed("runs", 0, "interrupted", to=0), "runs[0].interrupted is 0, not true or false"),
        (changed("runs", 0, "log", to=7), "runs[0].log is 7, not text"),
        (changed("proofs", "latch/cas", "pinned", to=3), "proofs['latch/cas']['pinned'] is 3, not text"),
    ],
)
def test_what_is_wrong_is_named(data: Any, complaint: str) -> None:
    """A file that is no report is refused, with the place and what is wrong there."""
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        from_json(data)


@given(st.data())
def test_no_other_error(data: st.DataObject) -> None:
    """Whatever stands in one place of a report, it is read or refused in one line."""
    file = as_json_text(ALONE)
    place = [data.draw(st.sampled_from(sorted(file)))]
    while (inner := at(file, place)) and isinstance(inner, dict | list) and data.draw(st.booleans()):
        place.append(data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner)))))
    at(file, place[:-1])[place[-1]] = data.draw(JSON)
    assert isinstance(read(file), Storm | str)


def at(file: Any, place: list[Any]) -> Any:
    """What stands in this place of a file."""
    return functools.reduce(lambda inner, step: inner[step], place, file)


def read(file: Any) -> Storm | str:
    """The storm, or why it is none: one line."""
    try:
        return from_json(file)
    except ValueError as error:
        (line,) = str(error).splitlines()
        return line


# --- What it says -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (None, "Nothing was compared"),
        (0.1, "p = 0.1: of experiments with two builds that do not differ, 10% would"),
        (1.0, "100% would"),
        (0.0286, "2.9% would"),
        (1e-7, "less than 0.01% would"),
    ],
)
def test_chance(p: float | None, words: str) -> None:
    """The p value is said in plain words, as a share of experiments, and on which side."""
    assert words in report.chance(p)
    assert ("one-sided" in report.chance(p)) is (p is not None)


@pytest.mark.parametrize(
    ("noise", "hits", "says"),
    [
        (0.25, 0, "The window of the race was widened: with a chance of 0.25, a transfer worker waited up to 0.1 s"),
        (0.25, 30, "until 30 aborts had landed inside the window"),
        (0, 0, "The window of the race was not widened"),
        (None, 0, ""),
    ],
)
def test_a_widened_window_is_named(noise: float | None, hits: int, says: str) -> None:
    """In a sentence, on the page as on the terminal; of a deployment that is not ours nothing is said."""
    needs_live()
    settings = {"noise": noise, "noise_seconds": 0.1, "hits": hits}
    found = attrs.evolve(FIXES, settings=settings)
    assert says in report.window(found)
    assert bool(report.window(found)) is bool(says)
    assert says in " ".join(" ".join(Page(pages.html(found)).texts["body"]).split())


def of(index: int, **change: Any) -> Callable[[Storm], Storm]:
    """A storm with one run changed."""

    def apply(one: Storm) -> Storm:
        runs = list(one.runs)
        runs[index] = attrs.evolve(runs[index], **change)
        return attrs.evolve(one, runs=tuple(runs))

    return apply


OTHER_PHASES = (FIXES.runs[0].phases[0], attrs.evolve(FIXES.runs[0].phases[1], fingerprint="sha256:07e2"))


@pytest.mark.parametrize(
    ("change", "question", "words"),
    [
        (of(0, metric=Metric(500, 430, 2)), "Is the gauge exact?", "IT DIFFERED from the ledger in 2"),
        (of(0, phases=OTHER_PHASES), "Which build ran?", "THE BUILD CHANGED: sha256:1a7c (baseline 1, "),
        (of(0, build=attrs.evolve(LATCH, fingerprint="sha256:5eed")), "Which build ran?", "HAVE THE SAME FINGERPRINT"),
        (of(0, counts=attrs.evolve(FIXES.runs[0].counts, hits=0)), "Did the race happen?", "0 + 22 + 23"),
        (of(0, deadline=1.5), "Stuck, or still on their way?", "at least 0.75 times the longest request"),
    ],
)
def test_suspicions(change: Callable[[Storm], Storm], question: str, words: str) -> None:
    """What makes a result doubtful is said under the question that it is about, and at the head of the report."""
    assert report.cautions(FIXES) == ()
    doubtful = change(FIXES)
    (found,) = [doubt for doubt in report.doubts(doubtful) if doubt.question == question]
    (answer,) = [answer for answer in found.answers if answer.suspicious and words in answer.text]
    assert answer.text in report.cautions(doubtful)


def test_a_race_that_never_happened() -> None:
    """Where no abort met a worker in the window, that nothing pinned is said to mean nothing."""
    quiet = run("alone", 1, LATCH, counts=attrs.evolve(run("alone", 1, LATCH).counts, hits=0))
    assert report.cautions(storm(quiet)) == ("latch/cas: NOT ONCE, so that nothing pinned would mean nothing.",)


def test_stuck_or_slow() -> None:
    """The time that the queue was given is said beside the longest request, and when it was empty."""
    (found,) = [doubt for doubt in report.doubts(FIXES) if doubt.question.startswith("Stuck")]
    control, treatment = (answer.text for answer in found.answers)
    assert "given 8, 8, 8 s to drain, at least 4 times the longest request" in control
    assert "not empty then in 3 of 3 repetitions" in control
    assert "empty 1 s after the storm at the latest" in treatment
    (broken_off,) = [doubt for doubt in report.doubts(BROKEN_OFF) if doubt.question.startswith("Stuck")]
    assert broken_off.answers[1].text.endswith("not known; no repetition came to its drain.")


def test_proofs() -> None:
    """A live count is held against the proof of its own atomicity, and only what is proved can be contradicted."""
    told = {(row.label, row.count.name): (row.live, row.says) for row in report.held(ALONE)}
    assert told == {
        ("seed-control/split", "pinned"): (6, "seen, as it can be"),
        ("seed-control/split", "ghosts"): (0, "not seen in this storm"),
        ("seed-control/locked", "pinned"): (5, "seen, as it can be"),
        ("latch/cas", "pinned"): (2, "CONTRADICTS THE PROOF"),
        ("latch/cas", "ghosts"): (0, "as proved"),
    }
    assert report.cautions(ALONE) == ("latch/cas: 2 pinned, which contradicts the proof (proved: never).",)


def test_unknown_contradicts_nothing() -> None:
    """A count that is not known agrees with no proof and contradicts none."""
    (row,) = report.held(attrs.evolve(BLACK_BOX, proofs={FOREIGN.name: {"ghosts": "proved: never"}}))
    assert (row.live, row.says, row.contradicts) == (None, "cannot be compared", False)


def test_interrupted() -> None:
    """That a storm was interrupted is the first thing that is said of it."""
    assert report.cautions(BROKEN_OFF)[0].startswith("The storm was interrupted")


def test_faults_and_leftovers() -> None:
    """Provoked faults and what stayed behind are said at the head, each once."""
    one = storm(run("alone", 1, LATCH, faults=("kill-decode",)), run("alone", 2, LATCH, faults=("kill-decode",)))
    assert report.cautions(one) == ("Faults were provoked on the way: kill-decode.",)
    one = storm(run("alone", 1, LATCH, left_behind=("port 30000", "process 17")))
    assert report.cautions(one) == ("2 processes or ports stayed behind.",)


@pytest.mark.parametrize("conclusion", get_args(Conclusion))
def test_every_verdict(conclusion: Conclusion) -> None:
    """The page says the conclusion beside its colour, whichever it is."""
    needs_live()
    assert f"Conclusion: {conclusion}." in Page(pages.html(storm(conclusion=conclusion))).texts["span"][0]


# --- The page ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_page_stands_alone(name: str) -> None:
    """The page has no script, and refers to nothing outside itself."""
    page = Page(html(name))
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "a", "image", "foreignobject"}
    references = [value for _, found in page.tags for name, value in found.items() if name.endswith(("href", "src"))]
    assert all(value is not None and value.startswith("#") for value in references)
    assert not [name for _, found in page.tags for name in found if name.startswith("on")]


def test_page_is_the_same_every_time() -> None:
    """The same record gives the same bytes."""
    assert html("fixes") == pages.html(from_json(as_json_text(FIXES)))


def test_counts() -> None:
    """A row for each build has the sums of its repetitions, and a row for each repetition has its own."""
    page = Page(html("fixes"))
    assert page.texts["h1"] == [FIXES.sentence]
    control = ["3,006", "1,200", "9", "1,776", "21", "66", "24", "24", "0", "0", "0"]
    assert page.row("control: seed-control/split design: seed-control atomicity: split")[1:] == ["3 of 3", *control]
    treatment = ["3,006", "1,200", "9", "1,776", "21", "66", "0", "0", "0", "0", "0"]
    assert page.row("treatment: latch/cas design: latch atomicity: cas")[1:] == ["0 of 3", *treatment]
    second = [row for row in page.rows if row[:2] == ["control: seed-control/split", "2"]]
    times = ["2.00", "8.00", "never"]
    assert second == [[*second[0][:2], "1,002", "400", "3", "592", "7", "22", "8", "8", "0", "0", "0", *times]]


def test_unknown_is_no_zero() -> None:
    """What cannot be known of a foreign build is said to be not known, design and atomicity too."""
    page = Page(html("foreign"))
    row = page.row("http://10.0.0.7:30000 design: not known atomicity: not known")
    assert dict(zip((count.name for count in report.COUNTS), row[2:], strict=True)) == {
        "sent": "1,001",
        "completed": "400",
        "failed": "3",
        "aborted": "591",
        "unaccounted": "7",
        "hits": "not known",
        "pinned": "5",
        "lost_failures": "not known",
        "ghosts": "not known",
        "released_early": "not known",
        "wrong_digests": "not known",
    }
    assert "5 in the queue after the deadline; which rooms they are is not known." in page.texts["section"][-3]


def test_contradiction_is_marked() -> None:
    """The row of a count that contradicts a proof is marked, in words too."""
    page = Page(html("alone"))
    marked = [found for tag, found in page.tags if tag == "tr" and found.get("class") == "contradiction"]
    assert len(marked) == 1
    assert ["latch/cas", "pinned", "2", "proved: never", "CONTRADICTS THE PROOF"] in page.rows


def test_commands() -> None:
    """Every pinned room has the commands that lead to its cause, and the storm the one that repeats it."""
    commands = Page(html("fixes")).texts["pre"]
    for made in FIXES.of("control"):
        assert f"kvlatch check 'control {made.repetition}.ndjson'" in commands
        assert {room.show for room in made.pinned} <= set(commands)
    assert commands[-1] == FIXES.command
    assert "kvlatch check '/tmp/a b; rm -rf $HOME'" in Page(html("nasty")).texts["pre"]


def test_foreign_text_is_text() -> None:
    """Markup, mathematics, control and bidirectional characters of a foreign server are shown, and do nothing."""
    text = html("nasty")
    page = Page(text)
    assert page.texts["h1"] == [shown(NASTY)]
    assert {tuple(page.texts[tag])[-1] for tag in ("pre", "dt")} == {shown(NASTY)}
    assert f"Provoked: {shown(NASTY)}" in page.texts["li"]
    assert any(shown(NASTY)[:20] in label for label in page.texts["text"])
    assert not set("\x1b\x00\u202e") & set(text)
    assert "alert(1)" in text
    assert "<script" not in text


def test_plot_has_every_repetition() -> None:
    """Control and treatment differ in colour and in dashes, and each repetition is a line."""
    page = Page(html("fixes"))
    styles = [found.get("style") or "" for tag, found in page.tags if tag == "path"]
    gauges = [[s for s in styles if f"stroke: var(--build-{n})" in s and "stroke-opacity" in s] for n in (0, 1)]
    assert [len(lines) for lines in gauges] == [6, 6]  # three repetitions, on a wide page and on a narrow one
    assert ["stroke-dasharray" in lines[0] for lines in gauges] == [False, True]
    texts = [text.strip() for text in page.texts["text"]]
    assert {
        "baseline",
        "storm",
        "drain",
        "deadline of the drain",
        "drained to 0",
        "not drained",
        "aborts / s",
        "completions / s",
    } <= set(texts)
    assert {"control: seed-control/split (3 repetitions)", "treatment: latch/cas (3 repetitions)"} <= set(texts)
    picture, _ = [found for tag, found in page.tags if tag == "svg"]
    ids = [found["id"] for _, found in page.tags if "id" in found]
    assert len(ids) == len(set(ids))
    assert picture["role"] == "img"
    assert "control: seed-control/split: at most 40, in the end 4, 8, 12." in (picture["aria-label"] or "")


# --- The page in a browser --------------------------------------------------------------------------------------------

WIDTHS = (390, 500, 1280)
MEASURE = """
<pre id="measured"></pre>
<img src="http://example.test/x.png">
<script>
console.error("heard");
addEventListener("load", () => {
  const box = (element) => {
    const {width, height} = element.getBoundingClientRect();
    return [width, height, element.checkVisibility({visibilityProperty: true, opacityProperty: true})];
  };
  const measured = [...document.querySelectorAll("iframe")].map(({contentDocument: page}) => ({
    heading: page.querySelector("h1").innerText,
    headingBox: box(page.querySelector("h1")),
    plot: box([...page.querySelectorAll("figure svg")].find((each) => each.checkVisibility())),
    plotEnd: Math.max(
      ...[...page.querySelectorAll("figure svg path")].map((each) => each.getBoundingClientRect().right)
    ),
    plotTexts: [...page.querySelectorAll("figure svg text")].map((text) => [text.textContent, ...box(text)]),
    width: page.documentElement.clientWidth,
    reach: page.documentElement.scrollWidth,
    table: page.querySelector("table").innerText,
    scrolling: [...page.querySelectorAll(".scroll")].map((each) => [each.clientWidth, each.scrollWidth]),
    commands: [...page.querySelectorAll("pre code")].filter((code) => code.checkVisibility()).map((c) => c.innerText),
  }));
  document.getElementById("measured").textContent = JSON.stringify(measured);
});
</script>
"""


@needs_browser
def test_a_browser_shows_it(tmp_path: Path) -> None:
    """On a phone and on a screen: heading, plot with both names, figures and commands are there to be seen.

    The page around the two asks for a picture and writes to the console, to show that either would be noticed.
    """
    page = markup.escape(html("fixes"))
    frames = "".join(f'<iframe style="width: {w}px; height: 800px" srcdoc="{page}"></iframe>' for w in WIDTHS)
    wrapper = tmp_path / "measure.html"
    wrapper.write_text(f"<!doctype html><meta charset='utf-8'><style>iframe {{border: 0}}</style>{frames}{MEASURE}")
    seen = visit(wrapper)
    assert seen.asked == ["http://example.test/x.png"]
    assert [line.count('"heard"') for line in seen.console] == [1]
    views = json.loads(Page(seen.document).texts["pre"][-1])
    for view in views:
        assert view["heading"] == FIXES.sentence
        assert view["headingBox"][0] > 300
        assert view["headingBox"][2] is True
        assert view["reach"] == view["width"]  # nothing sticks out, so the page does not scroll sideways
        assert view["plot"][0] > min(600, 0.85 * view["width"])
        assert view["plot"][1] > 400
        assert view["plot"][2] is True
        assert 0.8 * view["plot"][0] < view["plotEnd"] <= view["width"]  # the ends of the curves are on the screen
        visible = {text for text, width, height, visible in view["plotTexts"] if width > 0 and height > 5 and visible}
        assert {"control: seed-control/split (3 repetitions)", "treatment: latch/cas (3 repetitions)"} <= visible
        assert {"3,006", "1,776", "66", "24"} <= set(view["table"].split())
        assert "kvlatch check 'control 1.ndjson'" in view["commands"]
        assert FIXES.runs[1].pinned[0].show in view["commands"]
        assert FIXES.command in view["commands"]
    assert [view["width"] for view in views] == list(WIDTHS)
    counted = [view["scrolling"][0] for view in views]
    assert [inner > outer for outer, inner in counted] == [True, True, False]


@needs_browser
def test_a_browser_asks_for_nothing(tmp_path: Path) -> None:
    """A page full of foreign markup makes no request, runs nothing and has nothing to complain about."""
    page = tmp_path / "storm.html"
    page.write_text(html("nasty"), encoding="utf-8")
    seen = visit(page)
    assert shown(NASTY) in Page(seen.document).texts["h1"]
    assert seen.console == []
    assert seen.asked == []


# --- The terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", ALL.values(), ids=ALL)
def test_lines_fit(one: Storm) -> None:
    """A line is no wider than the terminal, but for a command, and no character can steer it."""
    found = list(terminal.lines(one, 80))
    commands = {f"  {shown(room.show)}" for made in one.runs for room in made.pinned}
    for made in one.runs:
        if made.traces is not None:
            commands |= {f"  {shown(made.traces.check)}"}
            commands |= {f"  {shown(show)}" for room in made.traces.shown for show in room.show}
    assert all(len(line) <= 80 for line in found if line not in commands)
    assert all(line.isprintable() for line in found)


def test_lines() -> None:
    """The summary begins with the sentence, has every figure, and ends in commands."""
    found = list(terminal.lines(FIXES, 80))
    assert " ".join(" ".join(found[:2]).split()) == FIXES.sentence
    rows = [line.split() for line in found]
    assert ["repetitions", "that", "pinned", "3", "of", "3", "0", "of", "3"] in rows
    assert ["hits", "66", "66"] in rows
    assert ["pinned", "24", "0"] in rows
    assert f"  {FIXES.runs[1].pinned[0].show}" in found
    assert found[-1] == "and 21 more pinned rooms"


def test_two_ranks_are_shown_one_by_one() -> None:
    """A column for each rank, empty for what it has not; where entries leak, who starves, and what died of what."""
    build = Build("sglang 0.5.23", None, None, "mark", published=True)
    ranks = (
        Rank("prefill", {"leaks": 3, "hits": 2}, {"transfer_infos": 3}),
        Rank("decode", {"leaks": 0}, {}),
        Rank("prefill rank 1", {"leaks": 1, "hits": 0}, {"failure_records": 1}),
    )
    deaths = tuple(
        Death("prefill", "scheduler", f"RuntimeError: state 3 for req 12345678-{n}", "a.py:5") for n in (1, 2)
    )
    plain = run("alone", 1, build, ranks=ranks, deaths=deaths)
    counts = attrs.evolve(plain.counts, unsettled=1200, starved=1000, pages_left=64, leaks=4)
    one = storm(attrs.evolve(plain, counts=counts), conclusion="leaves", p=None)
    found = list(terminal.lines(one, 120))
    rows = [line.split() for line in found]
    assert ["leaks", "3", "0", "1"] in rows
    assert ["hits", "2", "0"] in rows
    said = " ".join(" ".join(found).split())
    assert "1,000 of 1,200 requests held for ever are held by decode alone" in said
    assert "leaks are 3 in prefill's transfer_infos, 1 in prefill rank 1's failure_records" in said
    assert "RuntimeError: state 3 for req 12345678-1 at a.py:5, and 1 more like it" in said
    single = storm(attrs.evolve(plain, ranks=ranks[:2]), conclusion="leaves", p=None)
    assert not any("by rank" in line for line in terminal.lines(single, 120))


def test_rooms_that_a_log_accuses_are_shown_with_their_commands() -> None:
    """On the page all that are named, on a terminal one of each law of the first such run; with the check for all."""
    build = Build("sglang 0.5.23", None, None, "mark", published=True)
    shown = tuple(
        BrokenRoom(
            n, law, f"room {n} is accused", (f"kvlatch show decode.ndjson --room {n}", f"kvlatch show p --room {n}")
        )
        for n, law in ((7, "one-outcome/both-ends"), (8, "one-outcome/both-ends"), (9, "leak in failure_records"))
    )
    fine = run("alone", 1, build, traces=Traces("kvlatch check out-1 --quiet 2", 0, ()))
    broken = run("alone", 2, build, traces=Traces("kvlatch check out-2 --quiet 2", 12, shown))
    one = storm(fine, broken, run("alone", 3, build), conclusion="leaves", p=None)
    found = list(terminal.lines(one, 80))
    assert found[found.index("  kvlatch check out-2 --quiet 2") - 1] == (
        "sglang 0.5.23, repetition 2: 12 rooms break a law in the logs of both engines"
    )
    commands = [line.strip() for line in found if line.startswith("  kvlatch show")]
    assert sorted(commands) == sorted((*shown[0].show, *shown[2].show))
    assert "out-1" not in " ".join(found)
    needs_live()
    page = Page(pages.html(one))
    commands = page.texts["pre"]
    assert {"kvlatch check out-2 --quiet 2", *(show for room in shown for show in room.show)} <= set(commands)
    assert "kvlatch check out-1 --quiet 2" not in commands


@pytest.mark.parametrize("one", ALL.values(), ids=ALL)
def test_a_narrow_terminal_shows_the_same_figures(one: Storm) -> None:
    """Sentences and tables are broken differently, and lose nothing; the plot is drawn to the width."""
    figures = []
    for width in (80, 100, 200):
        plot = set(blocks({group.label: group.runs for group in report.groups(one)}, width))
        text = " ".join(line for line in terminal.lines(one, width) if line not in plot)
        figures.append(set(re.findall(r"[0-9][0-9,.]*", text)))
    assert figures[0] == figures[1] == figures[2]


def test_terminal_plot() -> None:
    """Twelve lines show for both builds when the queue was full, and whether anything was left in it."""
    one = [run("control", 1, SEED, gauge=((0.0, 0.0), (5.0, 400.0), (16.0, 1.0), (23.0, 1.0)))]
    other = [run("treatment", 1, LATCH, gauge=((0.0, 0.0), (5.0, 400.0), (16.0, 0.0), (23.0, 0.0)))]
    found = list(blocks({"control": one, "treatment": other}, 80))
    assert len(found) == 12
    assert (found[0], found[5]) == ("control; in the end 1", "treatment; in the end 0")
    assert found[1].startswith("   400")
    bottoms = [found[4][7:].ljust(72), found[9][7:].ljust(72)]
    storm_begins, drain_begins = int(5 / 23 * 72), int(16 / 23 * 72)
    for bottom in bottoms:
        assert bottom[:storm_begins].strip() == ""
        assert set(bottom[storm_begins : drain_begins + 1]) == {"█"}  # also where no sample was taken
    assert bottoms[0][drain_begins + 1 :] == "▁" * (71 - drain_begins)
    assert bottoms[1][drain_begins + 1 :].strip() == ""
    axis = found[10][7:]
    assert [axis.index(mark) for mark in ("├baseline", "├storm", "├drain", "┤")] == [
        0,
        storm_begins,
        int(15 / 23 * 72),
        71,
    ]


def test_time_axis() -> None:
    """The axis ends with the last run, but not before the first deadline: so one is always to be seen."""
    early = run("alone", 1, LATCH, gauge=((0.0, 0.0), (16.0, 0.0)))
    early = attrs.evolve(early, phases=(*early.phases[:2], attrs.evolve(early.phases[2], end=16.5)))
    patient = attrs.evolve(early, deadline=100.0)
    assert list(blocks({"latch": [patient, early]}, 80))[-1].split()[-2:] == ["23.0", "s"]
    stuck = run("alone", 1, SEED, 3)
    assert list(blocks({"latch": [patient], "seed": [stuck]}, 80))[-1].split()[-2:] == ["23.0", "s"]
    assert list(blocks({"latch": [patient]}, 80))[-1].split()[-2:] == ["115.0", "s"]


def test_many_builds_still_fit() -> None:
    """Builds that are too many for areas have a line each."""
    builds = {f"design {n}": [run("alone", 1, SEED, n)] for n in range(14)}
    found = list(blocks(builds, 80))
    assert len(found) == 2 * 14 + 2
    assert describe(builds).count("at most 40") == 14
