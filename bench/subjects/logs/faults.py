"""Faults planted in healthy logs: each an edit of one request's events, with the law that it breaks.

A fault takes the events and a request of which it can be said, and returns the changed events, or None if the request
is not of the kind that it needs (no abort, no second use, ...). What it changes stays consistent: later polls show what
the fault left behind.

Longer than 400 lines because it is a list: a fault is a few lines that no other one needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

Event = dict[str, Any]


@attrs.frozen
class Key:
    """One request in one table."""

    room: int | str
    node: str
    rank: int
    request: int


@attrs.define
class Run:
    """The events, and where those of one request are."""

    events: list[Event]
    key: Key

    def mine(self, op: str, **members: Any) -> list[int]:
        """Where the request's events with this operation and these members are."""
        wanted = attrs.asdict(self.key) | {"op": op} | members
        return [i for i, event in enumerate(self.events) if wanted.items() <= event.items()]

    def first(self, op: str, **members: Any) -> int:
        """The first of them; NotHere if there is none."""
        found = self.mine(op, **members)
        if not found:
            raise NotHere
        return found[0]

    def add(self, after: int, op: str, thread: str, **members: Any) -> int:
        """A new event of this request behind another one; returns where it is."""
        time = self.events[after]["time"] + 1e-7
        self.events.insert(after + 1, {"op": op, "time": time} | attrs.asdict(self.key) | {"thread": thread} | members)
        return after + 1

    def write(self, after: int, thread: str, status: str) -> int:
        """A write of this request that the table takes; returns where it is."""
        return self.add(after, "write", thread, incoming=status, status=status)

    def show(self, after: int, status: str) -> None:
        """Whatever the table shows behind an event, until it is cleared, is this."""
        for event in self.events[after + 1 :]:
            same = all(event.get(name) == getattr(self.key, name) for name in ("room", "node", "rank"))
            if same and event["op"] == "clear":
                return
            if same and "status" in event:
                event["status"] = status

    def drop(self, *where: int) -> None:
        """Take events out."""
        self.events = [event for i, event in enumerate(self.events) if i not in where]

    def end(self, after: int) -> None:
        """Nothing more is heard of this room in this table."""
        place = {name: getattr(self.key, name) for name in ("room", "node", "rank")}
        self.events = [e for i, e in enumerate(self.events) if i <= after or not place.items() <= e.items()]

    def move(self, where: int, behind: int) -> None:
        """Put an event behind another one that comes later."""
        event = self.events[where] | {"time": self.events[behind]["time"] + 1e-7}
        self.events.insert(behind + 1, event)
        del self.events[where]


class NotHere(Exception):
    """The request is not of the kind that the fault needs."""


Plant = Callable[[Run], None]


@attrs.frozen
class Fault:
    """``law`` is the one that is broken; ``says`` what is wrong."""

    name: str
    law: str
    says: str
    plant: Plant

    def planted(self, events: list[Event], key: Key) -> list[Event] | None:
        """The log with the fault in it."""
        run = Run([dict(event) for event in events], key)
        try:
            self.plant(run)
        except NotHere:
            return None
        return run.events


FAULTS: Final[list[Fault]] = []


def fault(law: str) -> Callable[[Plant], Plant]:
    """Enter a fault; its docstring says what is wrong."""

    def entered(plant: Plant) -> Plant:
        FAULTS.append(Fault(plant.__name__, law, (plant.__doc__ or "").strip(), plant))
        return plant

    return entered


def keys(events: list[Event]) -> Iterator[Key]:
    """The requests that prefill has created, in order."""
    for event in events:
        if event["op"] == "create" and event["node"].startswith("prefill"):
            yield Key(event["room"], event["node"], event["rank"], event["request"])


def _next(run: Run) -> Run:
    """The same room's next request, in the same events."""
    return Run(run.events, attrs.evolve(run.key, request=run.key.request + 1))


def _last_use(run: Run) -> None:
    if _next(run).mine("create"):
        raise NotHere


# --- Statuses -------------------------------------------------------------------------------------


@fault("terminal-sticky")
def late_transferring(run: Run) -> None:
    """A worker writes Transferring over Failed, and the next poll reads it."""
    here = run.add(
        run.first("abort", status="Failed"), "write", "worker 0", incoming="Transferring", status="Transferring"
    )
    if not run.mine("poll", status="Failed"):
        raise NotHere
    run.show(here, "Transferring")


@fault("terminal-sticky")
def late_metadata(run: Run) -> None:
    """Doubled metadata writes WaitingForInput over Failed, and the next poll reads it."""
    here = run.add(
        run.first("abort", status="Failed"), "write", "bootstrap", incoming="WaitingForInput", status="WaitingForInput"
    )
    if not run.mine("poll", status="Failed"):
        raise NotHere
    run.show(here, "WaitingForInput")


