"""One array code for both devices: which array module to use, and the few scatters that both must do alike.

Code that runs on either takes the module as ``xp`` (``numpy`` or ``cupy``) and uses what both have. What CuPy lacks,
or does in another way, and so must be kept out of shared code:

* ``maximum`` and ``minimum`` have no ``reduce``, ``accumulate`` or ``reduceat``, and ``at`` only for :data:`ATOMIC`;
* of two assignments to one element in one indexed assignment, either may win;
* an index that is out of range wraps around in silence;
* ``argsort`` is stable and takes no ``kind``; ``lexsort`` takes one two-dimensional array;
* a scalar is an ``int``, ``float`` or ``bool`` itself or a NumPy scalar, never a member of an ``IntEnum``;
* an array never becomes a NumPy array by itself: :func:`to_host` says so.

``tests/reference/arrays/cupy_facade.py`` enforces this on machines without a GPU.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, Literal, TypeAlias

import numpy as np

Device = Literal["cpu", "gpu"]
Array: TypeAlias = Any
"""An array of either module; CuPy publishes no types."""

ATOMIC: Final = tuple(np.dtype(name) for name in ("int32", "uint32", "uint64", "float32", "float64"))
"""The dtypes for which CuPy has an atomic maximum and minimum."""

UNSEEN: Final = 2**31 - 1
"""In a scratch array of first positions: none yet."""


class NoDevice(RuntimeError):
    """A GPU was asked for and there is none that CuPy can use: one line that says why."""


def module(device: Device = "cpu") -> ModuleType:
    """NumPy for ``cpu``, CuPy for ``gpu``, which has to be asked for: nothing here has run on a GPU.

    NoDevice where CuPy has no GPU to use. Nothing of CuPy is imported before it is asked for.
    """
    if device not in ("cpu", "gpu"):
        raise ValueError(f"unknown device {device!r}; it is cpu or gpu")
    if device == "cpu":
        return np
    found = _cupy()
    if isinstance(found, ModuleType):
        return found
    raise NoDevice(f"no GPU to use: {found}")


def _cupy() -> ModuleType | str:
    """CuPy, or why it cannot be used here."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported ({error}); install kvlatch[gpu]"
    try:
        usable = cupy.cuda.is_available()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"the CUDA driver answers {error}"
    return cupy if usable else "CuPy finds no CUDA device"


def to_host(array: Array) -> Array:
    """The same array in the memory of the CPU."""
    return array.get() if hasattr(array, "get") else array


def lookup(xp: ModuleType, table: Array, codes: Array) -> Array:
    """The byte that a table, uint8[256], has for each code, uint8."""
    if xp is np:  # three times as fast as indexing
        return np.frombuffer(codes.tobytes().translate(table.tobytes()), np.uint8)
    return table[codes]


def scatter_max(xp: ModuleType, target: Array, index: Array, values: Array) -> None:
    """``target[i] = max(target[i], v)`` for every pair of ``index`` and ``values``, repeated indices included.

    ``target`` has a dtype of :data:`ATOMIC`; another one raises TypeError on either module.
    """
    _atomic(target)
    xp.maximum.at(target, index, values)


def scatter_min(xp: ModuleType, target: Array, index: Array, values: Array) -> None:
    """``target[i] = min(target[i], v)``, otherwise as :func:`scatter_max`."""
    _atomic(target)
    xp.minimum.at(target, index, values)


def first_of_each(xp: ModuleType, keys: Array, scratch: Array) -> Array:
    """Where a key occurs for the first time, as a mask over ``keys`` (integers, each an index of ``scratch``).

    ``scratch`` is an int32 array of any size, every element :data:`UNSEEN` before and after, so that a small question
    about a large table costs what the question costs.
    """
    position = xp.arange(len(keys), dtype=xp.int32)
    scatter_min(xp, scratch, keys, position)
    first = scratch[keys] == position
    scratch[keys] = UNSEEN
    return first


def _atomic(target: Array) -> None:
    if target.dtype not in ATOMIC:
        raise TypeError(f"no atomic maximum or minimum of {target.dtype}: use one of {', '.join(map(str, ATOMIC))}")
