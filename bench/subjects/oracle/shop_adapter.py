"""The adapter of the manager in shop/."""

from shop.manager import Shelf
from shop.state import Stage

from kvlatch.spec.status import KVPoll

WORDS = {
    Stage.NEW: KVPoll.Bootstrapping,
    Stage.READY: KVPoll.WaitingForInput,
    Stage.MOVING: KVPoll.Transferring,
    Stage.DONE: KVPoll.Success,
    Stage.BROKEN: KVPoll.Failed,
}


class Adapter:
    def __init__(self, probe):
        self.shelf = Shelf(lambda room, request, stage: probe.tell(room, request, WORDS[stage]), probe.release)

    def create(self, room, request):
        self.shelf.ticket(room, request).open()

    def metadata(self, room, request):
        self.shelf.ticket(room, request).ready()

    def abort_notice(self, room, request):
        self.shelf.ticket(room, request).give_up()

    def abort(self, room, request):
        self.shelf.ticket(room, request).give_up()

    def start(self, room, request, chunk, last):
        return self.shelf.ticket(room, request).take()

    def finish(self, room, request, chunk, last, ok):
        self.shelf.ticket(room, request).put(chunk, last, ok)

    def poll(self, room, request):
        return WORDS.get(self.shelf.ticket(room, request).stage)

    def clear(self, room, request):
        self.shelf.ticket(room, request).close()

    def status(self, room):
        ticket = self.shelf.newest(room)
        return None if ticket is None else WORDS.get(ticket.stage)
