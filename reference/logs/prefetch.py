"""Decode ahead of whoever judges: Arrow decodes in C++, while Python has the rest of the work."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """The same items, made by a thread of their own while the caller works on those before: decoding takes as long."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(2)
    stopped = threading.Event()

    def make() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                ready.put((item, None))
                if stopped.is_set():
                    return
        except BaseException as raised:  # noqa: BLE001  # handed on to the caller
            error = raised
        ready.put((None, error))

    thread = threading.Thread(target=make, name="reader", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stopped.set()
        while thread.is_alive():  # it may wait for room in the queue
            try:
                ready.get(timeout=0.05)
            except queue.Empty:
                continue
