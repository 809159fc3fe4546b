"""Directives for what the code knows best, computed whenever a page is built: commands, laws, designs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

import click
from diagrams import Change, changes, moving, picture, recommended, svg
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from kvlatch.commands.main import cli
from kvlatch.proofs.pins import pinned
from kvlatch.reference.laws import LAWS
from kvlatch.reference.published.sglang.scenarios import SCENARIOS
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.merges import KEEP, table
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.protocols import PROTOCOLS
from kvlatch.spec.schema import Protocol
from kvlatch.spec.status import KVPoll

ROOT = Path(__file__).parents[1]
COLUMNS = 96
"""Of a command's help."""
EXPLORED = {
    "incident": ("explore", "proofs/traces/seed-control.terminal-sticky.itf.json", "--output"),
    "room": ("explore", "tests/logs/seed.ndjson", "--room", "771203388710254007", "--output"),
    "latch": ("explore", "latch", "--against", "seed-control", "--output"),
    "log": ("check", "tests/logs/seed.ndjson", "--html"),
}
"""The pages that the site shows, each with the command that writes it, up to the name of the file."""


class Commands(SphinxDirective):
    """A section for each command, with what its ``--help`` prints."""

    def run(self) -> list[nodes.Node]:
        return [section(name, help_page(name, command)) for name, command in commands("kvlatch", cli)]


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and all below it, as they are typed."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for below in command.list_commands(context):
            if (found := command.get_command(context, below)) is not None:
                yield from commands(f"{name} {below}", found)


def help_page(name: str, command: click.Command) -> nodes.literal_block:
    """What ``NAME --help`` prints."""
    context = click.Context(
        command, info_name=name, terminal_width=COLUMNS, max_content_width=COLUMNS, help_option_names=["-h", "--help"]
    )
    text = command.get_help(context)
    return nodes.literal_block(text, text, language="text")


class Laws(SphinxDirective):
    """A section for each law: its sentence, its kind, what the proofs say of it, public reports."""

    def run(self) -> list[nodes.Node]:
        return [section(name, paragraph(says), facts(about(name))) for name, says in LAWS.items()]


def about(law: str) -> Iterator[tuple[str, str]]:
    """What there is to say of a law, with a word for each."""
    if law not in BY_NAME:
        yield "Kind", "said of a run of somebody's code; it has no formula over the spec's state"
        return
    prop = BY_NAME[law]
    yield "Kind", prop.kind
    if prop.profile != "both":
        yield "Profile", f"judged only under {prop.profile!r}"
    words = {design: list(dict.fromkeys(found)) for design, found in verdicts(law).items()}
    yield "Proved for", ", ".join(design for design, found in words.items() if found == ["holds"]) or "no design"
    lengths = {design: "/".join(word for word in found if word != "holds") for design, found in words.items()}
    yield "Broken in", ", ".join(f"{design} ({found} steps)" for design, found in lengths.items() if found) or "none"
    if prop.reports:
        yield "Reports", ", ".join(prop.reports)


def verdicts(law: str) -> dict[str, list[str]]:
    """The pinned words for each design and atomicity, by the number of workers."""
    cells = [(f"{design} {atomicity}", word) for (design, atomicity, _, prop), word in pinned().items() if prop == law]
    return {design: [word for _, word in found] for design, found in groupby(cells, key=lambda cell: cell[0])}


class Designs(SphinxDirective):
    """A table of the designs."""

    def run(self) -> list[nodes.Node]:
        rows = [(name, ", ".join(design.atomicities), design.says) for name, design in DESIGNS.items()]
        return [grid(("design", "atomicities", "what it is"), rows, (22, 15, 63))]


