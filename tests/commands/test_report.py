"""``--html``: the page of a judge says what it has to, opens its findings as lanes, and does nothing else."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvlatch.commands import pages, report
from kvlatch.commands.explore import page
from kvlatch.commands.judgements import Report
from kvlatch.commands.report import laws
from kvlatch.proofs import pins
from kvlatch.reference.laws import Broken, Judgement, Kept, NotJudged
from kvlatch.spec.traces import read
from tests.browser import DARK, needs_browser, visit

ROOT = Path(__file__).parents[2]
TRACES = Path(pins.__file__).with_name("traces")
MARKUP = "</script><script>hacked = 1</script><!-- <script>"
NASTY = MARKUP + " <img src=http://example.test/x.png> {{ 7 * 7 }} \x1b[2J \u202e"
RANKS = [
    {"kvlatch-log": 2},
    *(
        {"node": node, "rank": rank, "room": 7, "thread": "scheduler", "time": 0.1 * number, **event}
        for number, event in enumerate(
            [
                {"op": "create", "status": "Bootstrapping"},
                {"op": "write", "incoming": "WaitingForInput", "status": "WaitingForInput"},
                {"op": "abort", "status": "Failed"},
            ]
        )
        for node, rank in (("prefill", "0"), ("prefill", "1"))
    ),
    {"node": "prefill", "rank": "1", "room": 7, "thread": "worker 0", "time": 0.9,
     "op": "write", "incoming": "Transferring", "status": "Transferring"},
]  # fmt: skip
"""A room on two ranks, of which one goes back to work after the abort."""


def run(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A command, run in a folder."""
    command = [sys.executable, "-m", "kvlatch", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def nasty() -> str:
    """A page all of whose words come from somebody else."""
    seen = read(TRACES / "seed-control.terminal-sticky.itf.json")
    steps = tuple(attrs.evolve(step, thread=f"{step.thread}{NASTY}") for step in seen.steps)
    trace = attrs.evolve(seen, design=NASTY, atomicity="threads", steps=steps)
    found = (
        Judgement("terminal-sticky", Broken(NASTY, f"a\tb\n{NASTY}", trace, f"kvlatch {NASTY}", NASTY, 3)),
        Judgement("no-crash", Kept(1234567, "plays")),
        Judgement("no-pin", NotJudged(NASTY)),
    )
    return laws.html(Report(NASTY, found, cautions=(NASTY,), members={"seed": "7"}), "kvlatch conform")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each command, by name."""
    folder = tmp_path_factory.mktemp("pages")
    log = folder / "ranks.ndjson"
    log.write_text("\n".join(map(json.dumps, RANKS)) + "\n")
    cell = ("--design", "seed-control", "--property", "terminal-sticky", "--workers", "1", "--atomicity", "locked")
    made = {
        "prove": run(folder, "prove", *cell, "--design", "latch", "--html", "prove.html"),
        "check": run(folder, "check", log.name, "--html", "check.html"),
        "conform": run(
            ROOT / "examples" / "python", "conform", "manager_max:Adapter", "--only", "terminal-sticky",
            "--only", "no-deadlock", "--html", folder / "conform.html",
        ),
    }  # fmt: skip
    assert {name: done.returncode for name, done in made.items()} == {"prove": 1, "check": 1, "conform": 1}, made
    (folder / "nasty.html").write_text(nasty(), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in (*made, "nasty")}


# --- In a browser -----------------------------------------------------------------------------------------------------

WIDTHS = (400, 1280, 2000)
LOOK = """
<pre id="seen"></pre>
<script>
addEventListener("load", () => {
  const seen = [...document.querySelectorAll("iframe")].map((frame) => {
    const page = frame.contentDocument;
    const run = page.querySelector("article iframe");
    const inner = run.contentDocument;
    const row = inner.querySelector(".row.current");
    const box = (element) => element.getBoundingClientRect();
    return {
      page: frame.title,
      title: page.querySelector("h1").innerText,
      text: page.body.innerText,
      verdicts: Object.fromEntries([...page.querySelectorAll("tbody tr")].map((row) =>
        [row.cells[0].innerText, row.cells[1].innerText])),
      caution: page.querySelector(".cautions")?.innerText ?? "",
      frames: page.querySelectorAll("iframe").length,
      lanes: [...inner.querySelectorAll("#head span")].map((one) => one.textContent),
      blamed: [row.classList.contains("fatal"), row.querySelector(".text").innerText],
      inSight: box(row).top >= 0 && box(row).bottom <= inner.documentElement.clientHeight,
      playable: inner.querySelector("#next button") !== null,
      heading: inner.querySelector("header").checkVisibility(),
      widths: [page.documentElement, inner.documentElement].map((root) => [root.clientWidth, root.scrollWidth]),
      paper: getComputedStyle(page.body).backgroundColor,
      innerPaper: getComputedStyle(inner.body).backgroundColor,
      hacked: frame.contentWindow.hacked ?? run.contentWindow.hacked ?? null,
    };
  });
  document.getElementById("seen").textContent = JSON.stringify(seen);
});
</script>
"""


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_what_a_person_sees(written: dict[str, Path], dark: bool) -> None:
    """Every page on a phone, a laptop and a large screen, in one window."""
    frames = "".join(
        f'<iframe title="{name}" src="{path.name}" style="width: {width}px; height: 1200px; border: 0"></iframe>'
        for name, path in written.items()
        for width in WIDTHS
    )
    wrapper = written["check"].with_name(f"look-{dark}.htm")
    schemes = "<!doctype html><meta charset='utf-8'><meta name='color-scheme' content='light dark'>"
    wrapper.write_text(schemes + frames + LOOK, encoding="utf-8")
    visited = visit(wrapper, "--allow-file-access-from-files", *([DARK] if dark else []))
    assert visited.console == []
    assert [url for url in visited.asked if not url.startswith("file:")] == []
    (found,) = re.findall(r'<pre id="seen">(.*?)</pre>', visited.document, re.DOTALL)
    seen: list[dict[str, Any]] = json.loads(html.unescape(found))
    assert len(seen) == len(written) * len(WIDTHS)
    for number, view in enumerate(seen):
        outer, inner = view["widths"]
        assert outer == [WIDTHS[number % 3]] * 2, view["page"]  # nothing sticks out
        assert inner[0] == inner[1]
        assert (view["frames"], view["heading"], view["hacked"]) == (1, False, None)
        assert (view["blamed"][0], view["inSight"]) == (True, True), (view["page"], outer)
        for paper in (view["paper"], view["innerPaper"]):
            assert (sum(map(int, re.findall(r"\d+", paper)[:3])) > 3 * 128) is not dark
        globals()[f"look_at_{view['page']}"](view)


def look_at_prove(view: dict[str, Any]) -> None:
    assert view["title"].endswith("seed-control, latch: not everything selected holds")
    assert view["verdicts"] == {"seed-control locked, 1 worker": "12", "latch locked, 1 worker": "holds"}
    assert view["blamed"][1] == "write_t: Failed → Transferring"
    assert view["playable"]
    assert "worker 0 wrote Transferring over Failed" in view["text"]
    assert "kvlatch prove --design seed-control --property terminal-sticky --workers 1" in view["text"]


def look_at_check(view: dict[str, Any]) -> None:
    """A lane for each thread and the table of each rank."""
    assert "ranks.ndjson breaks" in view["title"]
    assert view["verdicts"]["terminal-sticky"] == "✗ broken"
    assert view["verdicts"]["no-deadlock"] == "? not judged"
    assert view["lanes"] == [
        "#", "prefill/0 scheduler", "prefill/0 table",
        "prefill/1 scheduler", "prefill/1 worker 0", "prefill/1 table", "what happens",
    ]  # fmt: skip
    assert view["blamed"][1] == "+0.9 s write Transferring over Failed"
    assert "The timeline of room 7" in view["text"]
    assert not view["playable"]


def look_at_conform(view: dict[str, Any]) -> None:
    assert view["title"].endswith("manager_max:Adapter breaks 1 of 1 law that could be judged; 1 could not be judged")
    assert view["verdicts"] == {"terminal-sticky": "✗ broken", "no-deadlock": "? not judged"}
    assert "the table said Failed, and the next poll reads WaitingForInput" in view["text"]
    assert "scheduler" in view["lanes"]
    assert "kvlatch conform manager_max:Adapter --only terminal-sticky" in view["text"]


def look_at_nasty(view: dict[str, Any]) -> None:
    """What others wrote is shown as they wrote it, with escapes for what a screen would obey."""
    for shown in (view["title"], view["caution"], view["text"]):
        assert MARKUP in shown
        assert r"{{ 7 * 7 }} \x1b[2J \u202e" in shown
    assert any("<!-- <script>" in lane for lane in view["lanes"])
    assert "1,234,567 plays could have broken it" in view["text"]


# --- As a document ----------------------------------------------------------------------------------------------------


class Document(HTMLParser):
    """Ids, links and elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.elements: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append(tag)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "srcdoc")]


