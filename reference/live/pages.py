"""KV pages: their pool, and their content, which is a function of the prompt.

There is no model. A page of a prompt is filled with a keyed stream of random bytes, so a page that arrives
torn, stale or from another request shows in the digest, and a client knows the digest beforehand.
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def content(prompt: str, page: int, size: int) -> bytes:
    """The bytes of one page of a prompt."""
    key = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=16).digest())
    return np.random.Generator(np.random.Philox(key=key, counter=page << 64)).bytes(size)


def digest_of(prompt: str, pages: int, size: int) -> str:
    """The digest that decode has to answer for a prompt."""
    total = hashlib.blake2b(digest_size=16)
    for page in range(pages):
        total.update(content(prompt, page, size))
    return total.hexdigest()


class NoPages(Exception):
    """The pool has fewer free pages than a request needs."""


class Pool:
    """Pages of one size in one block of memory, uint8 of shape (pages, size).

    The pages that were freed last are handed out first: so a page that is released too early is soon another's.
    """

    def __init__(self, pages: int, size: int) -> None:
        self.memory: Bytes = np.zeros((pages, size), np.uint8)
        self._free = list(range(pages - 1, -1, -1))
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """How many pages nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take ``count`` pages; NoPages, and none is taken, if fewer are free."""
        with self._lock:
            if count > len(self._free):
                raise NoPages(f"{count} pages are wanted, {len(self._free)} are free")
            taken = self._free[len(self._free) - count :][::-1]
            del self._free[len(self._free) - count :]
            return taken

    def give_back(self, pages: list[int]) -> None:
        """Give pages back."""
        with self._lock:
            self._free.extend(reversed(pages))

    def fill(self, page: int, data: bytes) -> None:
        """Write one page."""
        self.memory[page] = np.frombuffer(data, np.uint8)

    def digest(self, pages: list[int]) -> str:
        """The digest of pages in their order."""
        total = hashlib.blake2b(digest_size=16)
        for page in pages:
            total.update(self.memory[page].tobytes())
        return total.hexdigest()
