"""``kvlatch record``: run a server, and write down what its managers do to their requests."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import FrameType

import click

from kvlatch.commands.exits import UNKNOWN, USAGE, Failure


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--into", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), show_default=True,
              default=Path("kvlatch-logs"), help="Where the logs go, one for each manager.")  # fmt: skip
@click.option("--node", metavar="NAME", help="What this engine is called in its logs; else ROLE@HOST.")
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
def record(into: Path, node: str | None, command: tuple[str, ...]) -> int:
    """Record a server that moves KV caches: SGLang, started as ever, with no change to it.

    Its managers are watched in this process and in all that it starts: each writes an event log, which `kvlatch check
    FOLDER` judges, also while it is written and after the server was killed.

    The exit code is that of the command; 3 if that is 0 and nothing was recorded.
    """
    import kvlatch
    from kvlatch.reference.logs.recording.sglang import FOLDER, NODE

    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{into}: {error.strerror or error}", USAGE) from error
    before = {*into.iterdir()}
    package = Path(kvlatch.__file__).parent
    start = package / "reference" / "logs" / "recording" / "start"
    path = os.pathsep.join(filter(None, (str(start), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, FOLDER: str(into.resolve()), "KVLATCH_PACKAGE": str(package)}
    if node:
        environment[NODE] = node
    try:
        server = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise Failure(f"{command[0]}: {error.strerror or error}", USAGE) from error

    def hand_on(number: int, _: FrameType | None) -> None:
        server.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hand_on)
    while True:
        try:
            code = server.wait()
            break
        except KeyboardInterrupt:  # the terminal has sent it to the server as well
            continue
    logs = {*into.glob("*.ndjson")} - before
    if logs:
        click.echo(f"kvlatch: {len(logs)} log{'s' * (len(logs) > 1)} in {into}: kvlatch check {into}", err=True)
    else:
        click.echo("kvlatch: nothing was recorded: no process has made a manager that kvlatch can watch", err=True)
    return 128 - code if code < 0 else code or (0 if logs else UNKNOWN)
