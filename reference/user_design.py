"""A user's own design, read in a process of its own: a design is data, its merge is a table of 30 cells."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs

from kvlatch.reference.faults import Refused
from kvlatch.reference.foreign.child import Work, loaded
from kvlatch.reference.foreign.process import Child, Ended, Raised
from kvlatch.reference.oracle.merge_table import as_merge
from kvlatch.spec.designs import Design
from kvlatch.spec.merges import KEEP, Table, table
from kvlatch.spec.protocols import PROTOCOLS
from kvlatch.spec.schema import AnyDesign, Choice
from kvlatch.spec.status import KVPoll

_PLAIN: Final = tuple(field.name for field in attrs.fields(Design) if field.name not in ("merge", "atomicities"))


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
    if "protocol" in found:
        first: Any = next(iter(PROTOCOLS[found["protocol"]].designs.values()))
        choice = Choice(**{**found, "switches": first.switches, "atomicities": tuple(found["atomicities"])})
        return choice, (None, None)
    file, line = found.pop("place")
    rows: Table = tuple(tuple(KEEP if one == KEEP else KVPoll[one] for one in row) for row in found.pop("merge"))
    design = Design(**{**found, "merge": as_merge(rows), "atomicities": tuple(found["atomicities"])})
    return design, (file, line)


def child_reads(_work: Work, name: str) -> object:
    """In the child: the design's members, or Refused."""
    found = loaded(name)
    if type(found) is Design:
        rows = [[one if one == KEEP else KVPoll(one).name for one in row] for row in table(found.merge)]
        members = {field: getattr(found, field) for field in _PLAIN}
        code = getattr(inspect.unwrap(found.merge), "__code__", None)
        where = (None, None) if code is None else (code.co_filename, code.co_firstlineno)
        return members | {"merge": rows, "atomicities": list(found.atomicities), "place": where}
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
    return {
        "name": found.name, "protocol": found.protocol, "chosen": dict(found.chosen),
        "atomicities": list(found.atomicities), "says": found.says,
    }  # fmt: skip
