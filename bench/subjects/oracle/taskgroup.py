"""A loop in a thread; each call is a task of its TaskGroup, and an asyncio.Lock for each room keeps them apart."""

import asyncio
import threading

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.locks = {}
        self.thread = threading.Thread(target=self.main, daemon=True)
        self.thread.start()
        self.ready.wait()

    def main(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self.serve())

    async def serve(self):
        self.inbox = asyncio.Queue()
        self.ready.set()
        async with asyncio.TaskGroup() as group:
            while (call := await self.inbox.get()) is not None:
                group.create_task(self.handle(*call))

    async def handle(self, done, room, request, event, *details):
        async with self.locks.setdefault(room, asyncio.Lock()):
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            await asyncio.sleep(0)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, todo)
        done.append(answer)
        done[0].set()

    def do(self, *call):
        done = [threading.Event()]
        self.loop.call_soon_threadsafe(self.inbox.put_nowait, (done, *call))
        done[0].wait()
        return done[1]

    def close(self):
        self.loop.call_soon_threadsafe(self.inbox.put_nowait, None)
        self.thread.join()
