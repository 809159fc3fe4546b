"""NumPy in the place of torch, as far as the scheduler's queues and the managers use it: everything is on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvlatch.reference.live.upstream.stubs import Missing


class Tensor(np.ndarray[Any, Any]):
    """An array with the methods of a tensor on the host."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Missing(f"a tensor has no {name} here")

    def cpu(self) -> Tensor:
        """The tensor itself."""
        return self

    def numpy(self) -> NDArray[Any]:
        """The array itself."""
        return np.asarray(self)

    def numel(self) -> int:
        """How many elements it has."""
        return self.size

    def data_ptr(self) -> int:
        """The address of the first element."""
        return int(self.ctypes.data)

    def copy_(self, other: Any, non_blocking: bool = False) -> Tensor:
        """Take over the elements of another one."""
        self[...] = other
        return self

    def clone(self) -> Tensor:
        """A copy."""
        return self.copy()

    def to(self, dtype: Any = None, *_: object, copy: bool = False, **__: object) -> Tensor:
        """A copy, or the tensor itself if that is of this type already."""
        return self if dtype in (None, "cpu") else self.astype(dtype, copy=copy).view(Tensor)


def tensor(values: Any, dtype: Any = None, **_: object) -> Tensor:
    """A new tensor of these values."""
    return np.array(values, dtype).view(Tensor)


def zeros(shape: int | Sequence[int], dtype: Any = np.float32, **_: object) -> Tensor:
    """A tensor of zeros."""
    return np.zeros(shape, dtype).view(Tensor)


def full(shape: int | Sequence[int], value: Any, dtype: Any = None, **_: object) -> Tensor:
    """A tensor of one value."""
    return np.full(shape, value, dtype).view(Tensor)


def no_grad(function: Any = None) -> Any:
    """Nothing has gradients here: a decorator, or a context."""
    return function if callable(function) else _NoGrad()


class _NoGrad(contextlib.nullcontext[None]):
    def __call__(self, function: Any) -> Any:
        return function


class ReduceOp:
    """How values of several ranks become one."""

    MIN, MAX, SUM = "min", "max", "sum"


def all_reduce(values: Tensor, op: str = ReduceOp.SUM, group: Any = None) -> None:
    """Reduce over the ranks of a group, in place; a group of None has one rank."""
    if group is not None:
        values[...] = group.reduce(values, op)


def get_world_size(group: Any = None) -> int:
    """How many ranks a group has; a group of None has one."""
    return 1 if group is None else int(group.size)


class Event:
    """Something on a stream: everything is done at once here."""

    def record(self, _: object = None) -> None:
        """It has happened."""

    def synchronize(self) -> None:
        """It has happened."""


def no_stream() -> None:
    """There is no accelerator, and so no stream."""


CUDA: dict[str, Any] = {"Event": Event, "current_stream": no_stream}
"""What `torch.cuda` has of this."""


def names() -> dict[str, Any]:
    """What `torch` has of this."""
    types = {name: np.dtype(name) for name in ("uint8", "int32", "int64", "uint64", "float32", "bool")}
    distributed = {
        "ReduceOp": ReduceOp, "all_reduce": all_reduce, "get_world_size": get_world_size,
        "is_initialized": lambda: False,
    }  # fmt: skip
    return {
        **types,
        "Tensor": Tensor,
        "tensor": tensor,
        "zeros": zeros,
        "empty": zeros,
        "full": full,
        "no_grad": no_grad,
        "inference_mode": no_grad,
        "distributed": SimpleNamespace(**distributed),
    }
