"""What takes the place of a manager's dictionaries and of the inside of its queues: the same, but changes are noted."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Final

from kvlatch.reference.logs.recording.recorder import Recorder

WATCHED: Final = "_kvlatch_watched"
"""What is set on a function that is watched already."""


class Watched(dict[Any, Any]):
    """A dictionary whose changes are noted, each in one step with its line in the log. Reads are those of ``dict``."""

    recorder: Recorder

    def __setitem__(self, room: Any, value: Any) -> None:
        with self.recorder.tape.lock:
            super().__setitem__(room, value)
            self.stored(room, value)

    def __delitem__(self, room: Any) -> None:
        with self.recorder.tape.lock:
            super().__delitem__(room)
            self.removed(room, True)

    def pop(self, room: Any, *default: Any) -> Any:
        with self.recorder.tape.lock:
            had = room in self
            popped = super().pop(room, *default)
            self.removed(room, had)
            return popped

    def setdefault(self, room: Any, default: Any = None) -> Any:
        with self.recorder.tape.lock:
            if room not in self:
                self[room] = default
            return dict.__getitem__(self, room)

    def popitem(self) -> tuple[Any, Any]:
        with self.recorder.tape.lock:
            room, value = super().popitem()
            self.removed(room, True)
            return room, value

    def update(self, *others: Any, **more: Any) -> None:
        for room, value in dict(*others, **more).items():
            self[room] = value

    def clear(self) -> None:
        for room in [*self]:
            self.pop(room, None)

    def stored(self, room: Any, value: Any) -> None:
        """Note that a value was stored."""

    def removed(self, room: Any, had: bool) -> None:
        """Note that a value was removed; whether there was one."""


class Statuses(Watched):
    """The status table."""

    def stored(self, room: Any, value: Any) -> None:
        self.recorder.stored(room, value)

    def removed(self, room: Any, had: bool) -> None:
        self.recorder.cleared(room)


class Infos(Watched):
    """Decode's metadata by room."""

    def removed(self, room: Any, had: bool) -> None:
        if had:
            self.recorder.note("forget", room)


class Buffer(collections.deque[Any]):
    """The inside of SGLang's queue: a worker that has waited there since before the recording takes from it, too."""

    recorder: Recorder

    def popleft(self) -> Any:
        item = super().popleft()
        self.recorder.taken(item)
        return item


def filled(kind: type[Watched], value: dict[Any, Any], recorder: Recorder) -> Watched:
    """A watched dictionary with the content of another one, and the methods of its class if that is one of its own."""
    if isinstance(value, Watched):
        return value
    if type(value) is not dict:
        kind = type(kind.__name__, (kind, type(value)), {})
    new: Watched = kind.__new__(kind)
    new.recorder = recorder
    vars(new).update(getattr(value, "__dict__", {}))
    for room, entry in value.items():
        dict.__setitem__(new, room, entry)
    return new


def watch_queue(queue: Any, recorder: Recorder) -> None:
    """Note what is put into a queue, and who takes it. Its reader is through with a chunk when it asks for the next."""
    if hasattr(queue.put, WATCHED):
        return
    put, get = _method(queue, "put"), _method(queue, "get")
    if type(getattr(queue, "_buf", None)) is collections.deque:
        buffer = Buffer(queue._buf)
        buffer.recorder = recorder
        queue._buf = buffer

    def watched_put(item: Any, *arguments: Any, **named: Any) -> Any:
        recorder.queued(item)
        return put(item, *arguments, **named)

    def watched_get(*arguments: Any, **named: Any) -> Any:
        recorder.through()
        item = get(*arguments, **named)
        recorder.taken(item)
        return item

    setattr(watched_put, WATCHED, True)
    queue.put, queue.get = watched_put, watched_get


def _method(owner: Any, name: str) -> Callable[..., Any]:
    """A method, whatever its class has under that name by the time it is called."""
    own: Callable[..., Any] | None = vars(owner).get(name)
    return own or (lambda *arguments, **named: getattr(type(owner), name)(owner, *arguments, **named))
