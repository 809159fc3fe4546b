"""The command line. A command's module is imported when the command is used, so that ``--help`` answers at once.

What the exit codes mean is in ``exits.py``.
"""

from __future__ import annotations

import errno
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

import click

from kvlatch.commands import streams
from kvlatch.commands.exits import CANNOT, INTERNAL, INTERRUPTED, USAGE, Failure

COMMANDS: Final = {
    "atlas": "Count the merges: which tables obey which laws, and why no renumbering of the statuses is a fix.",
    "check": "Check an event log: the first violation of each room, final statuses, pinned rooms.",
    "conform": "Hold a manager against the laws: your adapter, a program in any language, or a published version.",
    "convert": "Convert SGLang's text logs or its OpenTelemetry spans into an event log.",
    "explore": "Write a page: the run of a trace, a room of a log, or a design to play with.",
    "prove": "Decide properties of designs, for any run of an instance.",
    "recheck": "Check certificates with cvc5 alone.",
    "record": "Run SGLang and write down what its managers do: an event log for each process.",
    "replay": "Execute a trace again: on the spec, or on the unmodified code of a published sglang wheel.",
    "show": "Show a trace, or one room of an event log, and say what went wrong.",
    "storm": "Storm a live prefill/decode system with clients that hang up.",
    "vectors": "Write test vectors for managers in any language.",
}
"""Each command, and its line in ``kvlatch --help``; ``kvlatch.commands.NAME`` defines a function of that name."""


_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_Z3_INTERRUPTED: Final = "interrupted from keyboard"
"""Z3 takes Ctrl-C itself while it works, and says so as its reason not to know."""


class _Commands(click.Group):
    """A group whose commands are imported one by one, when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"kvlatch.commands.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def main() -> NoReturn:
    """Run the command line, and exit with its code; an uncaught exception exits with 70."""
    streams.guard()
    try:
        code = _exit_code()
        sys.stdout.flush()  # here, and not when Python ends: a full disk is one line
    except Failure as failure:
        click.echo(f"kvlatch: {failure}", err=True)
        code = failure.code
    sys.exit(code)


def _exit_code() -> int:
    try:
        return int(cli.main(prog_name="kvlatch", standalone_mode=False))
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        raise Failure(_one_line(error), error.exit_code) from error
    except (KeyboardInterrupt, click.Abort):
        raise Failure("interrupted", INTERRUPTED) from None
    except Failure:
        raise
    except SystemExit as error:  # no code of ours exits like that: what was loaded or called for the user did
        raise Failure(f"the code under test called sys.exit({error.code!r})", USAGE) from error
    except OSError as error:
        if (failure := _of_the_system(error)) is not None:
            raise failure from error
        return _internal()
    except Exception as error:  # noqa: BLE001  # whatever it is, it must not exit with 1 and read as "violated"
        if _Z3_INTERRUPTED in str(error):
            raise Failure("interrupted", INTERRUPTED) from None
        return _internal()


def _of_the_system(error: OSError) -> Failure | None:
    """A file that cannot be read or written, as the user should read it; None for an error of ours."""
    if error.errno in _FULL:
        place = "" if error.filename is None else f"{error.filename}: "
        return Failure(f"{place}the output cannot be written: {error.strerror}", CANNOT)
    if isinstance(error, FileNotFoundError) and not _is_somewhere():
        return Failure("the current folder does not exist any more: cd to another one", USAGE)
    return None if error.filename is None else Failure(f"{error.filename}: {error.strerror}", USAGE)


def _is_somewhere() -> bool:
    with suppress(FileNotFoundError):
        return Path.cwd().exists()
    return False


def _one_line(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    said = " ".join(error.format_message().split())
    return f"{said} (see {context.command_path} --help)" if context and isinstance(error, click.UsageError) else said


def _internal() -> int:
    traceback.print_exc()
    click.echo("kvlatch: internal error, please report it with the lines above", err=True)
    return INTERNAL


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvlatch")
def cli() -> None:
    """Prove, refute and replay request-status managers of disaggregated LLM serving.

    `kvlatch prove` decides every design; `kvlatch show TRACE` reads a counterexample; `kvlatch replay TRACE --on
    sglang==VERSION` executes it on published code.
    """
