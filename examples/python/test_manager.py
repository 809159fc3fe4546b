"""The whole of what a maintainer adds: an adapter, and one test that stands for all laws."""

from manager import BOOTSTRAPPING, FAILED, WAITING, Manager

from kvlatch import Check, Probe, conforms
from kvlatch.spec.status import KVPoll


class Adapter:
    """Passes on to the manager what happens."""

    def __init__(self, probe: Probe) -> None:
        on_end = lambda room, request, status: probe.tell(room, request, KVPoll(status))  # noqa: E731
        self.manager = Manager(probe.release, on_end)
        self.manager.request_status = probe.table()

    def create(self, room: int, request: int) -> None:
        self.manager.write(room, request, BOOTSTRAPPING)

    def metadata(self, room: int, request: int) -> None:
        self.manager.write(room, request, WAITING)

    def abort_notice(self, room: int, request: int) -> None:
        self.manager.abort_notice(room, request)

    def abort(self, room: int, request: int) -> None:
        self.manager.write(room, request, FAILED)

    def start(self, room: int, request: int, chunk: int, last: bool) -> bool:
        return self.manager.start_transfer(room, request)

    def finish(self, room: int, request: int, chunk: int, last: bool, ok: bool) -> None:
        self.manager.end_transfer(room, request, chunk, last, ok)

    def poll(self, room: int, request: int) -> KVPoll | None:
        status = self.manager.poll(room, request)
        return None if status is None else KVPoll(status)

    def clear(self, room: int, request: int) -> None:
        self.manager.clear(room, request)

    def status(self, room: int) -> KVPoll | None:
        status = self.manager.request_status.peek(room)
        return None if status is None else KVPoll(status)


@conforms(Adapter)
def test_manager(check: Check) -> None:
    check()
