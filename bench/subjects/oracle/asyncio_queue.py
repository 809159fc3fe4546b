"""An asyncio task serves an asyncio.Queue; the loop runs in a thread that says by a Barrier when it is ready."""

import asyncio
from concurrent.futures import Future
from threading import Barrier, Thread

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.ready = Barrier(2)
        self.thread = Thread(target=lambda: asyncio.run(self.serve()), daemon=True)
        self.thread.start()
        self.ready.wait()

    async def serve(self):
        self.loop, self.inbox = asyncio.get_running_loop(), asyncio.Queue()
        self.ready.wait()
        while (message := await self.inbox.get()) is not None:
            future, (room, request, event, *details) = message
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, todo)
            future.set_result(answer)

    def do(self, *call):
        future = Future()
        self.loop.call_soon_threadsafe(self.inbox.put_nowait, (future, call))
        return future.result()

    def close(self):
        self.loop.call_soon_threadsafe(self.inbox.put_nowait, None)
        self.thread.join()
