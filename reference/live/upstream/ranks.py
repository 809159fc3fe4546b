"""The ranks of an engine: upstream's collective calls go over sockets, in the place of torch.distributed with gloo.

Rank 0 is connected to every other one. What upstream reduces is reduced here, with the same operation over the same
values, and nobody goes on before everybody has come, as with gloo. Rank 0 hands on what comes in, turn by turn.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_LENGTH: Final = struct.Struct("!I")
_HOW: Final[dict[str, Callable[..., Any]]] = {"min": np.minimum, "max": np.maximum, "sum": np.add}


class Diverged(RuntimeError):
    """Two ranks of an engine want to do different things together: with gloo they would hang or crash here."""


class Group:
    """All ranks of an engine; ``links`` are rank 0's connections to the others, or another rank's one to rank 0."""

    def __init__(self, rank: int, size: int, links: Sequence[socket.socket]) -> None:
        self.rank, self.size = rank, size
        self._links = links

    def reduce(self, values: NDArray[Any], op: str) -> NDArray[Any]:
        """The values of all ranks, element by element made one; of the shape and dtype of ``values``."""
        mine = f"{op} {values.dtype} {values.shape}".encode()
        if self.rank:
            self._say(mine + b"\0" + values.tobytes())
            reply = _hear(self._links[0])
            if len(reply) != values.nbytes:
                raise Diverged(reply.decode("utf-8", "replace"))
            return np.frombuffer(reply, values.dtype).reshape(values.shape)
        total = np.array(values)
        for rank, link in enumerate(self._links, 1):
            theirs, _, content = _hear(link).partition(b"\0")
            if theirs != mine:
                what = f"rank 0 reduces {mine.decode()}, rank {rank} {theirs.decode('utf-8', 'replace')}"
                self._say(what.encode())
                raise Diverged(what)
            total = _HOW[op](total, np.frombuffer(content, values.dtype).reshape(values.shape))
        self._say(total.tobytes())
        return total

    def hand_on(self, what: Any) -> Any:
        """What rank 0 has, on every rank; ``what`` is JSON, and is not looked at on the others."""
        if self.rank:
            return json.loads(_hear(self._links[0]))
        self._say(json.dumps(what).encode())
        return what

    def _say(self, content: bytes) -> None:
        for link in self._links:
            link.sendall(_LENGTH.pack(len(content)) + content)


def _hear(link: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(link, _LENGTH.size))
    return _exactly(link, length)


def _exactly(link: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        part = link.recv(length - len(content))
        if not part:
            raise ConnectionError("a rank of this engine has gone")
        content += part
    return content
