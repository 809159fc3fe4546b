"""The table holds requests weakly; whoever has one in hand keeps it alive, until its pages are released."""

import threading
import weakref

from rules import Handlers, Request, step

from kvlatch.spec.status import KVPoll


class Box:
    def __init__(self):
        self.now = Request()


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = threading.Lock()
        self.table = weakref.WeakValueDictionary()
        self.owned = {}
        self.gone = set()

    def do(self, room, request, event, *details):
        key = room, request
        with self.lock:
            if key in self.gone:
                return {"start": False}.get(event)
            box = self.table.get(key)
            if box is None:
                box = Box()
                self.table[key] = self.owned[key] = box
            box.now, answer, todo = step(box.now, event, *details)
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, todo)
            if box.now.released:
                self.gone.add(key)
                self.owned.pop(key, None)
            return answer

    def status(self, room):
        box = self.table.get((room, self.newest.get(room)))
        return None if box is None or box.now.status is None else KVPoll(box.now.status)
