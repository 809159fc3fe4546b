"""Lays the classes of an overlay over upstream's own, in an engine that runs; `conform` does the same in its child."""

from __future__ import annotations

import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace
from typing import Any, Final

from kvlatch.reference.live.upstream.backend import Backend
from kvlatch.reference.live.upstream.load import SRT

_PARTS: Final = {"manager": "KVManager", "sender": "KVSender", "receiver": "KVReceiver"}


def lay_over(path: str, name: str, scheduler: Any, backend: Backend) -> None:
    """The classes `Manager`, `Sender`, `Receiver` and `Scheduler` of a file come before upstream's own.

    Its function `lay_over`, if it has one, is given upstream's classes first. ``scheduler`` is the module that has the
    scheduler, ``name`` what the file is called as a module.
    """
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    overlay: Any = module_from_spec(spec)
    sys.modules[name] = overlay
    spec.loader.exec_module(overlay)
    code = SimpleNamespace(
        conn=backend.modules[1],
        utils=importlib.import_module(f"{SRT}.disaggregation.utils"),
        scheduler=scheduler.Scheduler,
        **{part: backend.get(upstream) for part, upstream in _PARTS.items()},
    )
    if hasattr(overlay, "lay_over"):
        overlay.lay_over(code)
    for part in (*_PARTS, "scheduler"):
        if (over := getattr(overlay, part.capitalize(), None)) is not None:
            under = getattr(code, part)
            setattr(code, part, type(under)(under.__name__, (over, under), {}))
    scheduler.Scheduler = code.scheduler
    for part, upstream in _PARTS.items():
        backend.put(upstream, getattr(code, part))
