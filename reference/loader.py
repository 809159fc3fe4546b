"""What a user names as ``MODULE:NAME``: their manager, their design. One way to import it, one line if that fails."""

from __future__ import annotations

import importlib
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType
from typing import ClassVar


class NotLoadable(ValueError):
    """The user's name leads to nothing that can be used; the message is one line and says why."""

    exit_code: ClassVar[int] = 2


def load(name: str) -> object:
    """The object that ``MODULE:NAME`` names; the current folder is importable.

    Raises NotLoadable if the name is malformed, or if the module cannot be imported for whatever reason: it is missing,
    has a syntax error, raises, or exits.
    """
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module.split(".")) or not attribute.isidentifier():
        raise NotLoadable(f"{name!r} is not MODULE:NAME, as in my_package.my_module:MyName")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with redirect_stdout(sys.stderr):  # standard output is for reports
            return getattr(importlib.import_module(module), attribute)
    except SystemExit as error:
        raise NotLoadable(f"{name}: importing {module} exits (sys.exit({error.code!r}))") from error
    except SyntaxError as error:
        raise NotLoadable(f"{name}: {error.msg} ({error.filename}, line {error.lineno})") from error
    except (ImportError, AttributeError) as error:
        raise NotLoadable(f"{name}: {_place(error)}") from error
    except BaseException as error:  # the user's module may raise anything while it is imported
        raise NotLoadable(f"{name}: {type(error).__name__}: {_place(error)}") from error


def _place(error: BaseException) -> str:
    """What went wrong, with the last line of the user's own code on the way there."""
    text = " ".join(str(error).split())
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_theirs(frame)]
    if not frames:
        return text
    frame, line = frames[-1]
    file = Path(frame.f_code.co_filename)
    return f"{text} ({file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}, line {line})"


def _is_theirs(frame: FrameType) -> bool:
    """Neither ours, nor of Python or attrs, nor generated."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    ours = package in ("kvlatch", "attr", "attrs") or package in sys.stdlib_module_names
    return not ours and not frame.f_code.co_filename.startswith("<")
