"""The table is a database in memory, one connection and one lock: ids are text, so any id will do."""

import sqlite3
import threading

from kvlatch.spec.status import KVPoll

SCHEMA = """
create table requests (
    room text, request integer, status integer, reading integer default 0, arrived integer default 0,
    total integer, cleared integer default 0, told integer default 0, primary key (room, request)
)
"""


class Adapter:
    def __init__(self, probe):
        self.probe = probe
        self.lock = threading.Lock()
        self.rows = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.rows.execute(SCHEMA)

    def sql(self, what, room, request, *values):
        self.rows.execute("insert or ignore into requests (room, request) values (?, ?)", (str(room), request))
        key = (*values, str(room), request)
        return self.rows.execute(f"{what} where room = ? and request = ?", key).fetchone()

    def create(self, room, request):
        with self.lock:
            self.sql("update requests set status = iif(status is null and not cleared, 1, status)", room, request)

    def metadata(self, room, request):
        with self.lock:
            self.sql(
                "update requests set status = iif(coalesce(status, 1) = 1 and not cleared, 2, status)", room, request
            )

    def abort(self, room, request):
        with self.lock:
            self.sql("update requests set status = iif(status in (1, 2, 3), 0, status)", room, request)

    abort_notice = abort

    def start(self, room, request, chunk, last):
        with self.lock:
            (status,) = self.sql("select status from requests", room, request)
            if status not in (2, 3):
                return False
            self.sql("update requests set status = 3, reading = reading + 1", room, request)
            return True

    def finish(self, room, request, chunk, last, ok):
        with self.lock:
            self.sql("update requests set reading = reading - 1, arrived = arrived + ?", room, request, int(ok))
            if last:
                self.sql("update requests set total = ?", room, request, chunk + 1)
            if not ok:
                self.sql("update requests set status = iif(status = 3, 0, status)", room, request)
            self.sql("update requests set status = iif(status = 3 and arrived = total, 4, status)", room, request)
            reading, status, cleared, told = self.sql(
                "select reading, status, cleared, told from requests", room, request
            )
            if cleared and not reading:
                self.probe.release(room, request)
            elif status in (0, 4) and not told:
                self.sql("update requests set told = 1", room, request)
                self.probe.tell(room, request, KVPoll(status))

    def poll(self, room, request):
        with self.lock:
            (status,) = self.sql("select status from requests", room, request)
            return None if status is None else KVPoll(status)

    def clear(self, room, request):
        with self.lock:
            self.sql("update requests set status = null, cleared = 1", room, request)
            (reading,) = self.sql("select reading from requests", room, request)
            if not reading:
                self.probe.release(room, request)

    def status(self, room):
        newest = "select status from requests where room = ? order by request desc limit 1"
        row = self.rows.execute(newest, (str(room),)).fetchone()
        return None if row is None or row[0] is None else KVPoll(row[0])
