"""Record what a running manager does to its requests, as an event log; ``kvlatch record`` does so for SGLang.

``tape`` is the file of one process, ``recorder`` what is noted on it, ``containers`` the watched table, metadata and
queues, ``methods`` and ``senders`` the watched calls, ``sglang`` the import hook, and ``start/sitecustomize.py`` what
starts it in a process that has never heard of kvlatch.

Standard library only, and Python 3.10: all of this runs inside somebody's server. Whatever goes wrong in here stops the
recording with one line on standard error; it never reaches the server.
"""

from kvlatch.reference.logs.recording.methods import record
from kvlatch.reference.logs.recording.recorder import Recorder
from kvlatch.reference.logs.recording.senders import watch

__all__ = ["Recorder", "record", "watch"]
