"""The adapter of the manager in stall/."""

from stall import Board

from kvlatch.spec.status import KVPoll


def of_word(word):
    return None if word is None else KVPoll[word]


class Adapter:
    def __init__(self, probe):
        self.board = Board(lambda room, request, word: probe.tell(room, request, KVPoll[word]), probe.release)

    def create(self, room, request):
        self.board.event("create", room, request)

    def metadata(self, room, request):
        self.board.event("metadata", room, request)

    def abort_notice(self, room, request):
        self.board.event("abort", room, request)

    def abort(self, room, request):
        self.board.event("abort", room, request)

    def start(self, room, request, chunk, last):
        return self.board.event("start", room, request)

    def finish(self, room, request, chunk, last, ok):
        self.board.finish(chunk, last, ok, room, request)

    def poll(self, room, request):
        return of_word(self.board.show(room, request))

    def clear(self, room, request):
        self.board.wipe(room, request)

    def status(self, room):
        mine = [key for key in list(self.board.rows) if key[0] == room]
        return of_word(self.board.rows[max(mine, key=lambda key: key[1])].word) if mine else None
