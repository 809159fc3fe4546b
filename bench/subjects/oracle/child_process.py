"""The manager is another process, and the adapter speaks with it through pipes, under a lock."""

import json
import subprocess
import sys
import threading
from pathlib import Path

from kvlatch.spec.status import KVPoll


class Adapter:
    def __init__(self, probe):
        self.probe = probe
        self.lock = threading.Lock()
        self.statuses = {}
        command = [sys.executable, "-S", str(Path(__file__).with_name("program.py"))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, event, room, request, **more):
        with self.lock:
            self.process.stdin.write(json.dumps({"event": event, "room": room, "request": request} | more) + "\n")
            self.process.stdin.flush()
            reply = json.loads(self.process.stdout.readline())
            self.statuses[room] = reply["status"]
            for about, word in reply["told"]:
                self.probe.tell(room, about, KVPoll[word])
            for about in reply["released"]:
                self.probe.release(room, about)
            return reply.get("answer")

    def create(self, room, request):
        self.ask("create", room, request)

    def metadata(self, room, request):
        self.ask("metadata", room, request)

    def abort_notice(self, room, request):
        self.ask("abort_notice", room, request)

    def abort(self, room, request):
        self.ask("abort", room, request)

    def start(self, room, request, chunk, last):
        return self.ask("start", room, request, chunk=chunk, last=last)

    def finish(self, room, request, chunk, last, ok):
        self.ask("finish", room, request, chunk=chunk, last=last, ok=ok)

    def poll(self, room, request):
        word = self.ask("poll", room, request)
        return None if word is None else KVPoll[word]

    def clear(self, room, request):
        self.ask("clear", room, request)

    def status(self, room):
        word = self.statuses.get(room)
        return None if word is None else KVPoll[word]

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
