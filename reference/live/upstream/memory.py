"""The memory of an engine on the host: KV pool, allocator and tree cache, as much of them as the queues use.

A token is a page, so an index of a token is an index of a page. The content of a page is a function of prompt and
position, which both ends can compute: decode can tell that the right bytes have come.
"""

from __future__ import annotations

import hashlib
import importlib
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvlatch.reference.live.upstream.load import SRT
from kvlatch.reference.live.upstream.tensors import Tensor, tensor, zeros

ITEM: Final = 512
"""Bytes of a token in each of the two buffers."""


class Pool:
    """Two buffers, as a layer has one of keys and one of values; NIXL reads and writes them."""

    page_size = 1
    start_layer, end_layer = 0, 1
    head_num = 1
    dtype = "uint8"

    def __init__(self, tokens: int, rank: int) -> None:
        self._rank = rank
        self.buffers = [zeros((tokens + 1, ITEM), np.uint8) for _ in range(2)]

    def get_contiguous_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
        """Address, bytes, and bytes of a token of each buffer."""
        return (
            [buffer.data_ptr() for buffer in self.buffers],
            [buffer.nbytes for buffer in self.buffers],
            [ITEM] * len(self.buffers),
        )

    def maybe_get_custom_mem_pool(self) -> None:
        """There is none."""

    def fill(self, indices: NDArray[Any], prompt: str, start: int) -> None:
        """Write what a prompt has from this position on."""
        self.buffers[0][indices] = content(prompt, self._rank, start, len(indices))
        self.buffers[1][indices] = ~self.buffers[0][indices]

    def holds(self, indices: NDArray[Any], prompt: str) -> bool:
        """Whether these tokens are those of the prompt."""
        expected = content(prompt, self._rank, 0, len(indices))
        return bool((self.buffers[0][indices] == expected).all() and (self.buffers[1][indices] == ~expected).all())


def content(prompt: str, rank: int, start: int, tokens: int) -> NDArray[np.uint8]:
    """The bytes that a rank has of some tokens of a prompt: an array of shape (tokens, ITEM)."""
    seed = np.frombuffer(hashlib.sha256(f"{rank} {prompt}".encode()).digest(), np.uint8)
    row = np.tile(seed, ITEM // seed.size)
    position = np.arange(start, start + tokens, dtype=np.uint32)
    return (row[None, :] + position[:, None].astype(np.uint8) + (position[:, None] >> 8).astype(np.uint8)).astype(
        np.uint8
    )


class _Tokens:
    """Hands out single tokens; what it does not say is upstream's base class's."""

    page_size = 1
    device = "cpu"

    def __init__(self, pool: Pool, tokens: int, freed: Callable[[Iterable[int]], None]) -> None:
        self._kvcache = pool
        self._freed = freed
        self.size = tokens
        self.clear()

    def available_size(self) -> int:
        """Tokens that are free."""
        return len(self._free)

    def alloc(self, need_size: int) -> Tensor | None:
        """The indices of some tokens; None if fewer are free."""
        if need_size > len(self._free):
            return None
        return tensor([self._free.popleft() for _ in range(need_size)], np.int64)

    def free(self, free_index: NDArray[Any]) -> None:
        """Take tokens back; the newest are handed out first, so that a page that is freed too early is used."""
        pages = [int(index) for index in free_index]
        self._freed(pages)
        self._free.extendleft(pages)

    def clear(self) -> None:
        """Take back all tokens."""
        self._free = deque(range(1, self.size + 1))


class _NoPrefixes:
    """A cache of prefixes that keeps none."""

    disable = True
    page_size = 1
    sliding_window_size = None

    def __init__(self, requests: Any, tokens: Any) -> None:
        self.req_to_token_pool, self.token_to_kv_pool_allocator = requests, tokens

    def supports_mamba(self) -> bool:
        """Whether it keeps states of recurrent layers."""
        return False

    def supports_prefix_sharing(self) -> bool:
        """Whether requests share prefixes."""
        return False

    def checkpoint(self, req: Any, *, up_to: int, **_: object) -> None:
        """Nothing is kept."""

    def reset(self) -> None:
        """Nothing is kept."""

    def match_prefix(self, _: object) -> None:
        """Nothing is kept, and nobody asks."""


def allocator(pool: Pool, tokens: int, freed: Callable[[Iterable[int]], None]) -> Any:
    """An allocator over upstream's base class; ``freed`` is told which pages come back."""
    base = importlib.import_module(f"{SRT}.mem_cache.allocator.base").BaseTokenToKVPoolAllocator
    return _complete("Tokens", _Tokens, base)(pool, tokens, freed)


def tree_cache(requests: Any, tokens: Any) -> Any:
    """A cache that keeps no prefixes: upstream's `ChunkCache`, and one over its base class where that has gone."""
    try:
        chunk_cache = importlib.import_module(f"{SRT}.mem_cache.chunk_cache")
    except ModuleNotFoundError:
        base = importlib.import_module(f"{SRT}.mem_cache.base_prefix_cache").BasePrefixCache
        return _complete("NoPrefixes", _NoPrefixes, base)(requests, tokens)
    pools = SimpleNamespace(req_to_token_pool=requests, token_to_kv_pool_allocator=tokens, page_size=1)
    return chunk_cache.ChunkCache(pools)


def _complete(name: str, ours: type, base: Any) -> Any:
    """Our class before upstream's abstract one; what stays abstract is not called."""
    kind = type(base)(name, (ours, base), {})
    kind.__abstractmethods__ = frozenset()
    return kind
