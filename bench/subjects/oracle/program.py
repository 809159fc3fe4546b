"""A manager as a program of its own: one JSON object a line in, one out. It knows nothing but the line protocol."""

import json
import sys

NAMES = ["Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success"]


class Request:
    def __init__(self):
        self.status = None
        self.reading = self.arrived = 0
        self.total = None
        self.cleared = self.told = False


class Manager:
    def __init__(self):
        self.rooms = {}
        self.released = []
        self.told = []

    def of(self, room, request):
        return self.rooms.setdefault(room, {}).setdefault(request, Request())

    def create(self, it, call):
        if it.status is None and not it.cleared:
            it.status = "Bootstrapping"

    def metadata(self, it, call):
        if it.status in (None, "Bootstrapping") and not it.cleared:
            it.status = "WaitingForInput"

    def abort(self, it, call):
        if it.status not in (None, "Failed", "Success"):
            it.status = "Failed"

    abort_notice = abort

    def start(self, it, call):
        if it.status not in ("WaitingForInput", "Transferring"):
            return False
        it.status = "Transferring"
        it.reading += 1
        return True

    def finish(self, it, call):
        it.reading -= 1
        it.arrived += call["ok"]
        if call["last"]:
            it.total = call["chunk"] + 1
        if it.status == "Transferring":
            if not call["ok"]:
                it.status = "Failed"
            elif it.arrived == it.total:
                it.status = "Success"
        if it.status in ("Failed", "Success") and not it.told:
            it.told = True
            self.told.append([call["request"], it.status])
        self.drain(it, call)

    def poll(self, it, call):
        return it.status

    def clear(self, it, call):
        it.status = None
        it.cleared = True
        self.drain(it, call)

    def drain(self, it, call):
        if it.cleared and it.reading == 0:
            self.released.append(call["request"])

    def answer(self, call):
        self.released, self.told = [], []
        answer = getattr(self, call["event"])(self.of(call["room"], call["request"]), call)
        requests = self.rooms[call["room"]]
        reply = {"status": requests[max(requests)].status}
        if call["event"] in ("start", "poll"):
            reply["answer"] = answer
        return reply | {"released": self.released, "told": self.told}


def main():
    manager = Manager()
    for line in sys.stdin:
        call = json.loads(line)
        if call["event"] == "fresh":
            manager = Manager()
            reply = {"fresh": True}
        else:
            reply = manager.answer(call)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
