"""A mapping for a status table, if a manager likes: one can look at it without an access, and accesses are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

Touched = Callable[["Table", bool, str], None]
"""Told of each access before it is made: the table, whether it is written, and what is done."""


class Table(dict[Any, Any]):
    """A mapping that threads share, each access to which is told to somebody.

    For an audit, ``keys_used`` has the keys of all accesses so far, and ``stores`` counts the stores.
    """

    not_in_digest = ("_touched", "keys_used", "stores")

    def __init__(self, touched: Touched | None = None) -> None:
        super().__init__()
        self._touched = touched
        self.keys_used: set[object] = set()
        self.stores = 0

    def _reads(self, what: str, *keys: object) -> None:
        if self._touched is not None:
            self._touched(self, False, what)
        self.keys_used.update(keys)

    def _stores(self, what: str, *keys: object) -> None:
        if self._touched is not None:
            self._touched(self, True, what)
        self.stores += 1
        self.keys_used.update(keys)

    def __getitem__(self, key: object) -> Any:
        self._reads(f"reads {key}", key)
        return super().__getitem__(key)

    def get(self, key: object, default: object = None) -> Any:
        self._reads(f"reads {key}", key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._reads(f"reads {key}", key)
        return super().__contains__(key)

    def __iter__(self) -> Iterator[Any]:
        self._reads("reads all", *super().keys())
        return super().__iter__()

    def __len__(self) -> int:
        self._reads("reads the length")
        return super().__len__()

    def keys(self) -> Any:
        self._reads("reads all", *super().keys())
        return super().keys()

    def values(self) -> Any:
        self._reads("reads all", *super().keys())
        return super().values()

    def items(self) -> Any:
        self._reads("reads all", *super().keys())
        return super().items()

    def copy(self) -> dict[Any, Any]:
        self._reads("reads all", *super().keys())
        return dict(super().items())

    def __setitem__(self, key: object, value: object) -> None:
        self._stores(f"stores {key}", key)
        super().__setitem__(key, value)

    def setdefault(self, key: object, default: object = None) -> Any:
        self._stores(f"stores {key}", key)  # one step: the interpreter does not let another thread in
        return super().setdefault(key, default)

    def __delitem__(self, key: object) -> None:
        self._stores(f"removes {key}", key)
        super().__delitem__(key)

    def pop(self, key: object, *default: object) -> Any:
        self._stores(f"removes {key}", key)
        return super().pop(key, *default)

    def popitem(self) -> tuple[Any, Any]:
        self._stores("removes the newest", *super().keys())
        return super().popitem()

    def clear(self) -> None:
        self._stores("removes all", *super().keys())
        super().clear()

    def update(self, *others: Any, **named: Any) -> None:
        entries = dict(*others, **named)
        self._stores(f"stores {', '.join(map(str, entries))}", *entries)
        super().update(entries)

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]  # it stays a table
        self.update(other)
        return self

    def peek(self, key: object) -> Any:
        """An entry, or None, without being an access: for whoever looks on."""
        return super().get(key)