@fault("no-resurrection")
def success_over_failed(run: Run) -> None:
    """A transfer that ends after an abort makes the failed room a Success."""
    here = run.write(run.first("abort", status="Failed"), "worker 0", "Success")
    run.show(here, "Success")


@fault("no-resurrection")
def back_to_work(run: Run) -> None:
    """A failed room goes back to Transferring, and a worker posts its chunk; nobody polls in between."""
    abort = run.first("abort", status="Failed")
    here = run.write(abort, "worker 9", "Transferring")
    here = run.add(here, "post", "worker 9", chunk=0)
    run.show(here, "Transferring")


@fault("success-not-overwritten")
def failed_over_success(run: Run) -> None:
    """An abort writes Failed over Success, and the next poll reads it."""
    written = run.first("write", status="Success", incoming="Success")
    if not run.mine("poll", status="Success"):
        raise NotHere
    here = run.add(written, "abort", "bootstrap", status="Failed")
    run.show(here, "Failed")


@fault("success-complete")
def before_the_last(run: Run) -> None:
    """Success is written before the last transfer has ended."""
    written = run.first("write", status="Success", incoming="Success")
    arrived = [i for i in run.mine("arrive") if i < written]
    run.move(arrived[-1], run.first("poll", status="Success"))


@fault("success-complete")
def without_a_transfer(run: Run) -> None:
    """Success, and its chunks were enqueued and never posted."""
    run.first("write", status="Success", incoming="Success")
    run.drop(
        *(i for op in ("post", "arrive", "take") for i in run.mine(op)), *run.mine("write", incoming="Transferring")
    )


@fault("no-lost-wakeup")
def wake_up_lost(run: Run) -> None:
    """Metadata is stored and WaitingForInput written, and create writes Bootstrapping over it: polled for ever."""
    run.first("infos")
    here = run.first("write", status="WaitingForInput", incoming="WaitingForInput")
    if here < run.first("create"):
        raise NotHere
    here = run.write(here, "scheduler", "Bootstrapping")
    for _ in range(50):
        here = run.add(here, "poll", "scheduler", status="Bootstrapping")
        run.events[here]["time"] += 20
    run.end(here)


@fault("no-ghost")
def ghost_of_metadata(run: Run) -> None:
    """Late metadata makes an entry after the request was cleared, and it stays."""
    _last_use(run)
    here = run.write(run.first("clear"), "bootstrap", "WaitingForInput")
    run.show(here, "WaitingForInput")


@fault("no-ghost")
def ghost_of_worker(run: Run) -> None:
    """A late worker makes a Transferring entry after the request was cleared, and it stays."""
    _last_use(run)
    here = run.write(run.first("settle"), "worker 0", "Transferring")
    run.show(here, "Transferring")


# --- Pins and settlement --------------------------------------------------------------------------


@fault("no-pin")
def pinned(run: Run) -> None:
    """A request in the inflight queue is polled as Transferring for a thousand seconds, and nobody works on it."""
    here = run.mine("arrive")[-1] if run.mine("arrive") else run.first("arrive")
    if not run.mine("write", incoming="Success", status="Success"):
        raise NotHere
    here = run.add(here, "end", run.events[here]["thread"])
    for _ in range(50):
        here = run.add(here, "poll", "scheduler", status="Transferring")
        run.events[here]["time"] += 20
    run.end(here)


@fault("settlement")
def never_cleared(run: Run) -> None:
    """The scheduler reads a terminal status, and the entry stays for ever; another room of this table goes on."""
    _last_use(run)
    cleared = run.first("clear")
    run.drop(cleared, *run.mine("forget"), *run.mine("release"), *run.mine("settle"))
    here, other = len(run.events) - 1, Run(run.events, attrs.evolve(run.key, room="another", request=1))
    for op, status in (
        ("create", "Bootstrapping"),
        ("poll", "Bootstrapping"),
        ("abort", "Failed"),
        ("clear", "Absent"),
    ):
        here = other.add(here, op, "scheduler", status=status)
        other.events[here]["time"] += 250


@fault("settlement")
def pages_leak(run: Run) -> None:
    """The request is settled and its pages never go back."""
    run.drop(run.first("release"))


# --- Pages ----------------------------------------------------------------------------------------


@fault("pages-held")
def released_under_transfer(run: Run) -> None:
    """The pages go back between a transfer's beginning and its end."""
    posted = run.first("post")
    run.drop(run.first("release"))
    run.add(posted, "release", "scheduler")


