"""The sglang adapter: offline on a tiny wheel of our own, and marked `network` on the real ones."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvlatch.reference import sglang
from kvlatch.reference.sglang import ABSENT, STATUSES, Observation, Step, run, run_many

CREATE = Step("scheduler", "create")


def write(status: str, thread: str = "bootstrap") -> Step:
    return Step(thread, "write", status=status)


def cell(current: str, new: str) -> list[Step]:
    """Brings a room to a status by legitimate writes, then writes another."""
    before = [] if current == ABSENT else [write("Bootstrapping"), write(current)]
    return [*before, write(new)]


CELLS = [(current, new) for current in (ABSENT, *STATUSES) for new in STATUSES]

SEED = [
    CREATE,
    Step("bootstrap", "register"),
    write("WaitingForInput"),
    Step("bootstrap", "abort_notice"),
    write("Transferring", "worker 0"),
    Step("scheduler", "poll"),
]

LOST_FAILED = [
    CREATE,
    write("WaitingForInput"),
    Step("worker 0", "write", "begin", "Transferring"),
    write("Failed"),
    Step("worker 0", "write", "finish"),
]

LOST_WAITING = [
    Step("scheduler", "create", "begin"),
    write("WaitingForInput"),
    Step("scheduler", "create", "finish"),
]


# --- Offline: a wheel that holds the least that the child asks for --------------------------------

BASE = """
class KVPoll:
    Failed, Bootstrapping, WaitingForInput, Transferring, Success = range(5)
"""

UTILS = """
import enum

class DisaggregationMode(enum.Enum):
    PREFILL = "prefill"
"""

CONN = """
import threading
import torch
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.utils import anything

print("this must not reach the answer")
lock = threading.Lock()

class CommonKVManager:
    @anything("a decorator", of=torch.Tensor)
    def update_status(self, room, status):
        if status == KVPoll.Success:
            raise ValueError("no success today")
        with lock:
            current = self.request_status.get(room, status)
            self.request_status[room] = max(current, status)

    def record_failure(self, room, reason):
        self.failure_records[room] = reason

class CommonKVSender:
    def __init__(self, mgr, bootstrap_addr, bootstrap_room):
        self.manager, self.room = mgr, bootstrap_room
        mgr.update_status(bootstrap_room, KVPoll.Bootstrapping)

    def poll(self):
        return self.manager.request_status[self.room]

    def abort(self):
        self.manager.unheard_of.append(self.room)

    def clear(self):
        self.manager.request_status.pop(self.room, None)
"""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Version 0 is pinned and in the cache."""
    return make_wheel(tmp_path, monkeypatch, CONN)


