"""What a reader is told: links lead somewhere, paths exist, commands do what is said, and the site can be looked at.

A block of `sh` or `console` in a Markdown file is run, unless its info string gives a reason: ``skip="needs a GPU"``.
With ``thorough="takes long"`` it is run by `make thorough` alone. Blocks of one page share a folder. A command must
exit with 0, or with what ``# exit N`` behind it says; of a `console` block the output is compared as well, where
``…`` stands for anything and white space does not count. A `python` block that begins with ``# some/path.py`` is
written to that file first.
"""

from __future__ import annotations

import html
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import attrs
import click
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from kvlatch.commands.main import cli
from kvlatch.proofs import pins
from kvlatch.reference.laws import LAWS
from kvlatch.reference.published.sglang.verdicts import pinned, render
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.protocols import PROTOCOLS
from kvlatch.spec.room import ROOM
from tests.browser import needs_browser, visit

ROOT = Path(__file__).resolve().parents[1]
MADE_HERE = {"build", "dist", "traces"}
"""Folders that commands make in a checkout; none of them is part of the project."""


def project_files() -> Iterator[Path]:
    """Every file of the checkout that is nobody's output, relative to it."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith((".", "__")) and not name.endswith(".egg-info")]
        if Path(folder) == ROOT:
            folders[:] = [name for name in folders if name not in MADE_HERE and not name.startswith("storm-")]
        yield from (Path(folder, name).relative_to(ROOT) for name in files)


FILES = frozenset(path.as_posix() for path in project_files())
FOLDERS = frozenset(parent.as_posix() for path in FILES for parent in Path(path).parents if parent != Path())
PAGES = sorted(path for path in FILES if path.endswith(".md"))
TOP = frozenset(path.partition("/")[0] for path in FOLDERS)


# --- Pages as data ----------------------------------------------------------------------------------------------------


@cache
def tokens(page: str) -> tuple[Token, ...]:
    """A page, parsed as GitHub does."""
    found = MarkdownIt("gfm-like", {"linkify": False}).parse((ROOT / page).read_text(encoding="utf-8"))
    return tuple(inner for token in found for inner in (token, *(token.children or ())))


def links(page: str) -> list[str]:
    """Where the links and pictures of a page lead."""
    found = [token.attrGet("href") or token.attrGet("src") for token in tokens(page)]
    return [str(link) for link in found if link is not None]


def anchors(page: str) -> set[str]:
    """The anchors that a page's headings have."""
    titles = (inline.content for token, inline in pairwise(tokens(page)) if token.type == "heading_open")
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def code(page: str) -> list[str]:
    """What stands between backticks in the text of a page."""
    return [" ".join(token.content.split()) for token in tokens(page) if token.type == "code_inline"]


@attrs.frozen
class Block:
    """One fenced block: its language, when it is run (None: always; ``skip``: never; ``thorough``), and its lines."""

    language: str
    when: str | None
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = []
    for token in tokens(page):
        if token.type == "fence" and not token.info.startswith("{"):  # that is a directive of the site
            language, _, options = token.info.partition(" ")
            when = re.fullmatch(r'(skip|thorough)=".+"', options)
            assert when or not options, f'{page}: {token.info!r} is no language with skip="REASON" or thorough="REASON"'
            line = token.map[0] + 1 if token.map else 0
            found.append(Block(language, when and when[1], token.content, line))
    return found


