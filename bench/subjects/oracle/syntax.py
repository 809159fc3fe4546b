"""Python as people write it: decorators, private names, properties, patterns, generators, closures, del, finally."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from kvlatch.spec.status import KVPoll as Poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def synchronized(method: Callable) -> Callable:
    @functools.wraps(method)
    def locked(self, *args, **more):
        try:
            self._Room__lock.acquire()
            return method(self, *args, **more)
        finally:
            self._Room__lock.release()

    return locked


@dataclass(slots=True)
class Sender:
    status: Poll | None = None
    chunks: dict[int, bool] = field(default_factory=dict)
    total: int | None = None
    flags: set[str] = field(default_factory=set)

    @property
    def over(self) -> bool:
        return self.status in (Poll.Failed, Poll.Success)

    @property
    def running(self) -> Iterator[int]:
        return (chunk for chunk, done in self.chunks.items() if not done)

    def __iadd__(self, chunk: int) -> Self:
        self.chunks[chunk] = False
        return self


class Room:
    made: ClassVar[int] = 0

    def __init__(self, tell, release, /, *, lock=None):
        self.__lock = lock or threading.RLock()
        self.__senders: dict[int, Sender] = {}
        self.tell, self.release = tell, release

    def __getitem__(self, request: int) -> Sender:
        return self.__senders.setdefault(request, Sender())

    def __setitem__(self, request: int, status: Poll) -> None:
        sender = self[request]
        if "cleared" not in sender.flags:
            sender.status = status

    def __delitem__(self, request: int) -> None:
        self[request].status = None

    @synchronized
    def on(self, request: int, what: str, *args: object) -> object:
        match (what, self[request]):
            case ("create", Sender(status=None)):
                self[request] = Poll.Bootstrapping
            case ("metadata", Sender(status=None | Poll.Bootstrapping)):
                self[request] = Poll.WaitingForInput
            case ("abort", Sender(status=Poll() as status)) if status not in (Poll.Failed, Poll.Success):
                self[request] = Poll.Failed
            case ("start", Sender(status=Poll.WaitingForInput | Poll.Transferring)):
                self[request] = Poll.Transferring
                sender = self[request]
                sender += args[0]
                return True
            case ("start", _):
                return False
            case ("finish", sender):
                chunk, last, ok = args
                self.finished(request, sender, chunk, last, ok)
            case ("poll", Sender(status=status)):
                return status
            case ("clear", Sender(flags=flags)):
                flags |= {"cleared"}
                del self[request]
                self.drained(request)
            case _:
                pass
        return None

    def finished(self, request, sender, chunk, last, ok):
        sender.chunks[chunk] = True
        if ok:
            sender.flags.add(f"arrived {chunk}")
        if last:
            sender.total = chunk + 1
        if "cleared" in sender.flags:
            self.drained(request)
            return
        if not sender.over:
            if not ok:
                self[request] = Poll.Failed
            elif (arrived := sum(1 for flag in sender.flags if flag.startswith("arrived"))) and arrived == sender.total:
                self[request] = Poll.Success
        told = "told" in sender.flags

        def tell_once():
            nonlocal told
            if sender.over and not told:
                told = True
                sender.flags.add("told")
                self.tell(request, sender.status)

        tell_once()

    def drained(self, request):
        for _ in self[request].running:
            break
        else:
            if {"cleared"} <= self[request].flags and "released" not in self[request].flags:
                self[request].flags.add("released")
                self.release(request)

    def newest(self):
        return self.__senders[max(self.__senders)].status if self.__senders else None


class Adapter:
    def __init__(self, probe):
        self.probe = probe
        self.rooms = {}
        self.making = threading.Lock()

    def room(self, room):
        with self.making:
            if (found := self.rooms.get(room)) is None:
                tell, release = (
                    functools.partial(self.probe.tell, room),
                    lambda request: self.probe.release(room, request),
                )
                found = self.rooms[room] = Room(tell, release)
                Room.made += 1
            return found

    def __getattr__(self, name):
        if name not in ("create", "metadata", "abort", "poll", "clear"):
            raise AttributeError(name)
        return lambda room, request: self.room(room).on(request, name)

    def abort_notice(self, room, request):
        return self.abort(room, request)

    def start(self, room, request, chunk, last):
        return self.room(room).on(request, "start", chunk)

    def finish(self, room, request, chunk, last, ok):
        self.room(room).on(request, "finish", chunk, last, ok)

    def status(self, room):
        return self.rooms[room].newest() if room in self.rooms else None
