"""NumPy that refuses what CuPy lacks, so that array code for both stays honest on a machine without a GPU.

``cupy_facade.xp`` takes the place of the module, :class:`DeviceArray` that of its arrays: not a NumPy array and never
turned into one unless ``get()`` is called. What CuPy would do in another way than NumPy, or in any way it likes, raises
here: see ``reference/arrays/device.py`` for the list.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from kvlatch.reference.arrays.device import ATOMIC

SCALARS: Final = (int, float, bool, complex)
"""CuPy asks for these types themselves: a member of an IntEnum, which is an int too, is refused."""

FUNCTIONS: Final = (
    "arange", "argsort", "asarray", "bincount", "concatenate", "cumsum", "flatnonzero", "full", "lexsort",
    "may_share_memory", "nonzero", "ones", "repeat", "searchsorted", "sort", "stack", "take", "tile",
    "unique", "where", "zeros",
)  # fmt: skip
UFUNCS: Final = ("add", "bitwise_and", "equal", "logical_and", "maximum", "minimum", "multiply")
METHODS: Final = ("all", "any", "argmax", "astype", "reshape", "sum", "view")
DTYPES: Final = ("bool_", "float32", "float64", "int32", "int64", "uint8", "uint32", "uint64")


class DeviceArray(NDArrayOperatorsMixin):
    """An array in the memory of a GPU, as far as Python can tell."""

    def __init__(self, host: Any) -> None:
        self._host = np.asarray(host)
        self.shape, self.dtype, self.ndim, self.size, self.flags = (
            self._host.shape, self._host.dtype, self._host.ndim, self._host.size, self._host.flags,
        )  # fmt: skip

    def get(self) -> Any:
        """A copy in the memory of the CPU."""
        return self._host.copy()

    def __array__(self, *args: object, **kwargs: object) -> Any:
        raise TypeError("an array of the device does not become a NumPy array by itself")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            raise TypeError(f"{ufunc.__name__}.{method} is not called through NumPy")
        if "out" in options:
            options["out"] = tuple(map(unwrap, options["out"]))
        return wrap(ufunc(*map(unwrap, inputs), **options))

    def __len__(self) -> int:
        return len(self._host)

    def __bool__(self) -> bool:
        return bool(self._host)

    def __int__(self) -> int:
        return int(self._host)

    __index__ = __int__

    def __iter__(self) -> Any:
        raise TypeError("iterating over an array of the device is a transfer for each element")

    def __getitem__(self, index: Any) -> DeviceArray:
        return DeviceArray(self._host[_index(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        where = _index(index)
        if isinstance(value, DeviceArray) and value.ndim:
            times = np.zeros(self.shape, np.int64)
            np.add.at(times, where, 1)
            if times.max(initial=0) > 1:
                raise ValueError("two values are assigned to one element: on a GPU either may win")
        self._host[where] = unwrap(value)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in METHODS:
            raise AttributeError(f"DeviceArray has no {name}; add it if CuPy's arrays have it")
        method = getattr(self._host, name)
        return lambda *args, **options: wrap(method(*args, **options))


class _Ufunc:
    """A universal function with the methods that CuPy's has."""

    def __init__(self, name: str) -> None:
        self.name, self.ufunc = name, getattr(np, name)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.ufunc(*inputs, **options)

    def at(self, target: DeviceArray, index: DeviceArray, values: Any) -> None:
        if self.name not in ("add", "maximum", "minimum") or target.dtype not in ATOMIC:
            raise NotImplementedError(f"CuPy has no {self.name}.at for {target.dtype}")
        self.ufunc.at(unwrap(target), _index(index), unwrap(values))

    def __getattr__(self, name: str) -> Any:
        if name in ("reduce", "accumulate") and self.name in ("add", "multiply"):
            return lambda array, **options: wrap(getattr(self.ufunc, name)(unwrap(array), **options))
        raise NotImplementedError(f"CuPy has no {self.name}.{name}")


class _Module(ModuleType):
    """What shared code may ask of the array module."""

    def argsort(self, array: DeviceArray) -> DeviceArray:
        return DeviceArray(np.argsort(unwrap(array), kind="stable"))

    def lexsort(self, keys: DeviceArray) -> DeviceArray:
        if getattr(keys, "ndim", 0) != 2:
            raise TypeError("CuPy's lexsort takes one two-dimensional array")
        return DeviceArray(np.lexsort(unwrap(keys)))

    def asarray(self, value: Any, dtype: Any = None) -> DeviceArray:
        return DeviceArray(np.array(value._host if isinstance(value, DeviceArray) else value, dtype))

    def __getattr__(self, name: str) -> Any:
        if name == "ndarray":
            return DeviceArray
        if name in DTYPES:
            return getattr(np, name)
        if name in UFUNCS:
            return _Ufunc(name)
        if name in FUNCTIONS:
            return lambda *args, **options: wrap(getattr(np, name)(*map(unwrap, args), **options))
        raise AttributeError(f"the facade has no {name}; add it if CuPy has it")


def wrap(result: Any) -> Any:
    """Arrays as arrays of the device; what NumPy reduces to a scalar, CuPy leaves in an array."""
    if isinstance(result, tuple):
        return tuple(map(wrap, result))
    return DeviceArray(result) if isinstance(result, (np.ndarray, np.generic)) else result


def unwrap(value: Any) -> Any:
    """What NumPy computes with in place of an argument; TypeError for one that CuPy would refuse."""
    if isinstance(value, DeviceArray):
        return value._host
    if isinstance(value, (tuple, list)):
        return type(value)(map(unwrap, value))
    if isinstance(value, np.ndarray):
        raise TypeError("a NumPy array among arrays of the device")
    if isinstance(value, (int, float)) and type(value) not in SCALARS:
        raise TypeError(f"CuPy takes an int for {value!r}, not a {type(value).__name__}")
    return value


def _index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    if isinstance(index, DeviceArray):
        return index._host
    if isinstance(index, (list, np.ndarray)):
        raise TypeError("an index that is not on the device")
    return index


xp: Final = _Module("cupy_facade")
