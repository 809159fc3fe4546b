"""Record SGLang without a change to it: its managers, senders and receivers are watched as soon as they are imported.

``install`` puts a finder in front of Python's own that does one thing: when SGLang's connection modules have been
executed, their classes are watched. A manager is recorded from the first statement of its constructor, since that
starts threads.

What is needed is looked up, not assumed: a manager without a dictionary ``request_status`` and an ``update_status``, or
with other numbers for its statuses, gets one line, and nothing of it is recorded.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kvlatch.reference.logs.recording.methods import CONTAINED, TABLE, UPDATE, Unknown, contain, recorder_for
from kvlatch.reference.logs.recording.recorder import Recorder
from kvlatch.reference.logs.recording.senders import RECORDER, REQUEST, recorder_of, watch
from kvlatch.reference.logs.recording.tape import STATUS, say

FOLDER: Final = "KVLATCH_RECORD"
"""The environment variable with the folder that the logs go to ..."""
NODE: Final = "KVLATCH_RECORD_NODE"
"""... and the one with the name of this engine in them."""
_PACKAGE: Final = "sglang.srt.disaggregation"
_CONN: Final = tuple(f"{_PACKAGE}.{backend}.conn" for backend in ("common", "nixl", "mooncake", "mori", "ascend"))
_MEMORY: Final = "sglang.srt.mem_cache.common"
_RELEASE: Final = "release_kv_cache"
_PINS: Final = Path(__file__).parents[2] / "published" / "sglang" / "wheels.txt"
_DONE: Final = "_kvlatch_hooked"


class Hook:
    """A finder for the modules that are watched, and the loader that does so; the real ones do their work."""

    def __init__(self, folder: Path, node: str | None = None) -> None:
        self.folder = folder
        self.node = node
        self.releases = False
        self._asking = threading.local()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The spec that all other finders give, whose loader calls ``loaded`` afterwards."""
        if name not in (*_CONN, _MEMORY) or getattr(self._asking, "name", None) == name:
            return None
        self._asking.name = name
        try:
            spec = find_spec(name)
        finally:
            self._asking.name = None
        if spec is not None and spec.loader is not None:
            spec.loader = Watching(spec.loader, self.loaded)  # type: ignore[assignment]  # a loader by what it does
        return spec

    def loaded(self, module: ModuleType) -> None:
        """Watch what a module has defined."""
        if module.__name__ == _MEMORY and callable(release := getattr(module, _RELEASE, None)):
            self.releases = True
            setattr(module, _RELEASE, functools.wraps(release)(_releasing(release)))
        for name, value in [*vars(module).items()]:
            if isinstance(value, type) and value.__module__ == module.__name__:
                if name.endswith("KVManager"):
                    self.hook(value)
                elif name.endswith(("KVSender", "KVReceiver")):
                    watch(value)

    def hook(self, cls: type) -> None:
        """Record each manager of this class, or one derived from it, that will be made."""
        if "__init__" in vars(cls):
            setattr(cls, "__init__", functools.wraps(vars(cls)["__init__"])(self._making(vars(cls)["__init__"])))  # noqa: B010  # mypy knows no other way
        if not hasattr(cls.__setattr__, _DONE):
            setter = _setting(cls.__setattr__)
            setattr(setter, _DONE, True)
            setattr(cls, "__setattr__", setter)  # noqa: B010  # as above

    def _making(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(manager: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807  # it is one
            if recorder_of(manager) is None and _DONE not in vars(manager):
                vars(manager)[_DONE] = True
                self._start(manager, *arguments, **named)
                method(manager, *arguments, **named)
                recorder = recorder_of(manager)
                if recorder is not None and recorder.table is not vars(manager).get(TABLE):
                    _abandon(manager, recorder, f"its constructor made no {TABLE}")
            else:
                method(manager, *arguments, **named)

        return __init__

    def _start(self, manager: Any, args: Any = None, mode: Any = None, *_: Any, **named: Any) -> None:
        try:
            _check(manager)
            args, mode = named.get("args", args), named.get("disaggregation_mode", mode)
            said = str(getattr(mode, "value", mode)).lower()
            rank = _rank(args)
            node = self.node or f"{said}@{socket.gethostname()}"
            path = self.folder / f"{said}-{rank}"
            about = f"{type(manager).__name__} of sglang {_version()}"
            recorder = recorder_for(
                manager, path, prefill=said == "prefill", releases=self.releases, node=node, rank=rank, about=about
            )
            say(f"{about} is recorded into {recorder.tape.path}")
        except Exception as error:  # noqa: BLE001  # whatever it is: the server goes on without a recording
            say(f"{type(manager).__name__} of sglang {_version()} is not recorded: {error}")


class Watching:
    """A loader that calls back when it has executed its module."""

    def __init__(self, loader: Any, loaded: Callable[[ModuleType], None]) -> None:
        self.loader = loader
        self.loaded = loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        try:
            self.loaded(module)
        except Exception as error:  # noqa: BLE001  # the server goes on without a recording
            say(f"nothing of {module.__name__} is recorded: {type(error).__name__}: {error}")


def install(folder: Path, node: str | None = None) -> Hook:
    """Record every manager that this process will make, into that folder."""
    hook = Hook(folder, node)
    sys.meta_path.insert(0, hook)
    return hook


def install_from_environment() -> None:
    """The same, if the environment says where to; never raises."""
    if folder := os.environ.get(FOLDER):
        install(Path(folder), os.environ.get(NODE))


def _setting(method: Callable[..., None]) -> Callable[..., None]:
    """What the constructor keeps goes into watched containers before any thread can see it."""

    def __setattr__(manager: Any, name: str, value: Any) -> None:  # noqa: N807  # it is one
        if name in CONTAINED and (recorder := recorder_of(manager)) is not None:
            try:
                value = contain(recorder, name, value)
            except Exception as error:  # noqa: BLE001  # the server goes on without a recording
                _abandon(manager, recorder, str(error))
        method(manager, name, value)

    return __setattr__


def _abandon(manager: Any, recorder: Recorder, why: str) -> None:
    """Rather nothing than half of it."""
    vars(manager).pop(RECORDER, None)
    recorder.tape.stop(f"{type(manager).__name__} of sglang {_version()} cannot be recorded: {why}; the log is deleted")
    recorder.tape.path.unlink(missing_ok=True)


def _check(manager: Any) -> None:
    if not callable(getattr(manager, UPDATE, None)):
        raise Unknown(f"it has no {UPDATE}")
    base = sys.modules.get(f"{_PACKAGE}.base.conn")
    poll = vars(getattr(base, "KVPoll", object))
    numbers = {name: poll.get(name) for name in STATUS}
    if [*numbers.values()] != [*range(len(STATUS))]:
        raise Unknown(f"its statuses are {numbers}")


def _rank(args: Any) -> str:
    """The rank of a manager in its engine: its tensor-parallel rank, after the others that are not 0."""
    given = {name: getattr(args, name, None) for name in ("system_dp_rank", "pp_rank", "engine_rank")}
    known = {name: value for name, value in given.items() if type(value) is int}
    others = [f"{name.removesuffix('_rank').removeprefix('system_')}{value}" for name, value in known.items()
              if name != "engine_rank" and value]  # fmt: skip
    return "-".join([*others, str(known.get("engine_rank", 0))])


def _version() -> str:
    """The version, and a remark if kvlatch has never been tried with it."""
    try:
        version = metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return "of an unknown version"
    try:
        known = {line.split()[0] for line in _PINS.read_text(encoding="utf-8").splitlines() if line.strip()}
    except OSError:
        known = set()
    return version if version in known else f"{version} (which kvlatch was not tried with)"


def _releasing(method: Callable[..., Any]) -> Callable[..., Any]:
    """A request gives its pages back, if it has any."""

    def release_kv_cache(req: Any, *arguments: Any, **named: Any) -> Any:
        try:
            sender: Any = getattr(req, "disagg_kv_sender", None)
            recorder = recorder_of(getattr(sender, "kv_mgr", None))
            if recorder is not None and _holds(req):
                recorder.released(sender.bootstrap_room, vars(sender).get(REQUEST))
        except Exception as error:  # noqa: BLE001  # the server goes on without a recording
            say(f"the release of pages is not recorded: {type(error).__name__}: {error}")
        return method(req, *arguments, **named)

    return release_kv_cache


def _holds(req: Any) -> bool:
    kept: Any = getattr(req, "kv", None)
    return bool(kept.holds_kv) if hasattr(kept, "holds_kv") else getattr(req, "req_pool_idx", None) is not None