def test_links_stay_on_the_page(written: dict[str, Path]) -> None:
    for path in written.values():
        document = Document(path.read_text(encoding="utf-8"))
        assert len(document.ids) == len(set(document.ids))
        assert document.links
        assert {link.removeprefix("#") for link in document.links} <= set(document.ids)
        assert not {"img", "link", "object", "form", "base"} & set(document.elements)


def test_a_page_stays_small_and_says_what_it_left_out() -> None:
    """Hundreds of large findings of several machines: below two megabytes, and the first ones can be opened."""
    trace = read(TRACES / "seed-control.terminal-sticky.itf.json")
    machines = [page.of_trace(read(path)) for path in sorted(TRACES.glob("fix-a.*.itf.json"))[:6]]
    still = page.still(trace)
    big = report.Finding("", "n" * 5000, "", "s" * 50_000, "t" * 1_000_000, "", "", machines[0], still)
    findings = tuple(attrs.evolve(big, anchor=f"f{n}", run=machines[n % 6]) for n in range(600))
    section = report.Section("What broke", findings)
    made = report.html(report.Report("kvlatch x", "t", "bad", "s", (), (section,), {}, {}, "kvlatch x"))
    assert len(made.encode()) < pages.LARGEST
    assert "data-run" in made
    assert "would make this page too large" in made
    assert "more characters" in made


