"""A user's own design, read in a process of its own: a design is data, its merge is a table of 30 cells."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs

from kvlatch.reference import user_rows
from kvlatch.reference.faults import Refused
from kvlatch.reference.foreign.child import Work, loaded
from kvlatch.reference.foreign.process import Child, Ended, Raised
from kvlatch.reference.oracle.merge_table import as_merge
from kvlatch.spec.designs import Design
from kvlatch.spec.merges import KEEP, Table, table
from kvlatch.spec.model import Machine
from kvlatch.spec.protocols import PROTOCOLS, protocol_of
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import AnyDesign, Choice
from kvlatch.spec.status import KVPoll
from kvlatch.spec.steps import between_steps

_NO_TEXT: Final = ("merge", "atomicities", "rows", "without", "lemmas", "without_lemmas")
_PLAIN: Final = tuple(field.name for field in attrs.fields(Design) if field.name not in _NO_TEXT)


def user_design(name: str) -> AnyDesign:
    """The design that ``MODULE:NAME`` is, importable from here; Refused with a line if it is none.

    What was found once is not looked for again.
    """
    return _read(name, Path.cwd())[0]


def place(name: str) -> tuple[str | None, int | None]:
    """File and line of the merge of that design, as far as it has one of its own; errors as in ``user_design``."""
    return _read(name, Path.cwd())[1]


@cache
def _read(name: str, _in: Path) -> tuple[AnyDesign, tuple[str | None, int | None]]:
    with Child(__name__, "child_reads", {"name": name}) as child:
        try:
            found = child.answer()
        except (Ended, Raised) as end:
            raise Refused(f"{name}: {end}", 2) from end
    protocol = PROTOCOLS[found.get("protocol", ROOM.name)]
    common: dict[str, Any] = {each: tuple(found.pop(each)) for each in ("atomicities", "without", "without_lemmas")}
    common["rows"], common["lemmas"] = user_rows.loaded(found.pop("rows"), found.pop("lemmas"), protocol)
    where: tuple[str | None, int | None] = tuple(found.pop("place", (None, None)))
    if "protocol" in found:
        first: Any = next(iter(protocol.designs.values()))
        design: AnyDesign = Choice(**found, **common, switches=first.switches)
    else:
        rows: Table = tuple(tuple(KEEP if one == KEEP else KVPoll[one] for one in row) for row in found.pop("merge"))
        design = Design(**found, **common, merge=as_merge(rows))
    _runs(name, design)
    return design, where


def _runs(name: str, design: AnyDesign) -> None:
    """Refused if its rows or lemmas cannot be those of its protocol."""
    try:
        protocol = protocol_of(design)
        for level in design.atomicities:
            for rule in design.rows if level != "locked" else ():
                if rule.write is not None and between_steps(rule) not in protocol.threads[rule.actor].pc.labels:
                    raise ValueError(
                        f"row {rule.name} writes, and in {level} it needs a place between reading and storing that the "
                        "protocol lacks: claim locked only, or give it the name of the row whose place it takes"
                    )
            machine = Machine.of(design, level, "orderly", protocol.worlds[0].instance(protocol.counts[0]), protocol)
            for claim in (claim for lemma in design.lemmas for claim in machine.model.instances(lemma.claim)):
                machine.holds(claim, machine.initial())
    except (TypeError, ValueError) as error:
        raise Refused(f"{name}: {error}", 2) from error


def child_reads(_work: Work, name: str) -> object:
    """In the child: the design's members, or Refused."""
    found = loaded(name)
    if type(found) is Design:
        rows = [[one if one == KEEP else KVPoll(one).name for one in row] for row in table(found.merge)]
        members = {field: getattr(found, field) for field in _PLAIN}
        code = getattr(inspect.unwrap(found.merge), "__code__", None)
        where = (None, None) if code is None else (code.co_filename, code.co_firstlineno)
        return members | {"merge": rows, "place": where} | _common(name, found)
    if type(found) is Choice:
        return _choice(name, found)
    kind = type(found).__name__
    if isinstance(found, Design | Choice):
        raise Refused(f"{name} is a {kind}: a design is data, so a class of your own cannot be one", 2)
    raise Refused(f"{name} is a {kind}, not a kvlatch.spec.designs.Design", 2)


def _choice(name: str, found: Choice) -> object:
    if found.protocol not in PROTOCOLS:
        raise Refused(f"{name} is a design of {found.protocol!r}: protocols are {', '.join(PROTOCOLS)}", 2)
    first: Any = next(iter(PROTOCOLS[found.protocol].designs.values()))
    known = [switch.name for switch in getattr(first, "switches", ())]
    if not isinstance(first, Choice) or [switch.name for switch in found.switches] != known:
        raise Refused(f"{name} has not the switches of the protocol {found.protocol}: {', '.join(known)}", 2)
    members = {"name": found.name, "protocol": found.protocol, "chosen": dict(found.chosen), "says": found.says}
    return members | _common(name, found)


def _common(name: str, found: Design | Choice) -> dict[str, object]:
    """What designs of every protocol have."""
    protocol = PROTOCOLS[found.protocol]
    changes: dict[str, object] = {"atomicities": list(found.atomicities)}
    for member, kind in (("without", "rows"), ("without_lemmas", "lemmas")):
        names: object = getattr(found, member)
        if not isinstance(names, tuple | list) or not all(isinstance(one, str) for one in names):
            raise Refused(f"{name}: `{member}` is a tuple of names of {kind}, not {names!r}", 2)
        changes[member] = list(names)
    try:
        rows, lemmas = user_rows.dumped(found.rows, protocol), user_rows.dumped_lemmas(found.lemmas, protocol)
    except ValueError as error:
        raise Refused(f"{name}: {error}", 2) from error
    return changes | {"rows": rows, "lemmas": lemmas}
