"""``kvlatch explore``: the page is held to the spec state by state, and looked at in a browser."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kvlatch.commands.explore import page
from kvlatch.proofs import pins
from kvlatch.reference.logs.story import story
from kvlatch.reference.story import Line, Story
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine, named
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.schema import Atomicity, Network
from kvlatch.spec.traces import Step, Trace, TraceError, read, verify, write
from tests.browser import DARK, needs_browser, visit

ROOT = Path(__file__).parents[2]
SEED = Path(pins.__file__).with_name("traces") / "seed-control.terminal-sticky.itf.json"
LOG = ROOT / "tests" / "logs" / "seed.ndjson"
ROOM = "771203388710254007"
STORM = ROOT / "tests" / "logs" / "storm.ndjson"
"""Two rooms of the log of `kvlatch storm --design seed-control --seed 1`."""
STORMED = 8342526313965933589


def empty(machine: Machine, design: str, atomicity: str, network: str) -> Trace:
    """The run of no steps."""
    return Trace(design, atomicity, network, machine.model.instance, None, (Step(named(machine, machine.initial())),))


def to_play(design: str, atomicity: Atomicity, network: Network, instance: Instance) -> tuple[Machine, page.Page]:
    machine = Machine.of(DESIGNS[design], atomicity, network, instance)
    return machine, page.of_design(machine, empty(machine, design, atomicity, network))


class Probe(HTMLParser):
    """The text of the element that a test's script has written to."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.text, self.inside = "", False
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = ("id", "probe") in attrs

    def handle_data(self, data: str) -> None:
        self.text += data if self.inside else ""


def asked(path: Path, made: page.Page, script: str, *flags: str, fragment: str = "", width: int | None = None) -> Any:
    """What a script answers inside the page, which must write nothing to the console and ask for nothing.

    With ``width``, in pixels, the page is in a frame, since a headless window is never narrower than 500.
    """
    answer = f"parent.document.getElementById('probe').textContent = JSON.stringify((() => {{{script}}})())"
    probe = "<pre id='probe' hidden></pre>"
    end = f"{'' if width else probe}<script>{answer}</script></body>"
    document = made.html("kvlatch explore").replace("</body>", end)
    if width:
        style = f"width: {width}px; height: 1000px; border: 0"
        schemes = "<meta charset='utf-8'><meta name='color-scheme' content='light dark'>"
        document = f'<!doctype html>{schemes}{probe}<iframe style="{style}" srcdoc="{html.escape(document)}"></iframe>'
    path.write_text(document, encoding="utf-8")
    seen = visit(path, *flags, fragment=fragment)
    assert seen.console == []
    assert seen.asked == []
    return json.loads(Probe(seen.document).text)


# --- The evaluator ----------------------------------------------------------------------------------------------------


def reachable(machine: Machine) -> dict[str, list[object]]:
    """By state: the numbers of the enabled actions, the states they lead to, the properties that are broken."""
    first = machine.initial()
    found: dict[str, list[object]] = {}
    queue = deque([first])
    numbers = {action: number for number, action in enumerate(machine.model.actions)}
    while queue:
        state = queue.popleft()
        if (name := key(state.values())) in found:
            continue
        enabled = machine.enabled(state)
        after = [machine.step(state, action) for action in enabled]
        broken = [prop.name for prop in PROPERTIES if machine.broken(prop, state)]
        found[name] = [[numbers[action] for action in enabled], [key(one.values()) for one in after], broken]
        queue.extend(after)
    return found


def key(state: Any) -> str:
    return ",".join(map(str, state))


