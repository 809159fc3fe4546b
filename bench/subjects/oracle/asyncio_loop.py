"""asyncio, with its loop in a thread; other threads' calls are passed into it, and an asyncio.Lock keeps them apart."""

import asyncio
import threading

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.loop = asyncio.new_event_loop()
        self.lock = asyncio.Lock()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    async def load(self, key):
        await asyncio.sleep(0)  # a store that is not in this process
        return self.requests.get(key, Request())

    async def save(self, key, now):
        await asyncio.sleep(0)
        self.requests[key] = now
        self.newest[key[0]] = max(key[1], self.newest.get(key[0], 0))

    async def handle(self, room, request, event, *details):
        async with self.lock:
            now, answer, todo = step(await self.load((room, request)), event, *details)
            await self.save((room, request), now)
            self.effects(room, request, todo)
            return answer

    def do(self, *call):
        return asyncio.run_coroutine_threadsafe(self.handle(*call), self.loop).result()

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
