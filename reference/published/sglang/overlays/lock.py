"""A lock around each update of a status: the atomicity `locked` for whatever lies under it."""

from __future__ import annotations

import threading
from typing import Any


class Manager:
    """One update at a time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.update_lock = threading.RLock()
        super().__init__(*arguments, **options)

    def update_status(self, bootstrap_room: int, status: int) -> None:
        with self.update_lock:
            parent: Any = super()
            parent.update_status(bootstrap_room, status)