@needs_browser
@pytest.mark.parametrize(
    ("design", "atomicity", "network", "instance"),
    [
        ("seed-control", "locked", "orderly", Instance(1, 1, 1)),
        ("latch", "cas", "orderly", Instance(1, 1, 1)),
        ("sglang-0.5.23", "split", "orderly", Instance(1, 1, 1)),
        ("latch", "locked", "late", Instance(1, 1, 2)),
    ],
)
def test_the_page_runs_the_spec(
    tmp_path: Path, design: str, atomicity: Atomicity, network: Network, instance: Instance
) -> None:
    """In every reachable state the page has the spec's enabled steps, their results, and the broken properties."""
    machine, made = to_play(design, atomicity, network, instance)
    script = """
      const found = machine.reach(1e6).found;
      return Object.fromEntries([...found].map(([name, {state, next}]) =>
        [name, [machine.enabled(state), next, machine.broken(state).map((one) => one.name)]]));
    """
    expected = reachable(machine)
    assert len(expected) > 200
    assert asked(tmp_path / "page.html", made, script) == expected


def test_the_comparison_would_notice() -> None:
    """Two designs differ in what can be reached: the states alone tell them apart."""
    seed, latch = (to_play(name, "locked", "orderly", Instance(1, 1, 1))[0] for name in ("seed-control", "latch"))
    assert reachable(seed) != reachable(latch)


# --- What a person sees -----------------------------------------------------------------------------------------------

LOOK = """
  if (machine) {
    $$("map-section").open = true;
    drawMap();
  }
  const box = (element) => element.getBoundingClientRect();
  const row = document.querySelector(".row.current");
  return {
    heading: $$("heading").innerText,
    sentence: $$("sentence").innerText,
    lanes: [...document.querySelectorAll("#head span")].map((one) => one.textContent),
    rows: document.querySelectorAll(".row").length,
    current: row && row.dataset.step,
    marked: row && row.classList.contains("fatal"),
    text: row && row.querySelector(".text").innerText,
    inSight: row && box(row).top >= box($$("lanes")).top && box(row).bottom <= box($$("lanes")).bottom + 1,
    arrows: document.querySelectorAll(".row .arrow").length,
    step: $$("step").innerText,
    properties: [...document.querySelectorAll("#properties .bad")].map((one) => one.dataset.property),
    changed: [...document.querySelectorAll("tr.changed td:first-child")].map((one) => one.textContent),
    map: document.querySelectorAll("#map circle").length,
    width: [document.documentElement.clientWidth, document.documentElement.scrollWidth],
    paper: getComputedStyle(document.body).backgroundColor,
  };
"""


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280, 2000])
def test_the_incident_as_a_page(tmp_path: Path, width: int, dark: bool) -> None:
    """It opens at the step to blame, which is marked, explained and in sight; nothing sticks out at the side."""
    made = page.of_trace(read(SEED))
    seen = asked(tmp_path / "page.html", made, LOOK, *([DARK] if dark else []), width=width)
    assert seen["heading"].startswith("seed-control, locked, orderly network")
    assert "worker 0 wrote Transferring over Failed" in seen["sentence"]
    assert seen["lanes"] == ["#", "decode", "scheduler", "bootstrap", "worker 0", "table", "what happens"]
    assert (seen["rows"], seen["current"], seen["marked"], seen["inSight"]) == (12, "11", True, True)
    assert seen["text"] == "write_t: Failed → Transferring"
    assert "The decisive step" in seen["step"]
    assert seen["arrows"] == 6  # four writes of the status, two messages from decode
    assert seen["properties"] == ["no-resurrection"]
    assert seen["changed"] == ["status", "worker_0"]
    assert seen["map"] > 12
    assert seen["width"][0] == seen["width"][1]
    assert seen["width"][0] == width
    light = sum(map(int, seen["paper"].removeprefix("rgb(").removesuffix(")").split(","))) > 3 * 128
    assert light is not dark


