"""Each message that a converter knows is one that the versions named beside it print, by their own source."""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator
from functools import cache

import pytest

from kvlatch.reference.logs.converting.messages import MESSAGES, PACKAGE, REASONS, THREADS, VERSIONS, Message
from kvlatch.reference.logs.converting.requests import FIELDS, FINISHED, RECEIVED, WARM_UP
from kvlatch.reference.logs.converting.spans import BEGUN, ENDED, RANKS, ROOM
from kvlatch.reference.published.sglang import wheels
from kvlatch.reference.published.wheels import CannotFetch

QUOTED = ("rid", "agent_name")
"""Values that are strings; all others are put in as numbers."""


@cache
def source(version: str, path: str) -> ast.Module:
    """A file of a version's wheel; the test is skipped where there is none."""
    try:
        wheel = wheels.fetch(version)
    except CannotFetch as error:
        pytest.skip(f"no wheel: {error}")
    with zipfile.ZipFile(wheel) as archive:
        return ast.parse(archive.read(path))


def printed(tree: ast.Module) -> Iterator[str]:
    """Every text of a file as it comes out, with values of ours in its holes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%(?:\.\d+)?[a-z#]", "7", node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(map(part, node.values))


def part(node: ast.expr) -> str:
    """A piece of an f-string: ``{room=}`` is a constant and a value that is written as ``repr`` does."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.FormattedValue)
    if node.conversion == ord("r") and ast.unparse(node.value).endswith(QUOTED):
        return "'r7'"
    return "7"


@pytest.mark.network
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_known_is_printed(version: str) -> None:
    """And nothing that a version does not print is said of it."""
    messages: tuple[Message, ...] = (*MESSAGES, *REASONS)
    for message in messages:
        for path, versions in message.printed.items():
            said = any(message.pattern.match(text) for text in printed(source(version, f"{PACKAGE}/{path}")))
            assert said == (version in versions), (message.name, path, version)


@pytest.mark.network
@pytest.mark.parametrize("version", VERSIONS)
def test_a_reason_is_put_behind_a_failure(version: str) -> None:
    """The texts of a failure and of its reason are joined by what the patterns expect."""
    for path in ("prefill.py", "decode.py"):
        assert " with exception 7" in set(printed(source(version, f"{PACKAGE}/{path}")))


@pytest.mark.network
@pytest.mark.parametrize("version", VERSIONS)
def test_threads_that_are_known_are_started(version: str) -> None:
    """Python names a thread after the function that it runs."""
    for name, places in THREADS.items():
        for path, versions in places.items():
            calls = [node for node in ast.walk(source(version, f"{PACKAGE}/{path}")) if isinstance(node, ast.Call)]
            targets = {
                ast.unparse(word.value).rpartition(".")[2]
                for call in calls
                if ast.unparse(call.func).endswith("Thread")
                for word in call.keywords
                if word.arg == "target"
            }
            assert (name in targets) == (version in versions), (name, path, version)


@pytest.mark.network
@pytest.mark.parametrize("version", VERSIONS)
def test_the_request_logger_writes_what_is_read(version: str) -> None:
    """The class of a request, its fields, and the words before it."""
    logger = set(printed(source(version, "sglang/srt/utils/request_logger.py")))
    tree = source(version, "sglang/srt/managers/io_struct.py")
    request = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "GenerateReqInput")
    fields = {node.target.id for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)
              and isinstance(node.target, ast.Name)}  # fmt: skip
    assert {"bootstrap_host", "bootstrap_room"} <= {
        node.target.id for node in request.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert set(FIELDS) <= fields
    for head in (RECEIVED, FINISHED):
        words, _, name = head.rstrip("(").partition("obj=")
        assert name == request.name
        assert any(text.startswith(f"{words}obj=7") for text in logger)
    assert WARM_UP in set(printed(source(version, f"{PACKAGE}/utils.py")))


@pytest.mark.network
@pytest.mark.parametrize("version", VERSIONS)
def test_spans_are_called_what_is_read(version: str) -> None:
    """The stages of a transfer, and the attributes of the root and of a thread."""
    stages = set(printed(source(version, "sglang/srt/observability/req_time_stats.py")))
    assert stages >= {*ENDED, *BEGUN}
    trace = source(version, "sglang/srt/observability/trace.py")
    assert set(printed(trace)) >= {ROOM, *RANKS, "rid", "host_id", "thread_label"}
    assert "str(hex(self.bootstrap_room))" in ast.unparse(trace)
