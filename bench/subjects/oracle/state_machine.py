"""A class for each state, after the pattern: an event on a state gives the next one."""

import threading

from kvlatch.spec.status import KVPoll


class State:
    code = None

    def create(self):
        return self

    def metadata(self):
        return self

    def fail(self):
        return Failed()

    def start(self):
        return None

    def success(self):
        return self


class Unknown(State):
    def create(self):
        return Bootstrapping()

    def metadata(self):
        return Waiting()

    def fail(self):
        return self


class Bootstrapping(State):
    code = KVPoll.Bootstrapping

    def metadata(self):
        return Waiting()


class Waiting(State):
    code = KVPoll.WaitingForInput

    def start(self):
        return Transferring()


class Transferring(State):
    code = KVPoll.Transferring

    def start(self):
        return self

    def success(self):
        return Success()


class Over(State):
    def fail(self):
        return self


class Failed(Over):
    code = KVPoll.Failed


class Success(Over):
    code = KVPoll.Success


class Cleared(Over):
    """The tombstone."""


class Request:
    def __init__(self):
        self.state = Unknown()
        self.reading = 0
        self.arrived = 0
        self.total = None
        self.told = False


class Adapter:
    def __init__(self, probe):
        self.probe = probe
        self.lock = threading.Lock()
        self.rooms = {}

    def request(self, room, request):
        return self.rooms.setdefault(room, {}).setdefault(request, Request())

    def create(self, room, request):
        with self.lock:
            it = self.request(room, request)
            it.state = it.state.create()

    def metadata(self, room, request):
        with self.lock:
            it = self.request(room, request)
            it.state = it.state.metadata()

    def abort(self, room, request):
        with self.lock:
            it = self.request(room, request)
            it.state = it.state.fail()

    def abort_notice(self, room, request):
        self.abort(room, request)

    def start(self, room, request, chunk, last):
        with self.lock:
            it = self.request(room, request)
            state = it.state.start()
            if state is None:
                return False
            it.state = state
            it.reading += 1
            return True

    def finish(self, room, request, chunk, last, ok):
        with self.lock:
            it = self.request(room, request)
            it.reading -= 1
            it.arrived += ok
            it.total = chunk + 1 if last else it.total
            if isinstance(it.state, Cleared):
                self.drained(room, request)
                return
            if not ok:
                it.state = it.state.fail()
            elif it.arrived == it.total:
                it.state = it.state.success()
            if isinstance(it.state, Over) and not it.told:
                it.told = True
                self.probe.tell(room, request, it.state.code)

    def poll(self, room, request):
        with self.lock:
            return self.request(room, request).state.code

    def clear(self, room, request):
        with self.lock:
            self.request(room, request).state = Cleared()
            self.drained(room, request)

    def drained(self, room, request):
        if not self.request(room, request).reading:
            self.probe.release(room, request)

    def status(self, room):
        requests = self.rooms.get(room)
        return requests[max(requests)].state.code if requests else None
