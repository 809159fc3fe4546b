"""What foreign code may do to the process that runs it: tasks for ``test_process.py``, called in a child."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from kvlatch.reference.faults import Refused
from kvlatch.reference.foreign import recorder
from kvlatch.reference.foreign.child import Work

BIG = 300_000


def answers(work: Work, value: object) -> object:
    """Report, print, and answer; threads and ``atexit`` handlers that never end are nobody's problem."""
    work.report({"part": 1})
    print("printed")
    forever = threading.Event()
    threading.Thread(target=forever.wait).start()
    atexit.register(forever.wait)
    return value


def floods(_work: Work) -> object:
    """Print more than a pipe holds, and more than anybody wants to read."""
    print("x" * BIG)
    sys.stderr.write("y" * BIG)
    return "done"


def closes_everything(_work: Work) -> object:
    """As a daemon does, with its current folder too."""
    os.closerange(0, 4096)
    os.chdir("/")
    return "still here"


def forks(_work: Work) -> object:
    """Two processes come back from here; one is the child."""
    os.fork()
    return "one answer"


def leaves_a_process(work: Work, command: list[str]) -> object:
    """Somebody else is left behind, with the pipe of this process open."""
    process = subprocess.Popen(command)
    work.report({"pid": process.pid})
    recorder.step("leaving")
    os._exit(5)


def exits(_work: Work) -> object:
    """As ``sys.exit`` deep inside does."""
    sys.exit(3)


def leaves(_work: Work) -> object:
    """Without a word to Python."""
    recorder.step("a step before")
    recorder.step("leaving")
    os._exit(0)


def crashes(_work: Work) -> object:
    """As a faulty extension does."""
    recorder.step("reading address 0")
    return ctypes.string_at(0)


def is_killed(_work: Work) -> object:
    """As by a system that has run out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def sleeps(_work: Work) -> object:
    """Nobody will ever wake it up."""
    recorder.step("sleeping")
    threading.Event().wait()
    return None


def ignores_signals(_work: Work) -> object:
    """It cannot be asked for its stacks."""
    for number in (signal.SIGABRT, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    recorder.step("sleeping")
    threading.Event().wait()
    return None


def spins(_work: Work) -> object:
    """It works hard at nothing."""
    recorder.step("spinning")
    while True:
        pass


def keeps_the_interpreter(_work: Work) -> object:
    """C code that never gives Python's lock back."""
    recorder.step("in C")
    return ctypes.PyDLL(None).pause()


def works_on(_work: Work, seconds: float) -> object:
    """It is slow, but it shows that it works."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        recorder.now("working")
    return "done"


def raises(_work: Work) -> object:
    """Something that no ``except Exception`` catches."""
    raise KeyboardInterrupt("by itself")


def refuses(_work: Work) -> object:
    """It cannot be judged, and says so."""
    raise Refused("not this", 2)


def where(_work: Work) -> object:
    """Where modules are looked for, and where this runs."""
    return [str(Path.cwd()), sys.path]