class Merge(SphinxDirective):
    """The table of one merge: ``{merge} latch``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        names = (*(status.name for status in KVPoll), "Absent")
        heads = ("entry", *(f"write {status.name}" for status in KVPoll))
        rows = table(DESIGNS[self.arguments[0]].merge)
        lines = [
            (name, *("unchanged" if to == KEEP else KVPoll(to).name for to in row))
            for name, row in zip(names, rows, strict=True)
        ]
        return [grid(heads, lines, (16,) * 6)]


class Scenarios(SphinxDirective):
    """A table of the scenarios of published SGLang managers."""

    def run(self) -> list[nodes.Node]:
        rows = [(scenario.full_name, scenario.says) for scenario in SCENARIOS]
        return [grid(("scenario", "what happens in it"), rows, (35, 65))]


class States(SphinxDirective):
    """The state diagram of a design, and the rows behind each change: ``{states} latch locked``."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        design, atomicity = self.arguments
        if atomicity not in DESIGNS[design].atomicities:
            raise self.error(f"{design} has no atomicity {atomicity}: {', '.join(DESIGNS[design].atomicities)}")
        found = changes(design, atomicity)
        rows = [
            (change.before, change.after, ", ".join(f"{actor}: {row}" for actor, row in change.rows), harm(change))
            for change in found
        ]
        picture = nodes.raw("", svg(design, atomicity, found), format="html")
        return [picture, grid(("from", "to", "rows", ""), rows, (18, 18, 54, 10))]


class Protocols(SphinxDirective):
    """A section for each protocol: what it is about, and a diagram of each actor and each field of its state."""

    def run(self) -> list[nodes.Node]:
        return [section(name, *self.about(protocol)) for name, protocol in PROTOCOLS.items()]

    def about(self, protocol: Protocol) -> Iterator[nodes.Node]:
        """Its sentence, and its diagrams."""
        design = recommended(protocol)
        yield paragraph(f"{protocol.says} The design is {design.name}, {design.atomicities[0]}.")
        drawn = "".join(picture(protocol, one) for one in moving(protocol, design))
        yield nodes.raw("", f'<div class="moving">{drawn}</div>', format="html")


def harm(change: Change) -> str:
    """A change's last column."""
    return "harmful" if change.harmful else ""


class Explore(SphinxDirective):
    """One of the pages above, live, with the command that writes it: ``{explore} latch``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        command = f"kvlatch {' '.join(EXPLORED[name])} {name}.html"
        frame = f'<iframe class="explore" src="explored/{name}.html" title="{escape(command)}"></iframe>'
        link = f'<p><a href="explored/{name}.html">The page by itself</a></p>'
        shown = nodes.literal_block(command, command, language="sh")
        return [shown, nodes.raw("", frame + link, format="html")]


def write_explored(app: Sphinx, failure: Exception | None) -> None:
    """Write these pages into the site, once it is built."""
    if failure is not None:
        return
    folder = Path(app.outdir, "explored")
    folder.mkdir(exist_ok=True)
    for name, arguments in EXPLORED.items():
        command = [sys.executable, "-m", "kvlatch", *arguments, f"{folder / name}.html"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        if done.returncode not in (0, 1):  # 1: what is shown breaks a law
            raise ExtensionError(f"{' '.join(command)} exits with {done.returncode}")


# --- Pieces of a page -------------------------------------------------------------------------------------------------


def section(name: str, *content: nodes.Node) -> nodes.section:
    """A section whose title is code."""
    found = nodes.section("", nodes.title(name, "", nodes.literal(name, name)), ids=[nodes.make_id(name)], names=[name])
    found += content
    return found


def paragraph(text: str) -> nodes.paragraph:
    """One paragraph of plain text."""
    return nodes.paragraph(text, text)


def facts(pairs: Iterable[tuple[str, str]]) -> nodes.field_list:
    """A list of what something is."""
    found = nodes.field_list()
    for name, text in pairs:
        found += nodes.field("", nodes.field_name(name, name), nodes.field_body("", paragraph(text)))
    return found


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int]) -> nodes.table:
    """A table of plain text."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in widths), cols=len(heads))
    group += nodes.thead("", line(heads))
    group += nodes.tbody("", *map(line, rows))
    return nodes.table("", group)


def line(cells: Iterable[str]) -> nodes.row:
    """A row of a table."""
    return nodes.row("", *(nodes.entry("", paragraph(cell)) for cell in cells))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make the directives known."""
    for directive in (Commands, Laws, Designs, Merge, Scenarios, States, Protocols, Explore):
        app.add_directive(directive.__name__.lower(), directive)
    app.connect("build-finished", write_explored)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