@fault("pages-held")
def posted_after_release(run: Run) -> None:
    """A transfer begins after the pages have gone back."""
    here = run.add(run.first("release"), "post", "worker 0", chunk=0)
    run.add(here, "arrive", "worker 0", chunk=0)


@fault("released-once")
def released_twice(run: Run) -> None:
    """The pages go back twice."""
    run.add(run.first("release"), "release", "worker 0")


# --- What is told ---------------------------------------------------------------------------------


@fault("one-outcome")
def told_otherwise(run: Run) -> None:
    """The sender reports Failed and decode is told Success."""
    run.first("conclude", incoming="Failed")
    run.events[run.first("tell", incoming="Failed")]["incoming"] = "Success"


@fault("one-outcome")
def told_failed(run: Run) -> None:
    """The sender reports Success and decode is told Failed."""
    run.first("conclude", incoming="Success")
    run.events[run.first("tell", incoming="Success")]["incoming"] = "Failed"


@fault("told-once")
def told_twice(run: Run) -> None:
    """Decode is told the same thing twice."""
    here = run.first("tell")
    run.add(here, "tell", "worker 0", incoming=run.events[here]["incoming"], peer=run.events[here]["peer"])


@fault("told-once")
def told_never(run: Run) -> None:
    """The request is settled as a Success, and decode was never told, though others were."""
    run.first("conclude", incoming="Success")
    run.drop(run.first("tell"))


@fault("told-once")
def told_in_next_life(run: Run) -> None:
    """Decode is told about a request when the next one has the room."""
    run.move(run.first("tell"), _next(run).first("create"))


# --- The next life of a room ----------------------------------------------------------------------


@fault("room-reusable")
def born_failed(run: Run) -> None:
    """The second request is created and finds the Failed of the first."""
    after = _next(run)
    here = after.first("create")
    after.events[here]["status"] = "Failed"
    after.show(here, "Failed")


@fault("room-reusable")
def old_abort(run: Run) -> None:
    """An abort of the first request fails the second."""
    after = _next(run)
    here = after.first("create")
    here = run.add(here, "abort", "bootstrap", status="Failed")
    run.show(here, "Failed")


@fault("room-reusable")
def old_metadata(run: Run) -> None:
    """Metadata of the first request is taken for the second's."""
    after = _next(run)
    here = after.first("create", status="Bootstrapping")
    run.write(here, "bootstrap", "WaitingForInput")
    for i in after.mine("poll", status="Bootstrapping"):
        after.events[i]["status"] = "WaitingForInput"


@fault("room-reusable")
def two_senders(run: Run) -> None:
    """A second sender is made for the id while the first lives, and polls nothing when the first has cleared."""
    _last_use(run)
    after = _next(run)
    here = after.add(run.first("write", incoming="WaitingForInput"), "create", "scheduler 2", status="WaitingForInput")
    here = run.first("clear")
    for _ in range(3):
        here = after.add(here, "poll", "scheduler 2", status="Absent")


# --- Threads, ranks, both ends --------------------------------------------------------------------


@fault("no-crash")
def thread_dies(run: Run) -> None:
    """A worker dies of KeyError."""
    run.events[run.first("end", thread="worker 0")]["error"] = "KeyError: 7"


@fault("one-outcome")
def ends_disagree(run: Run) -> None:
    """Prefill ends with Success on all ranks and decode with Failed, though it was told Success."""
    run.first("conclude", incoming="Success")
    decode = Run(run.events, Key(run.key.room, "decode-0", 0, run.key.request))
    here = decode.first("write", incoming="Success")
    run.events[here]["incoming"] = run.events[here]["status"] = "Failed"
    decode.show(here, "Failed")
    run.events[decode.first("conclude", incoming="Success")]["incoming"] = "Failed"


@fault("one-outcome")
def decode_succeeds_alone(run: Run) -> None:
    """Prefill ends with Failed and decode with Success."""
    run.first("conclude", incoming="Failed")
    decode = Run(run.events, Key(run.key.room, "decode-0", 0, run.key.request))
    here = decode.first("write", incoming="Failed")
    run.events[here]["incoming"] = run.events[here]["status"] = "Success"
    decode.show(here, "Success")
    run.events[decode.first("conclude", incoming="Failed")]["incoming"] = "Success"


@fault("one-outcome")
def ranks_disagree(run: Run) -> None:
    """One rank of prefill reports Failed to its scheduler, though all wrote Success."""
    run.first("conclude", incoming="Success")
    if run.key.rank == 0:
        raise NotHere
    here = run.first("conclude")
    run.events[here]["incoming"] = "Failed"
