"""A storm as JSON: ``report.json``, which ``kvlatch storm --against`` reads again.

The members are the fields of ``records.py``, whose types say what a reader accepts.
"""

from __future__ import annotations

import functools
import math
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, cast, get_args, get_origin, get_type_hints

import attrs

from kvlatch.reference.live.records import FORMAT, Storm

_MARK: Final = "kvlatch-storm"
_ID: Final = "room"
"""An id of 64 bits: a string in JSON, since jq 1.6 and JavaScript round large integers; read as either."""
_DERIVED: Final = "judgements"
"""A member that is computed from the others, and written for other programs to read."""
_PLAIN: Final = {str: "text", int: "an integer", bool: "true or false"}


def as_json(storm: Storm) -> dict[str, object]:
    """The storm for ``json.dumps``; its settings must be JSON values already."""
    return {_MARK: FORMAT} | attrs.asdict(storm, value_serializer=_serialize)


def _serialize(_: object, field: attrs.Attribute[Any] | None, value: object) -> object:
    match value:
        case int() if field is not None and field.name == _ID:
            return str(value)
        case Path():
            return str(value)
        case Mapping():
            return dict(value)
    return value


def from_json(data: object) -> Storm:
    """The storm of what ``json.loads`` returned; ValueError, with the place in the file, if it is not one."""
    if not isinstance(data, dict) or _MARK not in data:
        raise ValueError(f"no report of a storm: it has no member {_MARK}")
    if data[_MARK] != FORMAT:
        raise ValueError(f"{_MARK} is {reprlib.repr(data[_MARK])}, and this version of kvlatch reads {FORMAT}")
    members = {name: value for name, value in data.items() if name not in (_MARK, _DERIVED)}
    return cast(Storm, _record(Storm, members, ""))


def _read(kind: Any, value: object, at: str) -> Any:
    """A value of this type; ``at`` is its place in the file, with a dot before it."""
    if kind is object:
        return value
    if kind is float:
        return _number(value, at)
    if kind is Path:
        return Path(_read(str, value, at))
    if kind in _PLAIN:
        if type(value) is not kind:  # not isinstance: true is no integer
            raise _wrong(at, value, _PLAIN[kind])
        return value
    if attrs.has(kind):
        return _record(kind, value, at)
    return _composed(get_origin(kind), get_args(kind), value, at)


def _composed(origin: Any, arguments: tuple[Any, ...], value: object, at: str) -> Any:
    if origin is Literal:
        if value not in arguments:
            raise _wrong(at, value, f"one of {', '.join(arguments)}")
        return value
    if origin is UnionType:  # there are only those with None
        return None if value is None else _read(arguments[0], value, at)
    if origin is tuple:
        return _sequence(arguments, value, at)
    members = _members(value, at).items()
    return {name: _read(arguments[1], each, f"{at}[{reprlib.repr(name)}]") for name, each in members}


def _record(kind: Any, value: object, at: str) -> Any:
    members, types = _members(value, at), _types(kind)
    if strange := sorted(members.keys() - types.keys()):
        raise ValueError(f"{_place(at)} has a member that no report has: {reprlib.repr(strange[0])}")
    for field in attrs.fields(kind):
        if field.name not in members and field.default is attrs.NOTHING:
            raise ValueError(f"{_place(at)} lacks {field.name}")
    read = {name: _id(each) if name == _ID else each for name, each in members.items()}
    return kind(**{name: _read(types[name], each, f"{at}.{name}") for name, each in read.items()})


def _id(value: object) -> object:
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,100}", value) else value


@functools.cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _sequence(kinds: tuple[Any, ...], value: object, at: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _wrong(at, value, "a list")
    if kinds[-1] is ...:
        kinds = kinds[:1] * len(value)
    if len(value) != len(kinds):
        raise _wrong(at, value, f"a list of {len(kinds)}")
    return tuple(_read(kind, each, f"{at}[{n}]") for n, (kind, each) in enumerate(zip(kinds, value, strict=True)))


def _members(value: object, at: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _wrong(at, value, "an object")
    return value


def _number(value: object, at: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _wrong(at, value, "a finite number")
    return number


def _wrong(at: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"{_place(at)} is {reprlib.repr(value)}, not {wanted}")


def _place(at: str) -> str:
    return at.removeprefix(".") or "the report"