def make_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch, conn: str) -> Path:
    wheel = cache / "sglang-0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        sources = {"common/conn": conn, "base/conn": BASE, "utils": UTILS}
        for name, source in {**sources, "common/__init__": "", "base/__init__": ""}.items():
            archive.writestr(f"sglang/srt/disaggregation/{name}.py", source)
    pin = sglang._Pin("0", wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(sglang, "_pins", lambda: {"0": pin})
    monkeypatch.setenv("KVLATCH_CACHE", str(cache))
    return wheel


def make_child(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    child = folder / "child.py"
    child.write_text(source)
    monkeypatch.setattr(sglang, "_CHILD", child)


@pytest.mark.usefixtures("wheel")
def test_whole_steps() -> None:
    script = [CREATE, Step("bootstrap", "register"), write("Success"), Step("scheduler", "poll")]
    assert run("0", "common", script) == [
        [
            Observation("Bootstrapping", False, None, False, None),
            Observation("Bootstrapping", True, None, False, None),
            Observation("Bootstrapping", True, None, False, "ValueError: no success today"),
            Observation("Bootstrapping", True, "Bootstrapping", False, None),
        ]
    ]


@pytest.mark.usefixtures("wheel")
def test_an_error_of_the_real_code_is_observed() -> None:
    script = [CREATE, Step("scheduler", "clear"), Step("scheduler", "poll")]
    [seen] = run("0", "common", script)
    assert [o.error for o in seen] == [None, None, "KeyError: 7"]
    assert seen[-1].status == ABSENT


@pytest.mark.usefixtures("wheel")
def test_a_manager_that_lacks_an_attribute_is_a_fault() -> None:
    with pytest.raises(sglang.AdapterFault, match="made without unheard_of"):
        run("0", "common", [CREATE, Step("scheduler", "abort")])


@pytest.mark.usefixtures("wheel")
def test_an_op_is_held_before_its_store() -> None:
    script = [
        CREATE,
        Step("scheduler", "clear", "begin"),
        write("Transferring"),
        Step("scheduler", "clear", "finish"),
    ]
    [seen] = run("0", "common", script)
    assert [(o.status, o.held) for o in seen] == [
        ("Bootstrapping", False),
        ("Bootstrapping", True),
        ("Transferring", False),
        (ABSENT, False),
    ]


@pytest.mark.usefixtures("wheel")
def test_an_op_without_a_store_is_not_held() -> None:
    script = [CREATE, Step("scheduler", "poll", "begin"), Step("scheduler", "poll", "finish")]
    [seen] = run("0", "common", script)
    assert [(o.held, o.value) for o in seen[1:]] == [(False, "Bootstrapping"), (False, None)]


@pytest.mark.usefixtures("wheel")
def test_repetitions_start_afresh() -> None:
    script = [Step("bootstrap", "register"), CREATE, write("Transferring")]
    first, *others = run("0", "common", script, repeat=5)
    assert len(others) == 4
    assert all(other == first for other in others)
    assert first[0].status == ABSENT


@pytest.mark.usefixtures("wheel")
def test_a_script_may_end_while_an_op_is_held() -> None:
    [first], [second] = run_many("0", "common", [LOST_FAILED[:3], [CREATE]])
    assert first[-1].held
    assert second == [Observation("Bootstrapping", False, None, False, None)]


@pytest.mark.usefixtures("wheel")
def test_a_step_that_never_ends_is_a_fault() -> None:
    script = [Step("worker 0", "write", "begin", "Transferring"), write("WaitingForInput")]
    with pytest.raises(sglang.AdapterFault, match="bootstrap: write came to no end in 1 s"):
        run("0", "common", script, timeout=2)


def test_a_wheel_that_never_loads_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path, monkeypatch, "while True: pass")
    with pytest.raises(sglang.AdapterFault, match=r"no answer in 0\.5 s"):
        run("0", "common", [CREATE], timeout=0.5)


def test_a_wheel_that_cannot_be_loaded_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path, monkeypatch, "1 / 0")
    with pytest.raises(sglang.AdapterFault, match="sglang 0 common: ZeroDivisionError"):
        run("0", "common", [CREATE])


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(
    ("child", "reason"),
    [
        ("import sys; sys.exit('out of luck')", "exit status 1: out of luck"),
        ("print('Hello')", "unusable answer"),
        ("print('[]')", "unusable answer"),
        ("print('{}')", "unusable answer"),
        ("import json; print(json.dumps({'runs': []}))", "does not fit"),
        ("import json; print(json.dumps({'runs': [[[7]]]}))", "unusable answer"),
        ("import json; print(json.dumps({'runs': [[[{'status': 'Fine'}]]]}))", "unusable answer"),
        ("import os; os.abort()", "exit status -6"),
    ],
)
def test_garbage_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: str, reason: str) -> None:
    make_child(tmp_path, monkeypatch, child)
    with pytest.raises(sglang.AdapterFault, match=reason):
        run("0", "common", [CREATE])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([Step("scheduler", "poll")], "step 0, scheduler poll: no sender"),
        ([Step("scheduler", "create", "begin"), Step("a", "poll")], "step 1, a poll: no sender"),
        ([Step("a", "write", "finish")], "not begun"),
        ([Step("a", "write", "begin", "Failed"), Step("a", "register")], "has not finished write"),
        ([Step("a", "write", "begin", "Failed"), Step("a", "register", "finish")], "not begun"),
    ],
)
def test_a_senseless_script_is_refused(script: list[Step], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        run("0", "common", script)


@pytest.mark.parametrize(
    "arguments",
    [
        ("a", "vanish"),
        ("a", "write", "some"),
        ("a", "write"),
        ("a", "write", "begin", "Absent"),
        ("a", "poll", "whole", "Failed"),
    ],
)
def test_a_senseless_step_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Step(*arguments)


def test_unknown_version() -> None:
    with pytest.raises(sglang.UnknownVersion, match=r"9\.9.*0\.5\.11, .*0\.5\.23") as caught:
        sglang.fetch("9.9")
    assert caught.value.exit_code == 2


@pytest.mark.usefixtures("wheel")
def test_unknown_backend() -> None:
    with pytest.raises(sglang.UnknownBackend, match="'pigeon'; known: common") as caught:
        run("0", "pigeon", [CREATE])
    assert caught.value.exit_code == 2


def test_a_changed_wheel_is_refused(wheel: Path) -> None:
    assert sglang.fetch("0") == wheel
    wheel.write_bytes(b"something else")
    with pytest.raises(sglang.WheelMismatch, match="sha256") as caught:
        run("0", "common", [CREATE])
    assert caught.value.exit_code == 4


def test_a_failed_download_is_one_clear_line(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel.unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(sglang.CannotFetch, match="sglang 0: ERROR: No matching") as caught:
        sglang.fetch("0")
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    assert not list(wheel.parent.iterdir())


@pytest.mark.parametrize("content", [b"as pinned", b"forged"])
def test_a_download_is_moved_into_the_cache_only_if_it_is_the_pinned_one(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    pinned = wheel.read_bytes()
    wheel.unlink()

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = command[command.index("--dest") + 1]
        Path(folder, wheel.name).write_bytes(pinned if content == b"as pinned" else content)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", pip)
    if content == b"as pinned":
        assert sglang.fetch("0").read_bytes() == pinned
    else:
        with pytest.raises(sglang.WheelMismatch):
            sglang.fetch("0")
    assert [path.name for path in wheel.parent.iterdir()] == [wheel.name] * wheel.exists()


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVLATCH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sglang._cache() == tmp_path / "kvlatch"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert sglang._cache() == tmp_path / ".cache" / "kvlatch"


def test_the_child_imports_the_standard_library_only() -> None:
    code = f"import runpy, sys; runpy.run_path({str(sglang._CHILD)!r}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    tops = {name.partition(".")[0] for name in loaded.stdout.split()}
    assert tops <= {*sys.stdlib_module_names, "__main__"}


# --- The published wheels -------------------------------------------------------------------------

RELEASES = [(v, b) for v in sglang.versions() for b in sglang.BACKENDS]


TIMES = 100


@attrs.frozen
class Observed:
    """What one release does with all scripts of this file."""

    table: dict[tuple[str, str], str]
    seed: list[Observation]
    lost_waiting: list[Observation]
    lost_failed: list[list[Observation]]  # TIMES over


@functools.cache
def observe(version: str, backend: str) -> Observed:
    """One child process plays them all."""
    scripts = [*(cell(*key) for key in CELLS), SEED, LOST_WAITING, *[LOST_FAILED] * TIMES]
    plays = [play for [play] in run_many(version, backend, scripts)]
    cells, (seed, lost_waiting, *lost_failed) = plays[: len(CELLS)], plays[len(CELLS) :]
    table = {key: play[-1].status for key, play in zip(CELLS, cells, strict=True)}
    return Observed(table, seed, lost_waiting, lost_failed)


@pytest.fixture(params=RELEASES, ids="-".join)
def release(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A version and a backend; skips where the wheel cannot be had."""
    version, backend = request.param
    skip_unless_fetched(version)
    return version, backend


def skip_unless_fetched(version: str) -> None:
    if reason := reason_without_wheel(version):
        pytest.skip(reason)


@functools.cache
def reason_without_wheel(version: str) -> str | None:
    """Asked once a version: without a network, each attempt takes pip a while."""
    try:
        sglang.fetch(version)
    except sglang.CannotFetch as error:
        return str(error)
    return None


def published(version: str, backend: str, current: str, new: str) -> str:
    """The rule of update_status in that release, from the facts and not from the code."""
    sticky = version in ("0.5.20", "0.5.23") or (version, backend) == ("0.5.19", "nixl")
    if current == ABSENT:
        match version:
            case "0.5.11":
                creating = {*STATUSES}
            case "0.5.15.post1" | "0.5.19":
                creating = {*STATUSES} - {"Failed"}
            case _:
                creating = {"Bootstrapping", "WaitingForInput"}
        return new if new in creating else ABSENT
    if new == "Failed" or (sticky and current == "Failed"):
        return "Failed"
    return max(current, new, key=STATUSES.index)


@pytest.mark.network
def test_backends_are_those_expected(release: tuple[str, str]) -> None:
    assert sglang.backends(release[0]) == ("common", "nixl", "mooncake")


@pytest.mark.network
def test_truth_table(release: tuple[str, str]) -> None:
    assert observe(*release).table == {key: published(*release, *key) for key in CELLS}


@pytest.mark.network
def test_seed_race(release: tuple[str, str]) -> None:
    """Abort, then a worker's write: the failed room is resurrected where Failed is not sticky."""
    seen = observe(*release).seed
    before = ["Bootstrapping", "Bootstrapping", "WaitingForInput", "Failed"]
    assert [o.status for o in seen[:4]] == before
    assert [o.infos for o in seen[:3]] == [False, True, True]
    assert all(o.error is None for o in seen)
    assert seen[4].status == published(*release, "Failed", "Transferring")
    if release == ("0.5.15.post1", "nixl"):
        assert seen[5].value == "Transferring"
    if release[0] == "0.5.23":
        assert seen[5].value == "Failed"


@pytest.mark.network
def test_split_write_resurrects_in_every_release(release: tuple[str, str]) -> None:
    for seen in observe(*release).lost_failed:
        assert [(o.status, o.held) for o in seen[2:]] == [
            ("WaitingForInput", True),
            ("Failed", False),
            ("Transferring", False),
        ]


@pytest.mark.network
def test_split_create_loses_waiting_for_input(release: tuple[str, str]) -> None:
    assert [(o.status, o.held) for o in observe(*release).lost_waiting] == [
        (ABSENT, True),
        ("WaitingForInput", False),
        ("Bootstrapping", False),
    ]


@pytest.mark.network
def test_repeating_a_split_write_gives_the_same_each_time() -> None:
    version = sglang.versions()[-1]
    skip_unless_fetched(version)
    plays = run(version, "nixl", LOST_FAILED, repeat=TIMES)
    assert [play[-1].status for play in plays] == ["Transferring"] * TIMES
