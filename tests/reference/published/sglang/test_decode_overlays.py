"""Decode's overlays over classes of the shape of 0.5.23's, which fail without them; storms run the real ones."""

from __future__ import annotations

import sys
from array import array
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from kvlatch.reference.published.sglang.subjects import OVERLAYS

FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = range(5)


class Manager:
    """Upstream's, as far as a word from prefill changes a status."""

    defer_decode_allocation = False

    def __init__(self) -> None:
        self.request_status: dict[int, int] = {}
        self.failure_records: dict[int, str] = {}

    def update_status(self, room: int, status: int) -> None:
        current = self.request_status.get(room)
        if current is None or status == FAILED:
            self.request_status[room] = status
        elif current != FAILED:
            self.request_status[room] = max(current, status)

    def apply_prefill_status(self, *, bootstrap_room: int, status: int) -> None:
        if bootstrap_room in self.request_status:
            self.update_status(bootstrap_room, status)


class Receiver:
    """Upstream's, without the messages; ``told`` are the aborts that prefill is sent."""

    told: ClassVar[list[int]] = []

    def __init__(self, mgr: Any, address: str, room: int) -> None:
        self.kv_mgr, self.bootstrap_room = mgr, room
        self.conclude_state: int | None = None
        mgr.update_status(room, BOOTSTRAPPING)

    def init(self) -> None:
        if self.conclude_state != FAILED:
            self.kv_mgr.update_status(self.bootstrap_room, WAITING)

    def send_metadata(self) -> None:
        """It is on its way."""

    def poll(self) -> int:
        if self.conclude_state is not None:
            return self.conclude_state
        return int(self.kv_mgr.request_status[self.bootstrap_room])

    def abort(self) -> None:
        self.kv_mgr.update_status(self.bootstrap_room, FAILED)
        self.conclude_state = FAILED
        self.told.append(self.bootstrap_room)

    def clear(self) -> None:
        self.kv_mgr.request_status.pop(self.bootstrap_room, None)

    def failure_exception(self) -> None:
        self.clear()
        raise RuntimeError(self.kv_mgr.failure_records.pop(self.bootstrap_room, "unknown"))


def overlay(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An overlay that ships; the module of upstream's that it imports is made up."""
    conn = ModuleType("sglang.srt.disaggregation.base.conn")
    vars(conn)["KVPoll"] = SimpleNamespace(Failed=FAILED, Success=SUCCESS)
    parts = conn.__name__.split(".")
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, conn.__name__, conn)
    spec = spec_from_file_location(name, OVERLAYS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=[False, True], ids=["as published", "one-receiver"])
def decode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A manager, the class of its receivers, and whether the overlay lies over them."""
    monkeypatch.setattr(Receiver, "told", [])
    manager: Any = Manager
    receiver: Any = Receiver
    if request.param:
        over = overlay("one_receiver", monkeypatch)
        manager = type("Manager", (over.Manager, Manager), {})
        receiver = type("Receiver", (over.Receiver, Receiver), {})
    return SimpleNamespace(manager=manager(), receiver=receiver, mended=request.param)


def served(decode: SimpleNamespace, room: int = 7) -> Any:
    """A receiver that has sent its metadata."""
    receiver = decode.receiver(decode.manager, "prefill", room)
    receiver.init()
    receiver.send_metadata()
    return receiver


def test_a_second_receiver_begins_with_the_end_of_the_first(decode: SimpleNamespace) -> None:
    """Success in the preallocation queue, of which decode's scheduler dies; with the overlay it has failed."""
    served(decode)
    decode.manager.apply_prefill_status(bootstrap_room=7, status=SUCCESS)
    second = decode.receiver(decode.manager, "prefill", 7)
    second.init()
    assert second.poll() == (FAILED if decode.mended else SUCCESS)


def test_what_a_second_receiver_does_changes_nothing_for_the_first(decode: SimpleNamespace) -> None:
    """It aborts and is cleared; the first one's status and reason stay, and prefill is not told that it has ended."""
    first = served(decode)
    second = decode.receiver(decode.manager, "prefill", 7)
    second.abort()
    decode.manager.failure_records[7] = "the first one's"
    with pytest.raises(RuntimeError):
        second.failure_exception()
    if decode.mended:
        assert first.poll() == WAITING
        assert decode.manager.failure_records == {7: "the first one's"}
        assert Receiver.told == []
    else:
        assert 7 not in decode.manager.request_status
        assert decode.manager.failure_records == {}
        assert Receiver.told == [7]


def test_a_word_before_the_metadata_is_about_another_request(decode: SimpleNamespace) -> None:
    """And one after it counts."""
    receiver = decode.receiver(decode.manager, "prefill", 7)
    receiver.init()
    decode.manager.apply_prefill_status(bootstrap_room=7, status=FAILED)
    assert receiver.poll() == (WAITING if decode.mended else FAILED)
    receiver.send_metadata()
    decode.manager.apply_prefill_status(bootstrap_room=7, status=FAILED)
    assert receiver.poll() == FAILED


def test_a_room_that_is_cleared_is_the_next_one_s(decode: SimpleNamespace) -> None:
    """Whose word then counts; Failed after Success is believed until it has been served."""
    first = served(decode)
    first.abort()
    first.clear()
    second = served(decode)
    assert second.poll() == WAITING
    decode.manager.apply_prefill_status(bootstrap_room=7, status=SUCCESS)
    assert second.poll() == SUCCESS
    second.conclude_state = SUCCESS
    decode.manager.apply_prefill_status(bootstrap_room=7, status=FAILED)
    assert second.poll() == (FAILED if decode.mended else SUCCESS)


class Buffers:
    """The row of the metadata buffers that has the room id."""

    def __init__(self) -> None:
        self.bootstrap_room = [[0] * 8 for _ in range(4)]

    def set_buf(self, req: Any) -> None:
        self.bootstrap_room[req.metadata_buffer_index][0] = req.bootstrap_room


@pytest.mark.parametrize(("theirs", "status"), [([1, 2, 3], SUCCESS), ([1, 2, 4], FAILED), ([1, 2], FAILED)])
def test_kv_of_another_prompt_fails_its_request(
    theirs: list[int], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room and row are the same; a request that has not succeeded is not looked at."""
    gated: list[Any] = []

    class Marked(Buffers):
        pass

    utils = SimpleNamespace(MetadataBuffers=Marked, _apply_metadata_gate=lambda *given: gated.append(given))
    overlay("same_prompt", monkeypatch).lay_over(SimpleNamespace(utils=utils))
    buffers = utils.MetadataBuffers()
    prefill = SimpleNamespace(metadata_buffer_index=2, bootstrap_room=7, origin_input_ids=array("q", theirs))
    buffers.set_buf(prefill)
    assert buffers.bootstrap_room[2][0] == 7
    assert 0 < buffers.bootstrap_room[2][1] < 2**63
    mine = SimpleNamespace(metadata_buffer_index=2, req=SimpleNamespace(origin_input_ids=[1, 2, 3]))
    polls = [SUCCESS, TRANSFERRING]
    utils._apply_metadata_gate(polls, [mine, mine], buffers)
    assert polls == [status, TRANSFERRING]
    assert len(gated) == 1
