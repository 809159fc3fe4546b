"""What is watched of a manager object, by its attributes: containers are replaced, methods get a wrapper.

A wrapper is an attribute of that one object, so a call by ``super()`` is not noted twice. What a manager does not have
is not watched, and the operations that it would show are not in the header of the log: ``kvlatch check`` then says
which laws it cannot judge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from kvlatch.reference.logs.recording.containers import Infos, Statuses, filled, watch_queue
from kvlatch.reference.logs.recording.recorder import WAITING, Recorder, number_of
from kvlatch.reference.logs.recording.senders import RECORDER, watch
from kvlatch.reference.logs.recording.tape import Tape

TABLE, INFOS, AGENT = "request_status", "transfer_infos", "agent"
QUEUES: Final = ("transfer_queues", "transfer_queue")
CONTAINED: Final = (TABLE, INFOS, AGENT, *QUEUES)
"""What a manager keeps its state in."""
UPDATE, ADD, WORK = "update_status", "add_transfer_request", "transfer_worker"
SENDS: Final = ("send_kvcache", "send_aux", "send_state", "maybe_send_extra")
"""How methods begin that start a transfer of the chunk that a worker has in hand."""
TELLS: Final = ("sync_status_to_decode_endpoint", "send_kv_status_message")
OF_TABLE: Final = ("create", "clear", "poll", "abort", "write", "conclude")
OF_TRANSFERS: Final = ("enqueue", "drop", "take", "post", "arrive", "fail")


class Unknown(Exception):
    """A manager that lacks what a recording needs; the message says what."""


def record(
    manager: Any,
    path: Path | str,
    *,
    senders: Iterable[type] = (),
    prefill: bool = True,
    releases: bool = False,
    node: str | None = None,
    rank: int | str | None = None,
    read: Callable[[Any], int | None] = number_of,
) -> Recorder:
    """Record a manager from now on into ``path.<number of the process>.ndjson``; what it did before is not in the log.

    ``senders`` are the classes of its senders and receivers, which are told apart by their ``kv_mgr``. ``releases``:
    the caller notes what becomes of pages (``Recorder.released``). ``read`` makes a status number of an entry.
    Unknown if the manager keeps no table of statuses; nothing is changed then. OSError if there can be no such file.
    """
    missing = [name for name in (TABLE, UPDATE) if not hasattr(manager, name)]
    if missing or not isinstance(getattr(manager, TABLE), dict):
        raise Unknown(f"{type(manager).__name__} has no {missing[0] if missing else f'dictionary {TABLE}'}")
    recorder = recorder_for(manager, path, prefill=prefill, releases=releases, node=node, rank=rank, read=read)
    for name in CONTAINED:
        if hasattr(manager, name):
            setattr(manager, name, contain(recorder, name, getattr(manager, name)))
    for sender in senders:
        watch(sender)
    return recorder


def recorder_for(
    manager: Any, path: Path | str, *, prefill: bool, releases: bool, node: str | None, rank: int | str | None,
    read: Callable[[Any], int | None] = number_of, about: str = "",
) -> Recorder:  # fmt: skip
    """Open a tape for a manager, and put wrappers around its methods; its containers may not be there yet."""
    transfers = prefill and all(callable(getattr(manager, name, None)) for name in (ADD, WORK))
    tells = [name for name in TELLS if prefill and callable(getattr(manager, name, None))]
    ops = [*OF_TABLE, *(["infos", "forget", "end"] if prefill else []), *(OF_TRANSFERS if transfers else [])]
    ops += ["tell"] * bool(tells) + ["hold", "release"] * (transfers and releases)
    recorder = Recorder(Tape(Path(path), ops, node, None if rank is None else str(rank), about), tuple(ops), read)
    vars(manager)[RECORDER] = recorder
    wrappers: dict[str, Callable[[Recorder, Callable[..., Any]], Callable[..., Any]]] = {UPDATE: _updating}
    wrappers |= dict.fromkeys(tells, _telling)
    if transfers:
        wrappers |= {ADD: _adding, WORK: _working}
        wrappers |= {name: _sending for name in dir(type(manager)) if name.startswith(SENDS)}
    for name, wrapper in wrappers.items():
        if callable(method := getattr(manager, name, None)):
            vars(manager)[name] = functools.wraps(method)(wrapper(recorder, method))
    return recorder


def contain(recorder: Recorder, name: str, value: Any) -> Any:
    """What takes the place of a value that the manager keeps under that name. Unknown if it cannot be watched."""
    if name == TABLE:
        if not isinstance(value, dict):
            raise Unknown(f"{TABLE} is of {type(value).__name__}, and not a dictionary")
        recorder.table = value = filled(Statuses, value, recorder)
    elif name == INFOS and isinstance(value, dict):
        recorder.infos = value = filled(Infos, value, recorder)
    elif name in QUEUES and "take" in recorder.ops:
        for queue in value if isinstance(value, list) else [value]:
            watch_queue(queue, recorder)
    elif name == AGENT and callable(look := getattr(value, "check_xfer_state", None)):
        value.check_xfer_state = functools.wraps(look)(_looking(recorder, look))
        recorder.waits = True
    return value


# --------------------------------------------------------------------------------------------------------------------
# Wrappers: given a recorder and a bound method, a function in its place


def _updating(recorder: Recorder, method: Callable[..., Any]) -> Callable[..., Any]:
    def update_status(room: Any, status: Any, *more: Any, **named: Any) -> Any:
        mine = recorder.mine
        before = mine.incoming, mine.stored
        heard = status == WAITING and mine.request is None and mine.task is None and bool(recorder.infos.get(room))
        if heard:  # SGLang's bootstrap thread writes WaitingForInput when the metadata of the last rank has come
            recorder.note("infos", room)
        mine.incoming, mine.stored = status, False
        try:
            result = method(room, status, *more, **named)
            if not mine.stored:
                recorder.kept(room, status)
        except Exception as error:
            if heard:
                recorder.note("end", room, error=repr(error))
            raise
        finally:
            mine.incoming, mine.stored = before
        if heard:
            recorder.note("end", room)
        return result

    return update_status


def _adding(recorder: Recorder, method: Callable[..., Any]) -> Callable[..., Any]:
    def add_transfer_request(*arguments: Any, **named: Any) -> Any:
        recorder.mine.put = False
        result = method(*arguments, **named)
        if not recorder.mine.put:
            room = arguments[0] if arguments else named.get("bootstrap_room")
            is_last = named.get("is_last_chunk", named.get("is_last", arguments[3] if len(arguments) > 3 else False))
            recorder.dropped(room, is_last)
        return result

    return add_transfer_request


def _working(recorder: Recorder, method: Callable[..., Any]) -> Callable[..., Any]:
    def transfer_worker(*arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except Exception as error:
            recorder.through(repr(error))
            raise

    return transfer_worker


def _sending(recorder: Recorder, method: Callable[..., Any]) -> Callable[..., Any]:
    def send(*arguments: Any, **named: Any) -> Any:
        mine = recorder.mine
        task = mine.task
        if task is None or mine.sending:
            return method(*arguments, **named)
        recorder.posting(task)
        mine.sending = True
        try:
            result = method(*arguments, **named)
            if recorder.waits:  # what it returns are the agent's handles
                handles = result if isinstance(result, list | tuple) else [result]
                task.handles += [handle for handle in handles if handle is not None]
            else:
                task.bad = task.bad or (isinstance(result, int) and result != 0)
        except Exception:
            task.bad = True
            raise
        finally:
            mine.sending = False
            recorder.ended(task)
        return result

    return send


def _looking(recorder: Recorder, method: Callable[..., Any]) -> Callable[..., Any]:
    def check_xfer_state(handle: Any, *more: Any, **named: Any) -> Any:
        state = method(handle, *more, **named)
        recorder.looked(handle, state)
        return state

    return check_xfer_state


def _telling(recorder: Recorder, method: Callable[..., Any]) -> Callable[..., Any]:
    def tell(*arguments: Any, **named: Any) -> Any:
        if "targets" in named:
            recorder.told(named.get("bootstrap_room"), named.get("status", -1), named["targets"])
        elif len(arguments) > 3:
            recorder.told(arguments[2], arguments[3], [arguments[:2]])
        return method(*arguments, **named)

    return tell
