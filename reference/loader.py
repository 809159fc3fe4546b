"""What a user names as ``MODULE:NAME``: their manager, their design. One way to import it, one line if that fails."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
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
        return getattr(importlib.import_module(module), attribute)
    except SystemExit as error:
        raise NotLoadable(f"{name}: importing {module} exits (sys.exit({error.code!r}))") from error
    except SyntaxError as error:
        raise NotLoadable(f"{name}: {error.msg} ({error.filename}, line {error.lineno})") from error
    except (ImportError, AttributeError) as error:
        raise NotLoadable(f"{name}: {_place(error)}") from error
    except Exception as error:  # the user's module may raise anything while it is imported
        raise NotLoadable(f"{name}: {type(error).__name__}: {_place(error)}") from error


def _place(error: Exception) -> str:
    """What went wrong, with the user's own file and line where it was raised there."""
    text = " ".join(str(error).split())
    last = traceback.extract_tb(error.__traceback__)[-1]
    mine = Path(__file__).name, "importlib"
    return text if any(name in last.filename for name in mine) else f"{text} ({last.filename}, line {last.lineno})"