def views_of(path: Path, made: str, *, dark: bool) -> list[dict[str, Any]]:
    """What a page looks like on a phone, a laptop and a large screen, in one window; it makes no request."""
    widths = (400, 1280, 2000)
    seen = f"parent.document.getElementById('probe').append(JSON.stringify((() => {{{LOOK}}})()) + '\\n')"
    document = html.escape(made.replace("</body>", f"<script>{seen}</script></body>"))
    style = "height: 900px; border: 0"
    frames = "".join(f'<iframe style="width: {w}px; {style}" srcdoc="{document}"></iframe>' for w in widths)
    schemes = "<!doctype html><meta charset='utf-8'><meta name='color-scheme' content='light dark'>"
    path.write_text(f"{schemes}<pre id='probe' hidden></pre>{frames}", encoding="utf-8")
    visited = visit(path, *([DARK] if dark else []))
    assert (visited.console, visited.asked) == ([], [])
    views: list[dict[str, Any]] = [json.loads(line) for line in Probe(visited.document).text.splitlines()]
    assert sorted(view["width"] for view in views) == [[width, width] for width in widths]
    assert all((sum(map(int, re.findall(r"\d+", view["paper"]))) > 3 * 128) is not dark for view in views)
    return views


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_room_of_a_storm_as_a_page(tmp_path: Path, dark: bool) -> None:
    """A room that a storm on a live system left pinned, on a phone, a laptop and a large screen, in one window."""
    made = page.of_story(story(STORM, STORMED)).html("kvlatch explore")
    views = views_of(tmp_path / "storm.html", made, dark=dark)
    for view in views:
        assert view["lanes"] == ["#", "bootstrap", "scheduler", "worker 5", "table", "what happens"]
        assert (view["marked"], view["inSight"], view["rows"]) == (True, True, 6)
        assert view["text"].endswith("write Transferring over Failed")
        assert "is pinned: it ends Transferring although it had been terminal" in view["sentence"]
        assert view["changed"] == ["entry"]


