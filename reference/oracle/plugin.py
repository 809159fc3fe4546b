"""The pytest side of the oracle, which pytest finds by itself where kvlatch is installed.

Checks of one manager share one examination, also among the workers of pytest-xdist, and it looks at no other laws than
those that were selected (``-k``). What broke a law is kept in pytest's cache, and played first the next time. The
report ends with a line for each manager: what was judged, and what was looked at.

pytest loads this in every project of whoever has kvlatch installed: so the oracle is imported when there is a check.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from kvlatch.reference.oracle.checks import Check, Examination
    from kvlatch.reference.oracle.results import Result

_PROPERTY: Final = "kvlatch"


def _check(item: pytest.Item) -> Check | None:
    """The check that a test is called with, if it is one of those."""
    callspec = getattr(item, "callspec", None)
    check = callspec.params.get("check") if callspec is not None else None
    ours = type(check).__module__ == "kvlatch.reference.oracle.checks"
    return check if ours else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell each examination which laws were selected, what broke them before, and where its result is shared."""
    cache = _cache(session.config)
    for item in session.items:
        if (check := _check(item)) is None:
            continue
        examination = check.examination
        examination.laws.add(check.law)
        if cache is not None:
            plays = cache.get(_key(examination), {})
            examination.known = tuple(plays.values()) if isinstance(plays, dict) else ()
        examination.share = _shared if os.name == "posix" and "PYTEST_XDIST_TESTRUNUID" in os.environ else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """After a check: keep the plays that break laws, and leave the summary for the report."""
    try:
        return (yield)
    finally:
        check = _check(item)
        if check is not None and (result := check.examination.done) is not None:
            item.user_properties.append((_PROPERTY, result.summary))
            if (cache := _cache(item.config)) is not None:
                cache.set(_key(check.examination), dict(result.plays))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line for each manager."""
    reports = (one for reports in terminalreporter.stats.values() for one in reports)
    said = (value for one in reports for name, value in getattr(one, "user_properties", ()) if name == _PROPERTY)
    if lines := list(dict.fromkeys(said)):
        terminalreporter.section("kvlatch")
        for line in lines:
            terminalreporter.write_line(line)


def _cache(config: pytest.Config) -> pytest.Cache | None:
    """Pytest's cache; None in a project that has switched it off (``-p no:cacheprovider``)."""
    return getattr(config, "cache", None)


def _key(examination: Examination) -> str:
    return f"kvlatch/{examination.subject.replace('/', '.')}"


def _shared(examination: Examination, examine: Callable[[], Result]) -> Result:
    """The result that the first worker of this run has made: the others wait for it."""
    import fcntl

    from kvlatch.reference.oracle.results import Result

    how = [examination.profile, examination.sequential, examination.seconds]
    asked = json.dumps([examination.subject, *how, sorted(examination.laws)])
    folder = Path(tempfile.gettempdir(), f"kvlatch-{os.getuid()}-{os.environ['PYTEST_XDIST_TESTRUNUID']}")
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / f"{hashlib.sha256(asked.encode()).hexdigest()}.json"
    with file.open("a+", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        if text := stream.read():
            return Result.from_json(json.loads(text))
        result = examine()
        stream.write(json.dumps(result.as_json()))
        return result