def test_what_is_embedded_ends_no_element() -> None:
    text = pages.embedded({"</script>": "<!-- <script>", "half": "\ud800"})
    assert "<" not in text
    assert json.loads(text) == {"</script>": "<!-- <script>", "half": "\ud800"}


# --- The option -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("prove", "--design", "latch"),
        ("conform", "no_such_module:Adapter"),
        ("check", "no-such.log"),
    ],
    ids=" ".join,
)
def test_a_page_that_cannot_be_written_is_said_first(command: tuple[str, ...], tmp_path: Path) -> None:
    """Before the work is done: the subject is not even looked for."""
    done = run(tmp_path, *command, "--html", "there/page.html")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the folder there does not exist" in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_page_of_what_is_no_judgement(tmp_path: Path) -> None:
    done = run(ROOT / "examples" / "python", "conform", "manager:Adapter", "--merge", "--html", tmp_path / "x.html")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--html has no effect with --merge" in done.stderr


def test_nothing_judged_is_not_green() -> None:
    """The heading says that nothing was judged, and its mark is a question."""
    text = laws.html(Report("mine", (Judgement("no-pin", NotJudged("nothing was seen")),)), "kvlatch check")
    assert "Nothing of mine was judged" in text
    assert '<h1><span class="open" aria-hidden="true">?</span>' in text
