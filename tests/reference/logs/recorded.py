"""A recorded process that runs published SGLang: ``python -m tests.reference.logs.recorded WHEEL BACKEND PLAY``.

The import hook is there already, put in place by ``sitecustomize``. The modules, managers, senders and loops are
upstream's own, as ``kvlatch.reference.published.sglang`` drives them; the tables are the ones of its driver, under the
recorder's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from kvlatch.reference.logs.recording.methods import CONTAINED
from kvlatch.reference.logs.recording.senders import RECORDER
from kvlatch.reference.published.sglang.child.room import Room
from kvlatch.reference.published.sglang.child.upstream import PACKAGE, Upstream, WheelFinder

HEALTHY = ("create", "metadata", "poll", "send", "work", "send_last", "work", "poll", "settle")


def room_of(upstream: Upstream) -> Room:
    """A room whose manager was recorded from the first line of its constructor on."""
    room = Room(upstream)
    for name in CONTAINED:
        if name in vars(room.manager):  # put there behind the back of `__setattr__`
            setattr(room.manager, name, vars(room.manager)[name])
    return room


def play(room: Room, *ops: str) -> None:
    """Do these, one after the other."""
    for op in ops:
        room.act(op, None)


def healthy(room: Room) -> None:
    """One request, to its end."""
    play(room, *HEALTHY)


def twice(room: Room) -> None:
    """Two requests on one id, one after the other."""
    play(room, *HEALTHY, *HEALTHY)


def aborted(room: Room) -> None:
    """Decode gives up while a chunk is queued."""
    play(room, "create", "metadata", "poll", "send_last", "abort_notice", "work", "poll", "settle")


def left(room: Room) -> None:
    """Aborted, and never cleared, while the engine goes on."""
    play(room, "create", "metadata", "send", "abort", "work", "poll")
    room.manager.update_status(8, room.upstream.values["Bootstrapping"])


def lost(room: Room) -> None:
    """Decode gives up between a worker's look at the status and its store."""

    class Racing(dict[int, Any]):
        fired = False

        def get(self, key: int, default: Any = None) -> Any:
            status = super().get(key, default)
            self.race(sys._getframe(1).f_code.co_name)
            return status

        def __getitem__(self, key: int) -> Any:
            status = super().__getitem__(key)
            self.race(sys._getframe(1).f_code.co_name)
            return status

        def race(self, who: str) -> None:
            if threading.current_thread().name == "worker" and who == "update_status" and not Racing.fired:
                Racing.fired = True
                other = threading.Thread(target=room.act, args=("abort_notice", None), name="bootstrap")
                other.start()
                other.join()

    play(room, "create", "metadata", "poll", "send_last")
    racing = Racing(vars(room.manager)["request_status"])
    room.manager.request_status = racing
    worker = threading.Thread(target=room.act, args=("work", None), name="worker")
    worker.start()
    worker.join()
    play(room, "poll")


def killed(room: Room) -> None:
    """SIGKILL, when all that has happened was written down."""
    play(room, *HEALTHY, "create", "metadata", "send")
    vars(room.manager)[RECORDER].tape.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def children(room: Room) -> None:
    """One request here, then one in a process that is forked, and one in a process that is started afresh."""
    healthy(room)
    if (child := os.fork()) == 0:
        healthy(room)
        vars(room.manager)[RECORDER].close()
        os._exit(0)
    os.waitpid(child, 0)
    again = [sys.executable, "-m", "tests.reference.logs.recorded", *sys.argv[1:3], "healthy"]
    subprocess.run(again, check=True)
    healthy(room)


PLAYS: dict[str, Callable[[Room], None]] = {
    play.__name__: play for play in (healthy, twice, aborted, left, lost, killed, children)
}


def main() -> None:
    """Load the wheel below the hook, and play."""
    wheel, backend, name = sys.argv[1:]
    sys.meta_path.insert(1, WheelFinder(wheel))
    import_module(f"{PACKAGE}.{backend}.conn")
    room = room_of(Upstream(wheel, backend))
    PLAYS[name](room)
    foreign = {module.partition(".")[0] for module in sys.modules} & {"attr", "attrs", "click", "rich"}
    if foreign:
        raise SystemExit(f"the recorder has loaded {', '.join(foreign)} into a foreign process")


if __name__ == "__main__":
    main()
