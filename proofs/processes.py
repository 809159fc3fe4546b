"""The processes that work for a command: how many there are, and how they end.

Z3 takes Ctrl-C as a wish to give up one question, which it then answers with unknown. So these processes do not hear
it: they form process groups of their own, and end when whoever asked them stops asking.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from typing import Final

CORES: Final = 2


@contextmanager
def pool_of_cores(
    context: BaseContext | None = None, *, tasks_each: int | None = None, collect: bool = True
) -> Iterator[ProcessPoolExecutor]:
    """A pool of as many processes as cores; they are terminated if an exception, Ctrl-C included, leaves the block.

    Each does ``tasks_each`` tasks, None for any number. Without ``collect`` it does not look for cycles of garbage: for
    short processes that build terms most of the time, that costs more than it frees.
    """
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        CORES, context, initializer=_begin, initargs=(collect,), max_tasks_per_child=tasks_each
    ) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            raise


def _begin(collect: bool) -> None:
    os.setpgid(0, 0)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if not collect:
        gc.disable()


def _end_with_parent() -> None:
    """A process that was killed cannot tell its workers to stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
