"""The array module and its helpers, and the facade that stands in for CuPy."""

from __future__ import annotations

import operator
import subprocess
import sys
from collections.abc import Callable
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlatch.reference.arrays import device as arrays
from tests.reference.arrays import cupy_facade

BOTH = pytest.mark.parametrize("xp", [np, cupy_facade.xp], ids=["numpy", "facade"])


class DriverError(RuntimeError):
    """What CuPy raises without a driver."""


def fake_cupy(available: bool | Exception) -> ModuleType:
    """A module as CuPy looks on a machine with, or without, a device that it can use."""

    def is_available() -> bool:
        if isinstance(available, Exception):
            raise available
        return available

    cupy = ModuleType("cupy")
    vars(cupy)["cuda"] = SimpleNamespace(
        is_available=is_available, runtime=SimpleNamespace(CUDARuntimeError=DriverError)
    )
    return cupy


@pytest.mark.parametrize(
    ("cupy", "why"),
    [
        (None, r"CuPy cannot be imported \(.*\); install kvlatch\[gpu\]"),
        (fake_cupy(available=False), "CuPy finds no CUDA device"),
        (fake_cupy(DriverError("cudaErrorInsufficientDriver")), "the CUDA driver answers cudaErrorInsufficientDriver"),
    ],
)
def test_without_a_gpu_it_is_numpy(cupy: ModuleType | None, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CuPy is missing or finds nothing to run on, asking for a GPU says in a line why not."""
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert arrays.module() is arrays.module("cpu") is np
    with pytest.raises(arrays.NoDevice, match=f"^no GPU to use: {why}$"):
        arrays.module("gpu")


def test_cupy_is_used_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where CuPy finds a device: nothing has run on one."""
    cupy = fake_cupy(available=True)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert [arrays.module(), arrays.module("gpu"), arrays.module("cpu")] == [np, cupy, np]


def test_there_are_two_devices() -> None:
    """A device that there is not raises and says which there are."""
    with pytest.raises(ValueError, match=r"^unknown device 'tpu'; it is cpu or gpu$"):
        arrays.module("tpu")  # type: ignore[arg-type]  # what a caller without a type checker may write


def test_nothing_of_cupy_is_imported_before_it_is_asked_for() -> None:
    """Importing the manager, and making one for the CPU, leaves CuPy alone."""
    program = (
        "import sys; from kvlatch.reference.arrays import device, manager; from kvlatch.spec.designs import DESIGNS; "
        "manager.Manager(DESIGNS['latch'], 'locked', xp=device.module('cpu')); sys.exit('cupy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


@BOTH
def test_scatters_take_repeated_indices(xp: ModuleType) -> None:
    """Of all values for one element, and its own, the largest or the smallest stays."""
    index, values = xp.asarray([2, 0, 2, 2], "int32"), xp.asarray([4, 1, 9, 5], "int32")
    for scatter, want in ((arrays.scatter_max, [3, 3, 9]), (arrays.scatter_min, [1, 3, 3])):
        target = xp.full(3, 3, "int32")
        scatter(xp, target, index, values)
        assert arrays.to_host(target).tolist() == want


@BOTH
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64"])
def test_scatters_refuse_what_has_no_atomic_on_a_gpu(xp: ModuleType, dtype: str) -> None:
    """A dtype that CuPy has no atomic maximum for is refused by either module."""
    with pytest.raises(TypeError, match=rf"^no atomic maximum or minimum of {dtype}: use one of int32, "):
        arrays.scatter_max(xp, xp.zeros(3, dtype), xp.asarray([0]), xp.asarray([1]))


@BOTH
@given(keys=st.lists(st.integers(0, 9)))
def test_first_of_each(xp: ModuleType, keys: list[int]) -> None:
    """The mask is true where a key has not come before, and the scratch array is as it was."""
    scratch = xp.full(10, arrays.UNSEEN, "int32")
    for _ in range(2):
        found = arrays.first_of_each(xp, xp.asarray(keys, "int32"), scratch)
        assert arrays.to_host(found).tolist() == [key not in keys[:place] for place, key in enumerate(keys)]
    assert set(arrays.to_host(scratch).tolist()) == {arrays.UNSEEN}


class Code(IntEnum):
    """Codes that are not plain integers."""

    one = 1


X: Any = cupy_facade.xp
THREE = X.asarray([1, 2, 3])


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (lambda: X.maximum.reduce(THREE), NotImplementedError),
        (lambda: X.minimum.accumulate(THREE), NotImplementedError),
        (lambda: X.maximum.reduceat(THREE, [0]), NotImplementedError),
        (lambda: X.maximum.at(X.zeros(3, "uint8"), THREE, THREE), NotImplementedError),
        (lambda: X.argsort(THREE, kind="quicksort"), TypeError),
        (lambda: X.lexsort((THREE, THREE)), TypeError),
        (lambda: np.asarray(THREE), TypeError),
        (lambda: THREE + np.arange(3), TypeError),
        (lambda: THREE[np.arange(2)], TypeError),
        (lambda: THREE + Code.one, TypeError),
        (lambda: X.where(THREE == 1, Code.one, 0), TypeError),
        (lambda: operator.setitem(X.zeros(3), X.asarray([1, 1]), X.asarray([4, 5])), ValueError),
        (lambda: THREE[X.asarray([3])], IndexError),
        (lambda: list(THREE), TypeError),
        (lambda: THREE.__array_namespace__, AttributeError),
        (lambda: X.testing, AttributeError),
    ],
)
def test_the_facade_refuses(refused: Callable[[], Any], error: type[Exception]) -> None:
    """What CuPy lacks, does in any way it likes, or does in silence, raises."""
    with pytest.raises(error):
        refused()


def test_the_facade_has_nothing_that_cupy_lacks() -> None:
    """Every function that the facade passes on, and every method of its arrays, is one of CuPy's."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the names of the facade are not compared")
    names = (*cupy_facade.FUNCTIONS, *cupy_facade.UFUNCS, *cupy_facade.DTYPES)
    assert [name for name in names if not hasattr(cupy, name)] == []
    assert [name for name in cupy_facade.METHODS if not hasattr(cupy.ndarray, name)] == []
