"""The child: does one task with foreign code, and reports what it finds out, one JSON object a line.

It is told the folder in which its parent has put the request, and where the report goes. Nothing that the foreign code
does to the standard streams, to files that are open or to the current folder reaches the report, since each line opens
the report's file anew. The process ends with its task: threads and ``atexit`` handlers that are left get no say.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs

from kvlatch.reference.faults import AdapterFault, Refused
from kvlatch.reference.foreign import recorder
from kvlatch.reference.loader import NotLoadable, load

REQUEST: Final = "request.json"
REPORTS: Final = "reports.ndjson"
RECORDER: Final = "recorder"
STACKS: Final = "stacks.txt"
IMPORTING: Final = "the import of "
"""How the recorder says that foreign code is being imported."""

_exit: Final = os._exit


@attrs.frozen
class Work:
    """What a task is given beside its arguments: the folder that it shares with its parent, and how to report."""

    folder: Path
    report: Callable[[Mapping[str, object]], None]


def main(folder: str) -> NoReturn:
    """Do what the request in a folder says: call ``function`` of ``module`` with a :class:`Work` and ``arguments``."""
    at = Path(folder)
    _settle_down(at)
    me = os.getpid()
    reports = at / REPORTS

    def report(members: Mapping[str, object]) -> None:
        if os.getpid() != me:
            _exit(1)  # the foreign code has forked, and this copy has come back from there
        with reports.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(members)}\n")

    request = json.loads((at / REQUEST).read_text("utf-8"))
    try:
        task = getattr(importlib.import_module(request["module"]), request["function"])
        recorder.now("")
        report({"answer": task(Work(at, report), **request["arguments"])})
    except (AdapterFault, NotLoadable, Refused) as error:
        report({"refused": str(error), "code": error.exit_code})
    except BaseException as error:  # noqa: BLE001  # foreign code may raise anything, anywhere
        report({"raised": type(error).__name__, "says": str(error), "traceback": traceback.format_exc(),
                "places": _places(error)})  # fmt: skip
    _exit(0)


def _settle_down(at: Path) -> None:
    """Leave stacks behind when this process ends, print on the error stream alone, and do not outlive the parent."""
    recorder.keep(recorder.Recorder.open(at / RECORDER))
    stacks = (at / STACKS).open("wb", buffering=0)
    high = _out_of_the_way(stacks.fileno())
    faulthandler.enable(high, all_threads=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _end_with_parent()
    me = os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() == me:
            with suppress(OSError, ValueError):
                faulthandler.dump_traceback(high, all_threads=False)
        _exit(status)

    os._exit = leave


def _out_of_the_way(number: int) -> int:
    """The same file under a number that code which closes files by their numbers hardly uses."""
    import fcntl

    for high in (999, 250):
        with suppress(OSError, ValueError):
            return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, high)
    return number


def _end_with_parent() -> None:
    """Where the system can see to that: a parent that is killed cannot end anybody."""
    if sys.platform == "linux":
        import ctypes
        import signal

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _places(error: BaseException) -> list[tuple[str, int, str]]:
    """Where an exception has come through, innermost first."""
    frames: list[Any] = list(traceback.walk_tb(error.__traceback__))
    return [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in reversed(frames)]


# --- Importing ------------------------------------------------------------------------------------------------------


def loaded(name: str) -> object:
    """What a name leads to; each module that is imported on the way there is a sign of life."""
    recorder.now(f"{IMPORTING}{name.partition(':')[0]}")
    signs = _Signs()
    sys.meta_path.insert(0, signs)
    try:
        return load(name)
    finally:
        if signs in sys.meta_path:
            sys.meta_path.remove(signs)
        recorder.now("")


class _Signs:
    """A finder that finds nothing, but shows that imports go on."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        recorder.now(f"{IMPORTING}{name}")
