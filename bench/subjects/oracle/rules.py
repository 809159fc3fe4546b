"""The rules for one request as a function, and the handlers in front of it: for managers that differ in the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvlatch.spec.status import KVPoll

FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = range(5)
OVER = (FAILED, SUCCESS)


@dataclass(frozen=True)
class Request:
    """One request on a room: ``reading`` transfers run, ``arrived`` went well, of ``total`` once that is known."""

    status: int | None = None
    reading: int = 0
    arrived: int = 0
    total: int | None = None
    cleared: bool = False
    told: bool = False
    released: bool = False


def step(before: Request, event: str, chunk: int = 0, last: bool = False, ok: bool = True):
    """The request after an event, what the caller gets, and what is to be done: ("tell", status), ("release",)."""
    now = before
    if not before.cleared:
        now = replace(before, status=status_after(before, event))
    if event == "start" and now.status == TRANSFERRING:
        now = replace(now, reading=now.reading + 1)
    elif event == "finish":
        now = replace(now, reading=now.reading - 1, arrived=now.arrived + ok)
        now = replace(now, total=chunk + 1 if last else now.total)
        now = concluded(now, ok)
    elif event == "clear":
        now = replace(now, cleared=True, status=None)
    todo = []
    if event == "finish" and now.status in OVER and not now.told:
        now = replace(now, told=True)
        todo.append(("tell", now.status))
    if now.cleared and now.reading == 0 and not now.released:
        now = replace(now, released=True)
        todo.append(("release",))
    answer = {"poll": now.status, "start": now.reading > before.reading}.get(event)
    return now, answer, todo


def status_after(request: Request, event: str) -> int | None:
    """The first terminal status stays; a notice about nothing makes nothing."""
    status = request.status
    if event == "create" and status is None:
        return BOOTSTRAPPING
    if event == "metadata" and status in (None, BOOTSTRAPPING):
        return WAITING
    if event == "start" and status in (WAITING, TRANSFERRING):
        return TRANSFERRING
    if event in ("abort", "abort_notice") and status is not None and status not in OVER:
        return FAILED
    return status


def concluded(request: Request, ok: bool) -> Request:
    """A transfer has ended: Failed with the first that did not go well, Success with the last of all."""
    if request.cleared or request.status in OVER:
        return request
    if not ok:
        return replace(request, status=FAILED)
    if request.arrived == request.total:
        return replace(request, status=SUCCESS)
    return request


class Handlers:
    """The nine handlers; a manager that has these says how one event is done, in ``do``."""

    def __init__(self, probe):
        self.probe = probe
        self.requests = {}
        self.newest = {}

    def do(self, room, request, event, *details):
        raise NotImplementedError  # each architecture has its own

    def effects(self, room, request, todo):
        for what, *status in todo:
            if what == "tell":
                self.probe.tell(room, request, KVPoll(*status))
            else:
                self.probe.release(room, request)

    def create(self, room, request):
        self.do(room, request, "create")

    def metadata(self, room, request):
        self.do(room, request, "metadata")

    def abort_notice(self, room, request):
        self.do(room, request, "abort_notice")

    def abort(self, room, request):
        self.do(room, request, "abort")

    def start(self, room, request, chunk, last):
        return self.do(room, request, "start", chunk, last)

    def finish(self, room, request, chunk, last, ok):
        self.do(room, request, "finish", chunk, last, ok)

    def poll(self, room, request):
        status = self.do(room, request, "poll")
        return None if status is None else KVPoll(status)

    def clear(self, room, request):
        self.do(room, request, "clear")

    def status(self, room):
        now = self.requests.get((room, self.newest.get(room)))
        return None if now is None or now.status is None else KVPoll(now.status)
