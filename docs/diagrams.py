"""State diagrams of a design, computed by taking every step that the rows allow, and drawn as SVG.

Of the status table in detail; and, of any protocol, of each field that moves: the places of its actors, and its state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

import attrs
import numpy as np

from kvlatch.proofs.columns import Columns
from kvlatch.proofs.pins import HOLDS, NARROW, pinned
from kvlatch.proofs.search import explore
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.protocol import status
from kvlatch.spec.schema import AnyDesign, Atomicity, Protocol
from kvlatch.spec.status import ABSENT, TERMINAL, TOMBSTONE, KVPoll
from kvlatch.spec.steps import Action
from kvlatch.spec.terms import Field, assign, evaluate

INSTANCE: Final = Instance(workers=1, chunks=2, requests=1)
"""The gentlest world: what goes wrong here needs no lost message and no second request."""
ENDS: Final = frozenset(status.name for status in TERMINAL)
GONE: Final = frozenset({ABSENT, TOMBSTONE})
_FEWEST: Final = 3
"""Changes of a field that are worth a picture."""
ROUND: Final = (ABSENT, *(KVPoll(number).name for number in (1, 2, 3, 4, 0)), TOMBSTONE)
"""The order of the statuses on the circle, clockwise from the left."""


@attrs.frozen
class Change:
    """One change of a field, and the rows that make it: pairs of an actor and a row's name."""

    before: str
    after: str
    rows: tuple[tuple[str, str], ...]
    status: bool = True
    """Whether it is the status table's; harm is done to nothing else."""

    @property
    def harmful(self) -> bool:
        """A terminal status is overwritten, or an entry comes back after its room was cleared."""
        if not self.status:
            return False
        overwritten = self.before in ENDS and self.after not in GONE
        return overwritten or (self.before in GONE and any(row != "create" for _, row in self.rows))


def changes(design: str, atomicity: Atomicity) -> tuple[Change, ...]:
    """Every change of the entry that some run makes, in the order of the circle."""
    machine = Machine.of(DESIGNS[design], atomicity, "orderly", INSTANCE)
    return _in_order(moves(machine)[status], ROUND)


Moves = dict[tuple[str, str], set[tuple[str, str]]]
"""The rows that make each change from one label to another."""


def moves(machine: Machine) -> dict[Field, Moves]:
    """Every change of every field that some run makes, of whichever element of its sort."""
    found: dict[Field, Moves] = {}
    search = explore(machine, ())
    for level in search.levels:
        for _, states in Columns.blocks(search.layout, level.packed):
            for action in machine.model.actions:
                rows = np.flatnonzero(evaluate(action.guard, states))
                if len(rows):
                    _add(found, action, states.pick(rows))
    return found


def _add(found: dict[Field, Moves], action: Action, states: Columns) -> None:
    """What an action changes in some states, in all of which it is enabled."""
    for var, term in action.updates:
        pairs = states.read(var).astype(np.uint16) << 8 | assign(var, term, states)
        for before, after in {divmod(int(pair), 256) for pair in np.unique(pairs)}:
            if before != after:
                change = var.labels[before], var.labels[after]
                found.setdefault(var.field, {}).setdefault(change, set()).add((action.rule.actor, action.rule.name))


def _in_order(found: Moves, labels: Sequence[str]) -> tuple[Change, ...]:
    order = sorted(found, key=lambda change: tuple(map(labels.index, change)))
    return tuple(Change(*change, tuple(sorted(found[change]))) for change in order)


@attrs.frozen
class Moving:
    """One field that moves; ``actor`` is the one whose place it is, empty if it is a part of the state."""

    field: Field
    actor: str
    changes: tuple[Change, ...]


def recommended(protocol: Protocol) -> AnyDesign:
    """The design of a protocol of which every property is proved."""
    proved = {HOLDS, NARROW}
    words = {name: {word for (of, *_), word in pinned().items() if of == name} for name in protocol.designs}
    return next(protocol.designs[name] for name, found in words.items() if found and found <= proved)


def moving(protocol: Protocol, design: AnyDesign) -> tuple[Moving, ...]:
    """The actors of a protocol and the fields of its state that have at least three changes, in its own order."""
    sizes = INSTANCE if protocol.entry else protocol.worlds[0].instance(protocol.counts[0])
    found = moves(Machine.of(design, design.atomicities[0], "orderly", sizes, protocol))
    places = {thread.pc: actor for actor, thread in protocol.threads.items()}
    return tuple(
        Moving(field, places.get(field, ""), _in_order(found[field], field.labels))
        for field in dict.fromkeys([*places, *protocol.state])
        if field in found and (field in places or len(found[field]) >= _FEWEST)
    )


# --- Drawing ----------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 720, 500
_BOX: Final = 128, 34
"""Width and height of a status."""
_STYLE: Final = """
.states text { font: 14px sans-serif; fill: currentColor; text-anchor: middle; dominant-baseline: central; }
.states rect { fill: none; stroke: currentColor; stroke-width: 1.2; }
.states path { fill: none; stroke: currentColor; stroke-width: 1.2; }
.states .harm path { stroke: #d03030; stroke-width: 2.4; stroke-dasharray: 7 4; }
.states .harm text { fill: #d03030; font-weight: bold; }
.states .letters { font-size: 13px; paint-order: stroke; stroke-width: 5; }
.states .letters { stroke: var(--color-background-primary, white); }
"""
_HEAD: Final = (
    '<marker id="{0}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="{1}" markerHeight="{1}" orient="auto">'
)
_TIP: Final = '<path d="M0,0 L10,5 L0,10 z" style="fill: {0}; stroke: none"/></marker>'


