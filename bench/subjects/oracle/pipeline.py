"""Two executors of one thread each: one decides, the other carries out effects, in order; calls wait for both."""

from concurrent.futures import ThreadPoolExecutor

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.decide = ThreadPoolExecutor(1, thread_name_prefix="decide")
        self.carry = ThreadPoolExecutor(1, thread_name_prefix="carry")

    def decided(self, room, request, event, *details):
        now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
        self.requests[room, request] = now
        self.newest[room] = max(request, self.newest.get(room, 0))
        return answer, self.carry.submit(self.effects, room, request, todo)

    def do(self, *call):
        answer, carried = self.decide.submit(self.decided, *call).result()
        carried.result()
        return answer

    def close(self):
        self.decide.shutdown()
        self.carry.shutdown()
