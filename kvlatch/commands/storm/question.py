"""What ``kvlatch storm`` is asked, whether it can be done, and which build is stormed when."""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args
from urllib.parse import urlsplit

import attrs
import click

from kvlatch.commands.exits import CANNOT, USAGE, Failure
from kvlatch.proofs.prove import UnknownName, room_design
from kvlatch.reference.live.load import POLITE, Load
from kvlatch.reference.live.records import Role
from kvlatch.reference.live.settings import Rules
from kvlatch.reference.live.system import Subject
from kvlatch.reference.live.upstream.subject import Published
from kvlatch.reference.published.wheels import PublishedError
from kvlatch.spec.schema import Atomicity

_NEEDED: Final = {
    "httpx": "httpx", "prometheus_client": "prometheus-client", "jinja2": "jinja2", "matplotlib": "matplotlib",
}  # fmt: skip
_NEEDED_HERE: Final = {**_NEEDED, "uvicorn": "uvicorn", "starlette": "starlette", "sglang_router": "sglang-router"}
"""What a storm needs, by the name it is imported by; less of it for a deployment that is not started here."""
_INCIDENT: Final = ("seed-control", "latch")
_PUBLISHED: Final = re.compile(r"sglang==|\.{0,2}/|.*\.whl(\+|$)")
"""Names of published code: a version, a folder (./ or / in front), a wheel; any other one is a design."""
_NIXL: Final = "nixl_cu12"
_LEAST_SECRET: Final = 6
"""Characters of a word in a header that is taken for a secret: a shorter one would hide half of every text."""


@attrs.frozen(kw_only=True)
class Question:
    """What is asked: the options of the command. ``headers`` go with every request to a deployment."""

    builds: tuple[str, ...]
    """One that is looked at by itself, or the control and the treatment; none for those of the incident."""
    url: str | None
    metrics: tuple[str, ...]
    headers: Mapping[str, str] = attrs.field(repr=False)
    label: str
    against: Path | None
    yes: bool
    load: Load
    settings: Mapping[str, Any]
    repetitions: int | None
    faults: tuple[Any, ...]
    seed: int
    out: Path | None
    as_json: bool

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not get into a report: the values of the headers, and the longer words of them."""
        words = {word for value in self.headers.values() for word in (value, *value.split())}
        return tuple(sorted((word for word in words if len(word) >= _LEAST_SECRET), key=len, reverse=True))


def check(question: Question) -> None:
    """Say what is wrong before anything is started or sent."""
    _packages(question)
    if question.url is None:
        list(plan(question))
        return
    for address in (question.url, *question.metrics):
        if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", address):
            raise Failure(f"{address!r} is not an address: http://HOST:PORT", USAGE)
        if "@" in urlsplit(address).netloc:
            raise Failure(
                "a password in an address would get into the report: use --header 'Authorization: ...'", USAGE
            )
    if not question.metrics:
        raise Failure("--url needs the metrics page of each prefill engine: --metrics http://HOST:PORT/metrics", USAGE)
    if not question.yes:
        _ask(question.load, question.url)


def _packages(question: Question) -> None:
    here = question.url is None
    needed = dict(_NEEDED_HERE if here else _NEEDED)
    if question.settings.get("backend") == "mooncake":
        needed["mooncake"] = "mooncake-transfer-engine-non-cuda"
    missing = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    without_nixl = here and importlib.util.find_spec(_NIXL) is None
    if not missing and not without_nixl:
        return
    hints = [f"pip install {' '.join(missing)}"] if missing else []
    if without_nixl:
        missing.append("nixl-cu12")
        hints.append("pip install --no-deps nixl-cu12 (its dependency torch is not used)")
    what = "the live system needs" if here else "a storm needs"
    raise Failure(f"{what} {', '.join(missing)}: {' && '.join(hints)}", CANNOT)


def _ask(load: Load, url: str) -> None:
    """Nothing is sent to somebody's deployment before somebody has said yes."""
    count = load.requests + POLITE
    what = f"Send up to {count} requests to {url}, {load.rate:g} a second at most, most of which hang up?"
    if not sys.stdin.isatty():
        raise Failure(f"{what} Say so with --yes", USAGE)
    if not click.confirm(what, err=True):
        raise Failure("nothing was sent", USAGE)


def header(text: str) -> tuple[str, str]:
    """The name and the value of ``NAME: VALUE``; Failure, which does not repeat the value, if it is not one."""
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
        raise Failure("--header takes 'NAME: VALUE', as in --header 'Authorization: Bearer KEY'", USAGE)
    if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?", value.strip()):
        raise Failure(f"--header {name}: its value is empty, or has a character that no header can have", USAGE)
    return name, value.strip()


def folder(wanted: Path | None) -> Path:
    """An empty folder for the report: the one that was named, or the first of storm-1, storm-2, ... that is free."""
    if wanted is None:
        number = 1
        while Path(f"storm-{number}").exists():
            number += 1
        return Path(f"storm-{number}")
    if wanted.exists() and any(wanted.iterdir()):
        raise Failure(f"{wanted} is not empty: name another folder with --out", USAGE)
    return wanted


def rules_of(name: str) -> Rules:
    """The rules that a reader calls ``DESIGN`` or ``DESIGN/ATOMICITY``; without one, the design's first."""
    design_name, slash, level = name.partition("/")
    try:
        design = room_design(design_name)
    except UnknownName as error:
        raise Failure(str(error), USAGE) from error
    levels: tuple[Atomicity, ...] = get_args(Atomicity)
    for known in levels:
        if known == (level if slash else design.atomicities[0]):
            return Rules(design, known)
    raise Failure(f"{name}: an atomicity is one of {', '.join(levels)}", USAGE)


def subject_of(name: str) -> Subject:
    """What a reader names: a design, or published code as ``conform`` takes it."""
    if not _PUBLISHED.match(name):
        return rules_of(name)
    try:
        return Published.of(name)
    except PublishedError as error:
        raise Failure(str(error), error.exit_code) from error


def published(builds: Sequence[str]) -> bool:
    """Whether published code is among these builds."""
    return any(_PUBLISHED.match(name) for name in builds)


def plan(question: Question) -> Iterator[tuple[Role, int, Subject]]:
    """Which build is stormed when: control and treatment by turns, and which comes first is left to the seed."""
    alone = len(question.builds) == 1
    repetitions = question.repetitions or (1 if alone else 4)
    chance = random.Random(question.seed)  # noqa: S311  # for no secret
    named = [subject_of(name) for name in question.builds or _INCIDENT]
    if alone:
        yield from (("alone", number, named[0]) for number in range(1, repetitions + 1))
        return
    _differ(*named)
    pair: list[tuple[Role, Subject]] = [("control", named[0]), ("treatment", named[1])]
    for number in range(1, repetitions + 1):
        chance.shuffle(pair)
        yield from ((role, number, subject) for role, subject in pair)


def _differ(control: Subject, treatment: Subject) -> None:
    """Refuse to compare like with like before, not after, a minute of storms."""
    if (mark := control.fingerprint) == treatment.fingerprint:
        names = f"{control.name} and {treatment.name}"
        raise Failure(f"refused: {names} are the same build ({mark}): there is nothing to compare", USAGE)