def svg(design: str, atomicity: Atomicity, found: Sequence[Change]) -> str:
    """The diagram as a figure of a page."""
    harm = sum(change.harmful for change in found)
    says = f"Status changes of {design}, {atomicity}: {len(found)}, of which {harm} are harmful."
    return _figure("states", f"{design}-{atomicity}", says, ROUND, found)


def picture(protocol: Protocol, moving: Moving) -> str:
    """The diagram of one field of a protocol as a figure of a page, with its name below."""
    of = f"where the {moving.actor} is" if moving.actor else f"the state {moving.field.name}"
    says = f"{protocol.name}, {of}: {len(moving.changes)} changes"
    name = f"{protocol.name}-{moving.field.name}"
    harmless = [attrs.evolve(change, status=False) for change in moving.changes]
    drawn = _figure("states moving", name, says, moving.field.labels, harmless)
    return drawn.replace("</figure>", f"<figcaption>{escape(of[0].upper() + of[1:])}</figcaption></figure>")


def _figure(kind: str, name: str, says: str, labels: Sequence[str], found: Sequence[Change]) -> str:
    name = re.sub(r"[^\w-]", "-", name)
    heads = ("", "currentColor", 9), ("-harm", "#d03030", 7)
    tips = "".join(_HEAD.format(name + suffix, size) + _TIP.format(color) for suffix, color, size in heads)
    names = [label for label in labels if any(label in (change.before, change.after) for change in found)]
    scale = max(1.0, len(names) / 8)
    places = dict(zip(names, circle(len(names), scale), strict=True))
    inner = [*(arrow(change, places, name) for change in found), *(box(label, places[label]) for label in names)]
    return (
        f'<figure class="{kind}"><svg viewBox="0 0 {WIDTH * scale:.0f} {HEIGHT * scale:.0f}" role="img" '
        f'aria-label="{escape(says)}">'
        f"<style>{_STYLE}</style><defs>{tips}</defs>{''.join(inner)}</svg></figure>"
    )


def circle(count: int, scale: float) -> Iterator[tuple[float, float]]:
    """Places on an ellipse, clockwise from the left."""
    width, height = WIDTH * scale, HEIGHT * scale
    for number in range(count):
        angle = math.pi + 2 * math.pi * number / count
        yield width / 2 + (width / 2 - 80) * math.cos(angle), height / 2 + (height / 2 - 30) * math.sin(angle)


def box(label: str, place: tuple[float, float]) -> str:
    """A status; a terminal one has a double border."""
    (x, y), (width, height) = place, _BOX
    frames = (0, 4) if label in ENDS else (0,)
    drawn = "".join(
        f'<rect x="{x - width / 2 + inset:.1f}" y="{y - height / 2 + inset:.1f}" rx="5" '
        f'width="{width - 2 * inset}" height="{height - 2 * inset}"/>'
        for inset in frames
    )
    return f'<g class="status">{drawn}<text x="{x:.1f}" y="{y:.1f}">{label}</text></g>'


def arrow(change: Change, places: dict[str, tuple[float, float]], name: str) -> str:
    """A change as an arrow that bends to its left, so that there and back are two; its letters are the actors'."""
    (x1, y1), (x2, y2) = places[change.before], places[change.after]
    bend = 0.16
    middle = (x1 + x2) / 2 + bend * (y2 - y1), (y1 + y2) / 2 - bend * (x2 - x1)
    (x1, y1), (x2, y2) = border((x1, y1), middle), border((x2, y2), middle)
    x, y = (curve(0.4, *way) for way in zip((x1, y1), middle, (x2, y2), strict=True))
    letters = " ".join(sorted({actor[0] for actor, _ in change.rows}))
    kind = "harm" if change.harmful else "change"
    suffix = "-harm" if change.harmful else ""
    rows = ", ".join(f"{actor}: {row}" for actor, row in change.rows)
    return (
        f'<g class="{kind}" data-change="{change.before}; {change.after}"><title>{rows}</title>'
        f'<path d="M{x1:.1f},{y1:.1f} Q{middle[0]:.1f},{middle[1]:.1f} {x2:.1f},{y2:.1f}" '
        f'marker-end="url(#{name}{suffix})"/><text class="letters" x="{x:.1f}" y="{y:.1f}">{letters}</text></g>'
    )


def curve(part: float, begin: float, middle: float, end: float) -> float:
    """One coordinate of a quadratic Bézier curve, after this part of the way."""
    return (1 - part) ** 2 * begin + 2 * part * (1 - part) * middle + part**2 * end


def border(place: tuple[float, float], towards: tuple[float, float]) -> tuple[float, float]:
    """Where the line from the middle of a box to a point leaves the box."""
    (x, y), (dx, dy) = place, (towards[0] - place[0], towards[1] - place[1])
    width, height = _BOX
    scale = min(width / 2 / abs(dx) if dx else math.inf, height / 2 / abs(dy) if dy else math.inf)
    return x + dx * scale, y + dy * scale
