"""What code is run: versions, folders, wheels, and overlays on them; offline, on a tiny wheel of our own."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.published.sglang.judge import examine
from kvlatch.reference.published.sglang.scripts import Step, run
from kvlatch.reference.published.sglang.subjects import Unfit, resolve, shipped
from kvlatch.reference.published.wheels import UnknownVersion
from tests.reference.published.sglang.sglang_fake import make_wheel
from tests.reference.published.sglang.test_judge import LAWFUL

LAW = "terminal-sticky/plain"
FORGETS = """
from sglang.srt.disaggregation.base.conn import KVPoll

class Manager:
    def update_status(self, room, status):
        self.request_status[room] = status
"""
ADDS_A_LOCK = """
import threading

class Manager:
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.mine = threading.Lock()

    def update_status(self, room, status):
        with self.mine:
            super().update_status(room, status)
"""
SHIPPING = (
    "fix-a",
    "fix-ab",
    "fix-b",
    "hears-aborts",
    "latch-local",
    "latch-wire",
    "lock",
    "one-receiver",
    "same-prompt",
)
STARTS_A_THREAD = """
import threading

class Manager:
    def __init__(self, *arguments):
        super().__init__(*arguments)
        threading.Thread(target=self.janitor, daemon=True).start()

    def janitor(self): ...
"""
DIFF = """\
--- a/sglang/srt/disaggregation/common/conn.py
+++ b/sglang/srt/disaggregation/common/conn.py
@@ -{line},4 +{line},4 @@
             if current is None and status == KVPoll.Bootstrapping:
                 current = status
-            if current is None or current in TERMINAL:
+            if current is None:
                 return
"""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Version 0 is a lawful manager; the wheel is unpacked in `checkout` too, and that is where we are."""
    made = make_wheel(tmp_path, monkeypatch, LAWFUL)
    with zipfile.ZipFile(made, "a") as archive:
        archive.writestr("sglang/srt/environ.py", "")
    with zipfile.ZipFile(made) as archive:
        archive.extractall(tmp_path / "checkout" / "python")
    (tmp_path / "forgets.py").write_text(FORGETS)
    line = LAWFUL.splitlines().index("            if current is None and status == KVPoll.Bootstrapping:") + 1
    (tmp_path / "forgets.diff").write_text(DIFF.format(line=line))
    (tmp_path / "other.diff").write_text(DIFF.format(line=line).replace("Bootstrapping", "Failed"))
    monkeypatch.chdir(tmp_path)
    return made


def verdict(code: str) -> str:
    """Of plain writes over a terminal status."""
    (one,) = examine(code, "common", [LAW]).judgements
    return one.verdict


@pytest.mark.parametrize("base", ["./checkout", "./checkout/python", "./checkout/python/sglang", "{wheel}"])
@pytest.mark.parametrize(
    ("overlay", "expected"), [("", "kept"), ("+forgets.py", "broken"), ("+forgets.diff", "broken")]
)
def test_any_code_with_any_overlay(wheel: Path, base: str, overlay: str, expected: str) -> None:
    """A checkout, an unpacked wheel and a wheel are the same code, and overlays change each."""
    assert verdict(base.format(wheel=wheel) + overlay) == expected


@pytest.mark.parametrize("code", ["./checkout+forgets.py+fix-a", "./checkout+forgets.diff+fix-a"])
@pytest.mark.usefixtures("wheel")
def test_overlays_stack(code: str) -> None:
    """The last one comes first: Fix A before what it mends."""
    assert verdict(code) == "kept"
    assert resolve(code).name == code.removeprefix("./")
    assert resolve(code).original == resolve("./checkout")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("./nowhere", "nowhere: there is no such folder"),
        ("./empty", "empty: there is no sglang/srt/disaggregation in it"),
        ("./nowhere.whl", "nowhere.whl: there is no such file"),
        ("./forgets.whl", "forgets.whl: not a wheel"),
        ("./other.whl", "other.whl: there is no sglang/srt/disaggregation in it, so it is no wheel of sglang"),
        (
            "./checkout+fix-z",
            "fix-z: no overlay is called that: they are " + ", ".join(SHIPPING),
        ),
        ("./checkout+nowhere.py", "nowhere.py: no overlay"),
        ("./checkout+nowhere.diff", "nowhere.diff: there is no such file"),
        ("./checkout+other.diff", "other.diff: it does not apply to checkout"),
    ],
)
def test_what_does_not_fit(wheel: Path, code: str, says: str) -> None:
    """One line each, and a usage error."""
    (wheel.parent / "empty").mkdir()
    (wheel.parent / "forgets.whl").write_text("no wheel")
    with zipfile.ZipFile(wheel.parent / "other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(Unfit) as caught:
        resolve(code)
    assert str(caught.value).removeprefix("./").startswith(says)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_an_unknown_version_is_no_version() -> None:
    """Whatever is no version is refused before anybody asks the registry."""
    with pytest.raises(UnknownVersion, match="'none' is no version of sglang"):
        resolve("none")


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(
    ("overlay", "says"),
    [
        ("ATTRIBUTE = 1", "has no class Manager, Sender, Receiver or Scheduler"),
        ("1 / 0", "ZeroDivisionError"),
        ("class Sender:\n    def poll(self):\n        return self.manager.no_such_thing", "made without no_such_thing"),
        (STARTS_A_THREAD, "an overlay starts a thread of its own, janitor"),
    ],
)
def test_an_overlay_that_cannot_be_used_is_a_fault(tmp_path: Path, overlay: str, says: str) -> None:
    """It says nothing about any law, and names what is missing."""
    (tmp_path / "mine.py").write_text(overlay)
    with pytest.raises(AdapterFault, match=says):
        examine("./checkout+mine.py", "common", ["success-complete/first-chunk"])


@pytest.mark.usefixtures("wheel")
def test_an_attribute_that_an_overlay_adds_is_there(tmp_path: Path) -> None:
    """The constructors run, so what a fix adds in one is no fault, and its locks are seen."""
    (tmp_path / "fix.py").write_text(ADDS_A_LOCK)
    examination = examine("./checkout+fix.py", "common", ["terminal-sticky/two-writers"])
    assert examination.judgements[0].verdict == "kept"
    assert examination.waited > 0


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("lock", ["threading.Lock", "Lock", "RLock"])
def test_a_module_beside_an_overlay(tmp_path: Path, lock: str) -> None:
    """It is loaded, and the player sees its locks by any name: a thread would wait for one that is held for ever."""
    mine = ADDS_A_LOCK.replace("threading.Lock", lock)
    mine = mine.replace("import threading", "import threading\nfrom threading import Lock, RLock")
    (tmp_path / "mine.py").write_text(mine)
    (tmp_path / "fix.py").write_text("from mine import Manager\n")
    [play] = run("./checkout+fix.py", "common", [Step("scheduler", "create"), Step("b", "write", status="Failed")])
    [without] = run("./checkout", "common", [Step("scheduler", "create"), Step("b", "write", status="Failed")])
    assert play[-1].locks == without[-1].locks + 1


def test_success_that_is_told_no_more_is_found(wheel: Path, tmp_path: Path) -> None:
    """What an overlay has spoilt is not taken for something that the backend never had."""
    (tmp_path / "mute.py").write_text("class Manager:\n    def tell(self, room):\n        pass\n")
    (one,) = examine(f"{wheel}+mute.py", "common", ["told-once/success"]).judgements
    assert one.verdict == "broken"


def test_the_overlays_that_ship() -> None:
    """The incident's fixes, a lock for each, and what can be mended locally, at either end."""
    assert shipped() == SHIPPING
