"""Two tables under one lock, statuses and transfer infos, as the published managers have them; both are watched."""

import threading

from kvlatch.spec.status import KVPoll


class Manager:
    def __init__(self, tell, release, statuses, infos):
        self.tell, self.release = tell, release
        self.lock = threading.Lock()
        self.request_status = statuses
        self.transfer_infos = infos
        self.records = {}

    def record(self, room, request):
        return self.records.setdefault((room, request), {"reading": 0, "done": 0, "of": None, "over": False})

    def update_status(self, room, request, status):
        """The first terminal status of a request stays; an older request writes nothing."""
        owner, current = self.request_status.get(room, (0, None))
        if self.record(room, request)["over"] or request < owner:
            return None
        if request > owner or current is None:
            self.request_status[room] = (request, status)
        elif current not in (KVPoll.Failed, KVPoll.Success):
            self.request_status[room] = (request, KVPoll.Failed if status == 0 else max(current, status))
        return self.request_status[room][1]

    def current(self, room, request):
        owner, status = self.request_status.get(room, (0, None))
        if owner > request and not self.record(room, request)["over"]:
            return KVPoll.Failed
        return status if owner == request else None


class Adapter:
    def __init__(self, probe):
        self.table = probe.table()
        self.manager = Manager(probe.tell, probe.release, self.table, probe.table())

    def create(self, room, request):
        with self.manager.lock:
            self.manager.update_status(room, request, KVPoll.Bootstrapping)

    def metadata(self, room, request):
        with self.manager.lock:
            if self.manager.record(room, request)["over"]:
                return
            self.manager.transfer_infos[room, request] = "address of decode's pages"
            self.manager.update_status(room, request, KVPoll.WaitingForInput)

    def abort_notice(self, room, request):
        with self.manager.lock:
            if self.manager.current(room, request) is not None:
                self.manager.update_status(room, request, KVPoll.Failed)

    def abort(self, room, request):
        self.abort_notice(room, request)

    def start(self, room, request, chunk, last):
        with self.manager.lock:
            if (room, request) not in self.manager.transfer_infos:
                return False
            if self.manager.current(room, request) in (None, KVPoll.Failed, KVPoll.Success):
                return False
            self.manager.update_status(room, request, KVPoll.Transferring)
            self.manager.record(room, request)["reading"] += 1
            return True

    def finish(self, room, request, chunk, last, ok):
        with self.manager.lock:
            record = self.manager.record(room, request)
            record["reading"] -= 1
            record["done"] += ok
            if last:
                record["of"] = chunk + 1
            if not record["over"]:
                if not ok:
                    self.manager.update_status(room, request, KVPoll.Failed)
                elif record["done"] == record["of"]:
                    self.manager.update_status(room, request, KVPoll.Success)
                status = self.manager.current(room, request)
                if status in (KVPoll.Failed, KVPoll.Success) and "told" not in record:
                    record["told"] = status
                    self.manager.tell(room, request, status)
            elif record["reading"] == 0:
                self.manager.release(room, request)

    def poll(self, room, request):
        with self.manager.lock:
            return self.manager.current(room, request)

    def clear(self, room, request):
        with self.manager.lock:
            record = self.manager.record(room, request)
            record["over"] = True
            self.manager.transfer_infos.pop((room, request), None)
            if self.manager.request_status.get(room, (0, None))[0] == request:
                self.manager.request_status[room] = (request, None)
            if record["reading"] == 0:
                self.manager.release(room, request)

    def status(self, room):
        entry = self.table.peek(room)
        return None if entry is None else entry[1]
