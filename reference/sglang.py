"""Runs scripts on the real status managers of published sglang wheels.

A *script* is a list of steps, each an op in a named thread. What the ops call is upstream's own
code, unmodified, from a wheel pinned by its hash. It runs in a child process under a time limit and
without a GPU, and what an observer sees after each step comes back.

An op may be split: `begin` stops its thread just before the next store into the status table, and
`finish` lets it go on. So any interleaving of an unlocked read and write is reached at will,
without sleeping and without luck:

    script = [
        Step("scheduler", "create"),
        Step("worker 0", "write", "begin", "Transferring"),
        Step("bootstrap", "write", status="Failed"),
        Step("worker 0", "write", "finish"),
    ]
    [seen] = run("0.5.23", "nixl", script)
    assert seen[-1].status == "Transferring"
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import attrs

Op = Literal[
    "create",  # construct the sender, whose constructor writes Bootstrapping
    "write",  # update_status with the step's status
    "register",  # metadata of the first of two decode ranks reaches the bootstrap thread
    "abort_notice",  # ABORT from decode reaches the bootstrap thread, or one that would expect it
    "abort",  # the sender's abort
    "poll",  # the sender's poll
    "pop_infos",  # the room's transfer_infos are dropped
    "clear",  # the sender's clear
    "timeout",  # the sender's poll, once the time to bootstrap is used up
]
Part = Literal["whole", "begin", "finish"]

BACKENDS = ("common", "nixl", "mooncake")
STATUSES = ("Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success")
ABSENT = "Absent"

_CHILD = Path(__file__).with_name("sglang_child.py")
_PINS = Path(__file__).with_name("sglang_wheels.txt")
_OF_SENDER = frozenset({"abort", "poll", "clear", "timeout"})
_DOWNLOAD_LIMIT = 600.0


class SglangError(Exception):
    """Base of what this module raises; `exit_code` is what the command line makes of it."""

    exit_code: ClassVar[int]


class UnknownVersion(SglangError):
    """No wheel of that version is pinned."""

    exit_code = 2


class UnknownBackend(SglangError):
    """That version has no such backend."""

    exit_code = 2


class AdapterFault(SglangError):
    """The script could not be carried out: a crash, a time-out, an answer that is none."""

    exit_code = 3


class CannotFetch(SglangError):
    """The wheel is not in the cache and could not be downloaded."""

    exit_code = 4


class WheelMismatch(SglangError):
    """The wheel is not the pinned one."""

    exit_code = 4


@attrs.frozen
class Step:
    """One step of a script. The status belongs to `write`; its `finish` need not repeat it."""

    thread: str
    op: Op = attrs.field(validator=attrs.validators.in_(get_args(Op)))
    part: Part = attrs.field(default="whole", validator=attrs.validators.in_(get_args(Part)))
    status: str | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.in_(STATUSES)))

    def __attrs_post_init__(self) -> None:
        if self.op != "write" and self.status is not None:
            raise ValueError(f"{self.op} takes no status")
        if self.op == "write" and self.status is None and self.part != "finish":
            raise ValueError("write needs a status")


Script = Sequence[Step]


@attrs.frozen
class Observation:
    """What is seen after a step.

    `status` is the room's entry in the table, `infos` whether decode's metadata is stored. `value`
    is what the poll returned, `error` what the real code raised ("KeyError: 7"); both belong to the
    step at which the op ended. `held` says that the op waits before a store.
    """

    status: str = attrs.field(validator=attrs.validators.in_((ABSENT, *STATUSES)))
    infos: bool = attrs.field(validator=attrs.validators.instance_of(bool))
    value: str | None = attrs.field(validator=attrs.validators.optional(attrs.validators.in_(STATUSES)))
    held: bool = attrs.field(validator=attrs.validators.instance_of(bool))
    error: str | None = attrs.field(validator=attrs.validators.optional(attrs.validators.instance_of(str)))


# --- Wheels ---------------------------------------------------------------------------------------


@attrs.frozen
class _Pin:
    version: str
    filename: str
    sha256: str


@functools.cache
def _pins() -> dict[str, _Pin]:
    lines = _PINS.read_text(encoding="utf-8").splitlines()
    pins = [_Pin(*line.split()) for line in lines if not line.startswith("#")]
    return {pin.version: pin for pin in pins}


def versions() -> tuple[str, ...]:
    """The versions that are pinned, oldest first."""
    return tuple(_pins())


def fetch(version: str) -> Path:
    """The pinned wheel of a version, from the cache or else downloaded by pip.

    The hash is checked at every call. Concurrent calls, of several processes too, are safe.
    Raises UnknownVersion, CannotFetch or WheelMismatch.
    """
    try:
        pin = _pins()[version]
    except KeyError:
        raise UnknownVersion(f"sglang {version} is not pinned; known: {', '.join(versions())}") from None
    wheel = _cache() / pin.filename
    if not wheel.exists():
        _download(pin, wheel)
    _verify(pin, wheel)
    return wheel


def backends(version: str) -> tuple[str, ...]:
    """The backends of a version that can be run. Raises as `fetch` does."""
    return _backends(fetch(version))


def _backends(wheel: Path) -> tuple[str, ...]:
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    return tuple(b for b in BACKENDS if f"sglang/srt/disaggregation/{b}/conn.py" in files)


def _cache() -> Path:
    if own := os.environ.get("KVLATCH_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvlatch"


def _download(pin: _Pin, wheel: Path) -> None:
    """Puts the wheel into the cache in one move, so that nobody ever sees a part of it."""
    try:
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheel.parent) as folder:
            _pip_download(pin, folder)
            downloaded = Path(folder, pin.filename)
            if not downloaded.exists():
                raise CannotFetch(f"sglang {pin.version}: pip brought no {pin.filename}")
            _verify(pin, downloaded)
            downloaded.replace(wheel)
    except OSError as error:
        raise CannotFetch(f"sglang {pin.version}: {error}") from error


def _pip_download(pin: _Pin, folder: str) -> None:
    command = [sys.executable, "-m", "pip", "download", f"sglang=={pin.version}"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", folder]
    command += ["--python-version", "3.11", "--implementation", "cp"]
    command += ["--platform", "manylinux_2_34_x86_64"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2"]
    try:
        pip = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise CannotFetch(f"sglang {pin.version}: pip took more than {_DOWNLOAD_LIMIT:g} s") from None
    if pip.returncode != 0:
        errors = [line for line in pip.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1] if errors else _last_line(pip.stderr)
        raise CannotFetch(f"sglang {pin.version}: {reason}")


def _verify(pin: _Pin, wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != pin.sha256:
        raise WheelMismatch(f"{wheel}: sha256 is {found}, pinned is {pin.sha256}; delete the file to fetch it again")


# --- Scripts --------------------------------------------------------------------------------------


def run(
    version: str, backend: str, script: Script, *, repeat: int = 1, timeout: float = 60.0
) -> list[list[Observation]]:
    """Plays a script `repeat` times, each on a fresh manager; one list of observations each.

    Raises ValueError for a script that makes no sense, UnknownVersion, UnknownBackend, CannotFetch,
    WheelMismatch, or AdapterFault when there is no answer within `timeout` seconds or none of use.
    """
    return run_many(version, backend, [script], repeat=repeat, timeout=timeout)[0]


def run_many(
    version: str,
    backend: str,
    scripts: Sequence[Script],
    *,
    repeat: int = 1,
    timeout: float = 60.0,
) -> list[list[list[Observation]]]:
    """As `run`, for many scripts in one child process, which spares loading the wheel again."""
    for script in scripts:
        _check(script)
    wheel = fetch(version)
    known = _backends(wheel)
    if backend not in known:
        raise UnknownBackend(f"sglang {version} has no backend {backend!r}; known: {', '.join(known)}")
    request = {
        "wheel": str(wheel),
        "backend": backend,
        "scripts": [[attrs.asdict(step) for step in script] for script in scripts],
        "repeat": repeat,
        # Less than the limit of the whole, so that the child can still say which step is stuck.
        "patience": timeout / 2,
    }
    try:
        answer = _ask(request, timeout)
        runs = [[[Observation(**seen) for seen in play] for play in plays] for plays in answer]
        shape = [[len(play) for play in plays] for plays in runs]
        if shape != [[len(script)] * repeat for script in scripts]:
            raise _Unusable("the answer does not fit the scripts")
    except _Unusable as error:
        raise AdapterFault(f"sglang {version} {backend}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise AdapterFault(f"sglang {version} {backend}: unusable answer: {error!r}") from error
    return runs


class _Unusable(Exception):
    """The child has not done what it was asked."""


def _ask(request: dict[str, object], timeout: float) -> Any:
    """The child's answer, of any shape. Raises _Unusable, or ValueError where it is not JSON."""
    # What the user has set for an engine must not change what is observed.
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("SGLANG_", "SGL_"))}
    try:
        child = subprocess.run(
            [sys.executable, "-P", str(_CHILD)],
            input=json.dumps(request),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _Unusable(f"no answer in {timeout:g} s") from None
    if child.returncode != 0:
        raise _Unusable(f"exit status {child.returncode}: {_last_line(child.stderr)}")
    answer = json.loads(child.stdout)
    if "fault" in answer:
        raise _Unusable(answer["fault"])
    return answer["runs"]


def _check(script: Script) -> None:
    """Raises ValueError for a script whose steps cannot follow each other."""
    begun: dict[str, Op] = {}
    created = False
    for number, step in enumerate(script):
        where = f"step {number}, {step.thread} {step.op}"
        if step.part == "finish":
            if begun.pop(step.thread, None) != step.op:
                raise ValueError(f"{where}: it was not begun")
        elif step.thread in begun:
            raise ValueError(f"{where}: the thread has not finished {begun[step.thread]}")
        elif step.op in _OF_SENDER and not created:
            raise ValueError(f"{where}: no sender has been created")
        if step.part == "begin":
            begun[step.thread] = step.op
        elif step.op == "create":
            created = True


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing said"