@needs_browser
@pytest.mark.network
def test_a_finding_on_published_code_as_a_page(tmp_path: Path) -> None:
    """What conform has found on sglang 0.5.23, from its trace: a lane for each real thread, the last move to blame."""
    command = [sys.executable, "-m", "kvlatch", "conform", "sglang==0.5.23", "--only", "no-crash/metadata"]
    done = subprocess.run(
        [*command, "--seconds", "0", "--traces", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    made = page.of_finding(read(tmp_path / "no-crash.metadata.itf.json")).html("kvlatch explore")
    for dark in (False, True):
        for view in views_of(tmp_path / "finding.html", made, dark=dark):
            assert view["heading"] == "sglang==0.5.23: 5 moves"
            assert view["sentence"].startswith("no-crash is broken")
            assert {"scheduler", "bootstrap", "table"} <= set(view["lanes"])
            assert (view["rows"], view["current"], view["marked"], view["inSight"]) == (5, "5", True, True)
            assert {"error", "dead"} <= set(view["changed"])


@needs_browser
def test_a_link_names_a_step_and_what_was_played(tmp_path: Path) -> None:
    made = page.of_trace(read(SEED))
    seen = asked(tmp_path / "page.html", made, "return [at, actions.length]", fragment="#step=3")
    assert seen == [3, 12]
    script = "go(3); play(machine.enabled(states[3])[0]); return [address(), actions]"
    address, actions = asked(tmp_path / "page.html", made, script)
    again = asked(tmp_path / "page.html", made, "return [at, actions]", fragment=address)
    assert again == [4, actions]
    impossible = asked(tmp_path / "page.html", made, "return actions.length", fragment="#step=9&keep=0&play=999.1")
    assert impossible == 0


@needs_browser
def test_buttons_and_keys(tmp_path: Path) -> None:
    """Back, forth, jump, undo and reset by what a hand reaches; a played step lights up what it breaks."""
    script = """
      const press = (name) => dispatchEvent(new KeyboardEvent("keydown", {key: name}));
      const trail = [at];
      for (const name of ["ArrowLeft", "Home", "ArrowRight", "End", "f"]) { press(name); trail.push(at); }
      $$("jump").value = "4"; $$("jump").dispatchEvent(new Event("change")); trail.push(at);
      $$("back").click(); trail.push(at);
      document.querySelector("#next button").click(); trail.push(at, actions.length);
      press("u"); trail.push(actions.length);
      press("r"); trail.push(actions.length);
      press("End"); trail.push(document.querySelectorAll("#properties .bad").length);
      return trail;
    """
    seen = asked(tmp_path / "page.html", page.of_trace(read(SEED)), script)
    assert seen[:8] == [11, 10, 0, 1, 12, 11, 4, 3]
    assert seen[8:] == [4, 4, 3, 12, 2]


@needs_browser
def test_a_design_beside_another(tmp_path: Path) -> None:
    """The counts of states that only one of them reaches are those of the spec."""
    seed, _ = to_play("seed-control", "locked", "orderly", Instance(1, 1, 1))
    latch, _ = to_play("latch", "locked", "orderly", Instance(1, 1, 1))
    made = page.of_design(seed, empty(seed, "seed-control", "locked", "orderly"), latch)
    here, there = reachable(seed), reachable(latch)
    seen = asked(tmp_path / "page.html", made, "return [$$('against-says').textContent, $$('map-says').textContent]")
    only = (len(here.keys() - there.keys()), len(there.keys() - here.keys()))
    assert min(only) > 0
    assert seen[0].startswith(f"{only[0]:,} states can be reached here and not in latch")
    assert f"{only[1]:,} there and not here." in seen[0]
    bad = sum(bool(broken) for _, _, broken in here.values())
    assert seen[1].startswith(f"{len(here):,} reachable states, {bad:,} of them bad")


@needs_browser
def test_ten_thousand_steps_keep_the_document_small(tmp_path: Path) -> None:
    lines = tuple(Line(n, f"worker {n % 3}", "polls", "Transferring", "", "reads the table") for n in range(1, 10_001))
    made = page.of_story(Story("a long log", lines, 9_000, "It hangs."))
    script = "return [document.querySelectorAll('.row').length, at, document.querySelector('.current').dataset.step]"
    rows, at, current = asked(tmp_path / "page.html", made, script)
    assert rows < 500
    assert (at, current) == (9_000, "9000")
    assert (tmp_path / "page.html").stat().st_size < 2_000_000


# --- Playing, and saving what was played ------------------------------------------------------------------------------

PLAYS = """
  let seed = 7;
  const draw = (most) => Math.floor((seed = (seed * 48271) % 2147483647) / 65536) % most;
  const saved = [];
  for (let run = 0; run < 20; run++) {
    actions = []; execute(); go(0);
    const steps = 6 + draw(25);
    for (let step = 0; step < steps; step++) {
      const enabled = machine.enabled(states[at]);
      if (!enabled.length) break;
      play(enabled[draw(enabled.length)]);
    }
    saved.push(trace());
  }
  return saved;
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    _, made = to_play("latch", "locked", "disorderly", Instance(2, 2, 1))
    found: list[str] = asked(tmp_path_factory.mktemp("play") / "page.html", made, PLAYS)
    return found


@needs_browser
def test_what_was_played_is_a_trace(saved: list[str], tmp_path: Path) -> None:
    """Twenty random plays: the spec allows each, step by step; the command takes one."""
    assert len(set(saved)) == 20
    for number, text in enumerate(saved):
        path = tmp_path / f"{number}.itf.json"
        path.write_text(text)
        assert len(verify(read(path)).actions) >= 5
    command = [sys.executable, "-m", "kvlatch", "replay", str(tmp_path / "0.itf.json")]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0


def forged(text: str) -> Iterator[str]:
    """Ten forgeries of one trace: a step left out, a state changed, a name that nothing has, and so on."""
    document = json.loads(text)
    for number in (1, 2, 3, 4):
        changed = json.loads(text)
        del changed["states"][number]
        yield json.dumps(changed)
    for name, label in (("status", "Success"), ("phase", "done"), ("wire", "Failed")):
        changed = json.loads(text)
        changed["states"][2][name] = label
        yield json.dumps(changed)
    yield json.dumps(document | {"#meta": document["#meta"] | {"design": "nobody's"}})
    yield json.dumps(document | {"#meta": document["#meta"] | {"property": "terminal-sticky"}})
    changed = json.loads(text)
    changed["states"][1]["mbt::actionTaken"] = "conjure"
    yield json.dumps(changed)


@needs_browser
def test_forgeries_are_refused(saved: list[str], tmp_path: Path) -> None:
    count = 0
    for text in forged(saved[0]):
        path = tmp_path / "forged.itf.json"
        path.write_text(text)
        with pytest.raises(TraceError):
            verify(read(path))
        count += 1
    assert count == 10


# --- The command ------------------------------------------------------------------------------------------------------


def explore(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvlatch", "explore", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@needs_browser
def test_a_room_of_a_log(tmp_path: Path) -> None:
    """A log has no machine behind it: its lanes are shown, and nothing can be played."""
    output = tmp_path / "room.html"
    done = explore(str(LOG), "--room", ROOM, "--output", str(output))
    assert (done.returncode, done.stderr) == (0, "")
    seen = visit(output)
    assert (seen.console, seen.asked) == ([], [])
    assert "Transferring over Failed" in seen.document
    assert 'class="still"' in seen.document


@needs_browser
def test_a_finding_of_conform(tmp_path: Path) -> None:
    """What the oracle saw, move by move; there is nothing to play, and the last move is the one to blame."""
    moves = [
        Step({"status": "Absent", "wire": "none"}),
        Step({"status": "Bootstrapping", "wire": "none"}, "create", {}, "scheduler"),
        Step({"status": "Failed", "wire": "Failed"}, "abort", {}, "scheduler"),
        Step({"status": "Transferring", "wire": "Failed"}, "goes_on", {}, "worker 0"),
    ]
    held = "threads orderly-1-1-1"
    trace = Trace("mine:Manager", held, "orderly", Instance(1, 1, 1), "terminal-sticky", tuple(moves))
    path = tmp_path / "finding.itf.json"
    write(trace, path)
    done = explore(str(path), "--output", str(tmp_path / "finding.html"))
    assert (done.returncode, done.stderr) == (0, "")
    seen = asked(tmp_path / "page.html", page.of_finding(read(path)), LOOK)
    assert (seen["current"], seen["marked"], seen["text"]) == ("3", True, "goes on: Failed → Transferring")
    assert seen["changed"] == ["status"]
    assert seen["arrows"] == 4  # three writes, and decode is told
    assert seen["sentence"].startswith("terminal-sticky is broken")


def test_a_cell_of_the_matrix(tmp_path: Path) -> None:
    output = tmp_path / "cell.html"
    done = explore("seed-control", "--property", "no-pin", "--against", "latch", "--output", str(output))
    assert (done.returncode, done.stdout) == (0, f"{output}: seed-control no-pin\n")
    addresses = set(re.findall(r"https?://[^\"]*", output.read_text()))
    assert addresses == {"https://apalache-mc.org/docs/adr/015adr-trace.html", "http://www.w3.org/2000/svg"}  # names


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nonsense"], "no design is called 'nonsense'"),
        (["latch", "--room", "3"], "--room has no effect"),
        (["latch", "--property", "no-pin"], "latch locked keeps no-pin"),
        (["latch", "--property", "pin"], "is called 'pin'"),
        (["latch", "--against", "batch"], "no design is called 'batch'"),
        (["none.itf.json"], "none.itf.json: No such file or directory"),
        (["README.md"], "README.md is neither a trace"),
        ([str(LOG.relative_to(ROOT))], "name a room with --room ID"),
        ([str(LOG.relative_to(ROOT)), "--room", "5"], "room 5"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], line: str) -> None:
    done = explore(*arguments, "--output", str(tmp_path / "page.html"))
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "page.html").exists()