# --- Links and paths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """A link within the project leads to a file, a folder or a heading that is there; any other is absolute."""
    broken = []
    for link in links(page):
        target, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            if not link.startswith("https://"):
                broken.append(link)
            continue
        place = os.path.normpath(Path(page).parent / target) if target else page
        if place not in FILES | FOLDERS or (anchor and anchor not in anchors(place)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    """A path between backticks is one of the project's, from its root, from the page, or as the end of a longer one."""
    missing = [word for text in code(page) for word in text.split() if is_path(word) and not exists(word, page)]
    assert missing == []


def is_path(word: str) -> bool:
    """It begins with a folder of ours, or is the name of a source file or a page."""
    first, slash, _ = word.partition("/")
    return re.fullmatch(r"[\w.*/-]+", word) is not None and (
        (slash != "" and first in TOP) or re.search(r"\w\.(py|md|toml|cu)$", word) is not None
    )


def exists(word: str, page: str) -> bool:
    """Whether a path is one of the project's; a star, or NAME, stands for anything but a slash."""
    parts = os.path.normpath(word).replace("NAME", "*").split("*")
    wanted = re.compile(r"(.*/)?" + r"[^/]*".join(map(re.escape, parts)))
    written_here = {name for block in blocks(page) for name in re.findall(r"^# (\S+\.py)$", block.text, re.MULTILINE)}
    return word in written_here or any(wanted.fullmatch(path) for path in FILES | FOLDERS)


@pytest.mark.parametrize("page", PAGES)
def test_names_resolve(page: str) -> None:
    """A dotted name between backticks that begins with kvlatch can be imported."""
    names = {name for text in code(page) for name in re.findall(r"(?<![\w./])kvlatch(?:\.\w+)+", text)}
    for name in sorted(names - {"kvlatch.xml"}):
        resolve_name(name)


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    """A command between backticks or in a block, run or not, has the options that it is given."""
    texts = code(page) + [line for block in blocks(page) for line in block.text.splitlines()]
    wrong = []
    for text in texts:
        for name, rest in re.findall(r"(?<!from )\bkvlatch ([a-z]+)\b([^|;&#`]*)", text):
            command = cli.get_command(click.Context(cli), name)
            if command is None:
                wrong.append(f"kvlatch {name}")
                continue
            known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
            wrong += [
                f"kvlatch {name} {option}"
                for option in re.findall(
                    r"--[a-z][a-z-]*", rest.partition(" -- ")[0]
                )  # what follows is no option of ours
                if option not in known
            ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    texts = code(page) + [line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]
    named = {found[1] for text in texts if (found := re.match(r"make ([a-z]+)", text))}
    assert named <= targets


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 200


def test_the_table_of_published_managers_is_the_pinned_one() -> None:
    """`make sglang` renews both."""
    page = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")
    assert f"<!-- sglang: begin -->\n{render(pinned())}\n<!-- sglang: end -->" in page


def test_page_of_the_package_stands_alone() -> None:
    """Whoever reads it has no checkout: its links, if any, are absolute."""
    assert [link for link in links("docs/pip.md") if not link.startswith("https://")] == []


# --- Blocks -----------------------------------------------------------------------------------------------------------

RUN = {"sh", "console"}
KNOWN = RUN | {"c", "json", "python", "text", "toml", "yaml"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like the checkout, in which commands may write."""
    for path in ROOT.iterdir():
        if path.name in TOP | FILES:
            if path.name in {"examples", "tests"}:  # commands are run in these, and Python writes beside its files
                shutil.copytree(path, tmp_path / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_what_they_say(page: str) -> None:
    """JSON is JSON, Python compiles, and every block has a language that is known here."""
    for block in blocks(page):
        assert block.language in KNOWN, f"{page}:{block.line}: {block.language!r}"
        if block.language == "json":
            assert all(isinstance(json.loads(line), dict) for line in block.text.splitlines())
        if block.language == "python":
            compile(block.text, f"{page}:{block.line}", "exec")


def pages_with(when: str | None) -> list[str]:
    """The pages with blocks that are run at that time."""
    return [page for page in PAGES if any(block.language in RUN and block.when == when for block in blocks(page))]


@pytest.mark.parametrize(
    ("page", "when"),
    [
        *((page, None) for page in pages_with(None)),
        *(pytest.param(page, "thorough", marks=pytest.mark.thorough) for page in pages_with("thorough")),
    ],
)
def test_commands_do_what_is_said(page: str, when: str | None, folder: Path) -> None:
    for block in blocks(page):
        if block.language == "python" and (name := re.match(r"# (\S+\.py)\n", block.text)):
            (folder / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / name[1]).write_text(block.text, encoding="utf-8")
        if block.language in RUN and block.when == when:
            for command, said in commands(block):
                output = run(command, folder)
                if block.language == "console":
                    assert matches(said, output), f"{page}:{block.line}: {command} printed\n{output}"


def test_the_matrix_of_the_readme_is_the_pinned_one() -> None:
    """What `kvlatch prove` shows of it; `make thorough` runs the command itself."""
    (block,) = (block for block in blocks("README.md") if block.when == "thorough")
    ((command, said),) = commands(block)
    assert command == "kvlatch prove"
    shown = 0
    for design, atomicity, cells in re.findall(r"^(\S+) (locked|split|cas) +(.*)  …$", said, re.MULTILINE):
        for prop, word in zip(PROPERTIES, cells.split(), strict=False):
            words = {pins.pinned()[design, atomicity, workers, prop.name] for workers in ROOM.counts}
            assert set(word.split("/")) == words, (design, atomicity, prop.name)
            shown += 1
    assert shown >= 40


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with the output that is said to follow."""
    if block.language == "sh":
        yield from ((line, "") for line in block.text.splitlines() if line and not line.startswith("#"))
        return
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, said = part.partition("\n")
        yield command, said


def run(command: str, folder: Path) -> str:
    """What a command prints; it must exit with what it says behind a hash, or else with 0."""
    exits = re.search(r"# exit (\d+)", command)
    shell = shutil.which("sh") or "sh"
    away = ("COLUMNS", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in away}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    made = subprocess.run(
        [shell, "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert made.returncode == int(exits[1] if exits else 0), f"{command}\n{made.stdout}{made.stderr}"
    return made.stdout + made.stderr


def matches(said: str, printed: str) -> bool:
    """Whether the output is as said: `…` is anything, and white space of any kind is a blank."""
    parts = [re.escape(" ".join(part.split())) for part in said.split("…")]
    return re.fullmatch(" ?" + " ?.* ?".join(parts) + " ?", " ".join(printed.split())) is not None


def test_matching_can_fail() -> None:
    assert matches("a  …\n c", "a b\nc\n")
    assert matches("…b…", "a b c")
    assert not matches("a … c", "a b d")
    assert not matches("a", "a b")


# --- The site ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    for name in ("sphinx", "myst_parser", "furo"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: it is in the extra `docs`")
    made = tmp_path_factory.mktemp("site")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "-d",
        made / "trees",
        "docs",
        made / "html",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return made / "html"


def html_pages(site: Path) -> list[Path]:
    return sorted([*site.glob("*.html"), *site.glob("upstream/*.html")])


def test_every_page_is_in_the_site(site: Path) -> None:
    expected = {Path(page).stem for page in PAGES if page.startswith("docs/")} - {"pip"}
    assert expected <= {path.stem for path in html_pages(site)}


def test_every_command_is_explained(site: Path) -> None:
    """With each of its options."""
    text = (site / "commands.html").read_text(encoding="utf-8")
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert f"Usage: kvlatch {name} " in text
        assert all(option in text for parameter in command.params for option in parameter.opts if option[0] == "-")


def test_every_law_and_design_is_there(site: Path) -> None:
    text = (site / "laws.html").read_text(encoding="utf-8")
    assert all(f'id="{law}"' in text for law in LAWS)
    text = (site / "prove.html").read_text(encoding="utf-8")
    assert all(f"<p>{design}</p>" in text for design in DESIGNS)


@attrs.frozen
class Diagram:
    """The changes of the status table that a diagram shows, and those that it marks as harmful."""

    changes: frozenset[tuple[str, str]]
    harmful: frozenset[tuple[str, str]]


def diagrams(site: Path) -> dict[tuple[str, str], Diagram]:
    """The diagrams of the site, by design and atomicity."""
    found = {}
    for figure in (site / "states.html").read_text(encoding="utf-8").split('<figure class="states">')[1:]:
        (name,) = re.findall(r"Status changes of (\S+), (\w+):", figure)
        arrows = re.findall(r'<g class="(\w+)" data-change="(\w+); (\w+)">', figure.partition("</figure>")[0])
        harmful = frozenset((before, after) for kind, before, after in arrows if kind == "harm")
        found[name] = Diagram(frozenset((before, after) for _, before, after in arrows), harmful)
    return found


def test_diagrams_show_what_counterexamples_do(site: Path) -> None:
    """Each change of a pinned trace in the diagrams' world is an arrow; the designs that fail have harmful ones."""
    drawn = diagrams(site)
    assert {design for design, _ in drawn} == {"seed-control", "sglang-0.5.23", "latch"}
    seen: dict[tuple[str, str], set[tuple[str, str]]] = {name: set() for name in drawn}
    for path in (ROOT / "proofs" / "traces").glob("*.itf.json"):
        trace = json.loads(path.read_text(encoding="utf-8"))
        about = trace["#meta"]
        size = [about.get(name) for name in ("network", "workers", "chunks", "requests")]
        if (name := (about["design"], about["atomicity"])) in drawn and size == ["orderly", "1", "2", "1"]:
            statuses = [state["status"] for state in trace["states"]]
            seen[name] |= {change for change in pairwise(statuses) if change[0] != change[1]}
    assert [name for name, changes in seen.items() if not changes <= drawn[name].changes] == []
    assert ("Failed", "Transferring") in seen["seed-control", "locked"] & drawn["seed-control", "locked"].harmful
    assert ("Failed", "Transferring") in drawn["sglang-0.5.23", "split"].harmful
    assert drawn["latch", "locked"].harmful == frozenset()
    after_the_end = {change for change in drawn["latch", "locked"].changes if change[0] in {"Failed", "Success"}}
    assert {after for _, after in after_the_end} == {"Tombstone"}


def test_every_protocol_has_its_diagrams(site: Path) -> None:
    """Each arrow is a change that some run makes by the rows that it names, and a run makes no change without one."""
    page = (site / "states.html").read_text(encoding="utf-8")
    for protocol in PROTOCOLS.values():
        drawn: dict[str, set[tuple[str, str, str]]] = {}
        named = rf'aria-label="{protocol.name}, (?:where the|the state) ([\w ]+?)(?: is)?: \d+ changes"(.*?)</figure>'
        for name, figure in re.findall(named, page, re.DOTALL):
            arrows = re.findall(r'data-change="([^";]+); ([^";]+)"><title>(.*?)</title>', figure)
            drawn[name] = {(before, after, row) for before, after, rows in arrows for row in rows.split(", ")}
        assert len(drawn) >= 3
        design = next(one for one in protocol.designs.values() if f"The design is {one.name}, " in page)
        size = Instance(1, 2, 1) if protocol.entry else protocol.worlds[0].instance(protocol.counts[0])
        machine = Machine.of(design, design.atomicities[0], "orderly", size, protocol)
        assert walked(machine, drawn) > 50


_WALK: Final = 100
"""Steps of a random run."""


def walked(machine: Machine, drawn: dict[str, set[tuple[str, str, str]]]) -> int:
    """Random runs, held against the diagrams; how many changes they made."""
    count, draw = 0, random.Random(1)  # noqa: S311  # runs to look at, no secret
    titles = {thread.pc.name: actor for actor, thread in machine.protocol.threads.items()}
    for _ in range(40):
        state = machine.initial()
        for _ in range(_WALK):  # a lease may be renewed for ever
            enabled = machine.enabled(state)
            if not enabled:
                break
            action = draw.choice(enabled)
            after = machine.step(state, action)
            for var in state:
                name = titles.get(var.field.name, var.field.name)
                if state[var] != after[var] and name in drawn:
                    row = f"{action.rule.actor}: {action.rule.name}"
                    assert (var.labels[state[var]], var.labels[after[var]], row) in drawn[name]
                    count += 1
            state = after
    return count


def test_pages_ask_nobody_for_anything(site: Path) -> None:
    """Scripts, styles and pictures come with the site."""
    wanted = re.compile(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=\"(?:https?:)?//")
    assert [path.name for path in html_pages(site) if wanted.search(path.read_text(encoding="utf-8"))] == []


LOOK = """
<pre id="seen"></pre>
<script>
addEventListener("load", () => {
  const seen = [...document.querySelectorAll("iframe")].map(({contentDocument: page, title}) => ({
    page: title,
    width: page.documentElement.clientWidth,
    reach: page.documentElement.scrollWidth,
    heading: page.querySelector("h1").checkVisibility() ? page.querySelector("h1").innerText : "",
    text: page.querySelector("article").innerText.length,
  }));
  document.getElementById("seen").textContent = JSON.stringify(seen);
});
</script>
"""


@needs_browser
@pytest.mark.parametrize("width", [400, 1280, 2000])
def test_a_browser_shows_every_page(site: Path, width: int) -> None:
    """Each page has a heading and text to be seen, and does not scroll sideways; none complains or asks a server."""
    frames = "".join(
        f'<iframe title="{name}" src="{name}" style="width: {width}px; height: 800px; border: 0"></iframe>'
        for name in (path.relative_to(site).as_posix() for path in html_pages(site))
        if name not in {"search.html", "genindex.html"}
    )
    wrapper = site / f"look-{width}.htm"
    wrapper.write_text(f"<!doctype html><meta charset='utf-8'>{frames}{LOOK}", encoding="utf-8")
    visited = visit(wrapper, "--allow-file-access-from-files", "--virtual-time-budget=20000")
    (found,) = re.findall(r'<pre id="seen">(.*?)</pre>', visited.document, re.DOTALL)
    seen: list[dict[str, Any]] = json.loads(found)
    assert len(seen) > 10
    assert [page["page"] for page in seen if page["reach"] > page["width"] or page["width"] != width] == []
    assert [page["page"] for page in seen if not page["heading"] or page["text"] < 200] == []
    assert [url for url in visited.asked if not url.startswith("file:")] == []
    assert visited.console == []


@needs_browser
def test_explored_pages_are_live(site: Path) -> None:
    """The frames on the page of `kvlatch explore` hold pages that have come to life."""
    look = """<pre id="seen"></pre><iframe src="explore.html" style="width: 1280px; height: 800px"></iframe><script>
    addEventListener("load", () => {
      const frames = [...document.querySelector("iframe").contentDocument.querySelectorAll("iframe.explore")];
      const texts = frames.map((frame) => frame.contentDocument.body.innerText);
      document.getElementById("seen").textContent = JSON.stringify(texts);
    });
    </script>"""
    wrapper = site / "look-explored.htm"
    wrapper.write_text(f"<!doctype html><meta charset='utf-8'>{look}", encoding="utf-8")
    visited = visit(wrapper, "--allow-file-access-from-files", "--virtual-time-budget=20000")
    (found,) = re.findall(r'<pre id="seen">(.*?)</pre>', visited.document, re.DOTALL)
    incident, room, latch, log = json.loads(html.unescape(found))
    assert "terminal-sticky is broken" in incident
    assert "771203388710254007" in room
    assert "create" in latch
    assert "seed.ndjson breaks 4 of 6 laws" in log
    assert visited.console == []
