"""The board: what each request shows. Which word an event writes stands in words.json."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

WORDS = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
FROM = {
    "create": [None],
    "metadata": [None, "Bootstrapping"],
    "abort": ["Bootstrapping", "WaitingForInput", "Transferring"],
    "start": ["WaitingForInput", "Transferring"],
}


@dataclass
class Row:
    word: str | None = None
    reading: int = 0
    arrived: int = 0
    total: int = -1
    gone: bool = False
    told: bool = False


@dataclass
class Board:
    tell: object
    release: object
    rows: dict = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def row(self, *key):
        if key not in self.rows:
            self.rows[key] = Row()
        return self.rows[key]

    def event(self, event, *key):
        """Whether the event has been taken."""
        with self.lock:
            row = self.row(*key)
            if row.gone or row.word not in FROM[event]:
                return False
            row.word = WORDS[event]
            row.reading += event == "start"
            return True

    def finish(self, chunk, last, ok, *key):
        with self.lock:
            row = self.row(*key)
            row.reading -= 1
            row.arrived += ok
            row.total = chunk + 1 if last else row.total
            if row.gone:
                self.free(*key)
                return
            if row.word == "Transferring" and not ok:
                row.word = "Failed"
            if row.word == "Transferring" and row.arrived == row.total:
                row.word = "Success"
            if row.word != "Transferring" and not row.told:
                row.told = True
                self.tell(*key, row.word)

    def show(self, *key):
        with self.lock:
            return self.row(*key).word

    def wipe(self, *key):
        with self.lock:
            row = self.row(*key)
            row.gone, row.word = True, None
            self.free(*key)

    def free(self, *key):
        if not self.row(*key).reading:
            self.release(*key)
