"""Start the recorder in a process whose environment asks for it. Python imports this before anything else.

The process need not know kvlatch: its package is loaded from where this file is, and nothing is added to the path. A
``sitecustomize`` of the system or of the user, which this one hides, is run as well.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def _load(name: str, path: Path, folders: list[str]) -> None:
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _start() -> None:
    here = Path(__file__).resolve().parent
    hidden = PathFinder.find_spec("sitecustomize", [path for path in sys.path if Path(path).resolve() != here])
    if hidden is not None and hidden.loader is not None:
        hidden.loader.exec_module(importlib.util.module_from_spec(hidden))
    if not os.environ.get("KVLATCH_RECORD"):
        return
    try:
        if importlib.util.find_spec("kvlatch") is None:
            package = Path(os.environ["KVLATCH_PACKAGE"])
            _load("kvlatch", package / "__init__.py", [str(package)])
        from kvlatch.reference.logs.recording.sglang import install_from_environment

        install_from_environment()
    except Exception as error:  # noqa: BLE001  # the server starts without a recording
        sys.stderr.write(f"kvlatch: nothing is recorded: {type(error).__name__}: {error}\n")


if __name__ == "sitecustomize":
    _start()
