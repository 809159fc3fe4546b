"""``kvlatch atlas``: the atlas of merges, for human eyes and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
from rich import box
from rich.columns import Columns
from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from kvlatch.commands.common import console, json_option, put
from kvlatch.commands.exits import OK
from kvlatch.proofs import atlas as atlases
from kvlatch.proofs.atlas import Atlas, Clash, Renumberings, letter, orders_text
from kvlatch.proofs.merge_laws import CLEARS, PROFILES, SHARED, STATUSES, Cells


@click.command()
@json_option()
def atlas(as_json: bool) -> int:
    """Count the merges: which tables obey which laws, and why no renumbering of the statuses is a fix."""
    counted = atlases.atlas()
    if as_json:
        click.echo(json.dumps(atlases.as_json(counted)))
    else:
        put(console(), *report(counted))
    return OK


def report(atlas: Atlas) -> Iterator[RenderableType]:
    """The atlas, to be printed with ``rich``, one piece after the other."""
    yield Text("The one table that obeys all laws, for each profile: what was there <- what is written", "bold")
    yield Columns([grid(atlas.full[profile, "absent"].table, profile) for profile in PROFILES], padding=(1, 4))
    yield Text("The laws: how many tables obey without one of them, and how many mutants it alone notices", "bold")
    yield _laws(atlas)
    yield from (Text(sentence) for sentence in _counts(atlas))
    yield Text("Of 120 numberings of the statuses", "bold")
    yield _renumbered(atlas.renumberings)
    yield Text(Renumberings.reason)
    yield Text("A commutative merge in which Failed and Success are final", "bold")
    answer = "Z3: there is none among all 5 x 5 tables" if atlas.commutative.impossible else "Z3 has not excluded it"
    yield Text(f"{answer}. {Clash.reason}")
    yield Text("The smallest change that makes a rule obey", "bold")
    yield _rules(atlas)


def grid(table: Cells, title: str) -> Grid:
    """A table of 6 x 5 cells, in letters; A is no entry."""
    output = _grid("", *map(letter, STATUSES), title=title)
    for old in (*STATUSES, None):
        output.add_row(letter(old), *(letter(table[old, new]) for new in STATUSES))
    return output


def _grid(*headings: str, title: str | None = None) -> Grid:
    return Grid(*headings, title=title, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def _laws(atlas: Atlas) -> Grid:
    output = _grid("law", "says", "without", "alone")
    first, second = (atlas.full[profile, "absent"] for profile in PROFILES)
    laws = {law: one for one in (second, first) for law in one.laws}
    for law in (*SHARED, *PROFILES.values(), *CLEARS["absent"]):
        one = laws[law]
        output.add_row(law.name, law.says, f"{one.without[law.name]:,}", str(one.alone[law.name]))
    return output


def _counts(atlas: Atlas) -> Iterator[str]:
    """What was counted, in sentences."""
    for profile, one in atlas.profiles.items():
        unasked = ", ".join(name for name, held in atlas.algebra[profile].items() if held)
        yield f"{profile}: {one.tables} of {one.universe} tables of 5 x 5 obeys; unasked, it is {unasked}."
    for (profile, clear), one in atlas.full.items():
        broken = len(one.mutants) - len(one.survivors)
        yield (
            f"{profile}, clear leaves {clear}: {one.tables} of {one.universe} tables of 6 x 5 obeys; {broken} of "
            f"{len(one.mutants)} mutants break a law; {', '.join(one.redundant) or 'no law'} is redundant."
        )


def _renumbered(counts: Renumberings) -> Grid:
    output = _grid("what holds", "in", "which")
    for law, number in counts.laws.items():
        output.add_row(f"max over time: {law}", str(number))
    output.add_row("max over time: Failed and Success are final", str(counts.both_sticky))
    right = {
        **{f"max over time: every law of {profile}": orders for profile, orders in counts.over_time.items()},
        "MIN over ranks: Failed wins, else the slowest rank": counts.over_ranks,
        "both, max for either profile": counts.both,
        "both, with minimum or maximum in either place": counts.turned,
    }
    for what, orders in right.items():
        output.add_row(what, str(len(orders)), ", ".join(orders_text(orders)))
    return output


def _rules(atlas: Atlas) -> Grid:
    output = _grid("rule", *PROFILES, *(f"no entry, {clear}" for clear in CLEARS))
    for rule in atlas.rules:
        output.add_row(rule.name, *("\n".join(map(str, changes)) or "-" for changes in rule.changes.values()))
        output.add_section()
    return output
