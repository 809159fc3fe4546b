"""The clients of a storm, and what becomes of each of them.

Nothing is sent anywhere but to the one address that the storm is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import httpx

from kvlatch.reference.live import pages
from kvlatch.reference.live.load import Ask, Load, room_id
from kvlatch.reference.live.records import Outcome, Request
from kvlatch.reference.live.settings import Settings

_ROOM_BITS: Final = 63
"""Of a room id, as the router draws it."""
_TOKENS: Final = 8
"""Tokens that a foreign deployment is asked to generate."""
_UNREAD_SECONDS: Final = 3.0
"""How long a client that never reads keeps its connection."""
_OK: Final = 200


class _NeverRead(Exception):
    """A client has gone without having read anything."""


@attrs.frozen(eq=False)
class Clients:
    """Clients of one address; ``settings`` are those of an engine of ours, None where it is not.

    ``hidden`` are texts (keys, say) that a server may send back, and that must not get into a report.
    """

    url: str
    load: Load
    settings: Settings | None
    start: float
    http: httpx.AsyncClient
    hidden: tuple[str, ...] = attrs.field(default=(), repr=False)
    done: list[Request] = attrs.field(factory=list)

    async def storm(self, asks: Sequence[Ask]) -> None:
        """Send everything, within the bounds of the load; on cancellation, every client hangs up."""
        end = time.monotonic() + self.load.seconds
        waiting = iter(asks)
        gate = _Gate(self.load.rate)
        workers = [asyncio.create_task(self._client(waiting, gate, end)) for _ in range(self.load.clients)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _client(self, waiting: Iterator[Ask], gate: _Gate, end: float) -> None:
        """One client after the other, until nothing is left to ask, or the time is up."""
        room = secrets.randbits(_ROOM_BITS)
        while time.monotonic() < end and (ask := next(waiting, None)) is not None:
            await gate.wait()
            outcome = await self.ask(ask, room if self.load.reuse else None)
            if outcome != "aborted":
                room = secrets.randbits(_ROOM_BITS)

    async def ask(self, ask: Ask, room: int | None = None) -> Outcome:
        """One request, to its end; with a room id of the client's own, if there is one."""
        begun = time.monotonic()
        outcome: Outcome = "aborted"
        code, wrong, detail = None, False, "the storm was interrupted"
        try:
            async with asyncio.timeout(self.load.limit if ask.patience is None else ask.patience):
                code, text = await (self._post(ask, room) if ask.reads else self._never_read(ask, room))
            outcome, detail = ("completed", "") if code == _OK else ("failed", self._shown(text)[:200])
            wrong = outcome == "completed" and self.settings is not None and not self._right(ask, text)
        except TimeoutError:
            outcome = "unaccounted" if ask.patience is None else "aborted"
            detail = f"no answer after {time.monotonic() - begun:.2f} s"
        except _NeverRead:
            detail = "never read its answer"
        except (httpx.HTTPError, OSError) as error:
            outcome, detail = "failed", self._shown(f"{type(error).__name__}: {error}")
        finally:
            times = begun - self.start, time.monotonic() - self.start
            self.done.append(Request(ask.number, ask.chunks, *times, outcome, wrong, code, detail))
        return outcome

    async def _post(self, ask: Ask, room: int | None) -> tuple[int, str]:
        """The status and the text of the answer; of a stream, the last text."""
        async with self.http.stream("POST", f"{self.url}/generate", json=_body(ask, room), timeout=None) as response:
            page = (await response.aread()).decode("utf-8", "replace")
        if response.status_code != _OK:
            return response.status_code, page
        return _text(page, stream=ask.stream)

    async def _never_read(self, ask: Ask, room: int | None) -> tuple[int, str]:
        """Send the request, and read nothing; the client is counted as one that hung up."""
        address = urlsplit(self.url)
        tls = address.scheme == "https"
        _, writer = await asyncio.open_connection(address.hostname, address.port or (443 if tls else 80), ssl=tls)
        try:
            body = json.dumps(_body(ask, room)).encode()
            about = {"Host": address.netloc, "Content-Type": "application/json", "Content-Length": str(len(body))}
            headers = "".join(f"{name}: {value}\r\n" for name, value in [*about.items(), *self.http.headers.items()])
            writer.write(f"POST {address.path}/generate HTTP/1.1\r\n{headers}\r\n".encode("latin-1") + body)
            await writer.drain()
            await asyncio.sleep(_UNREAD_SECONDS)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        raise _NeverRead

    def _shown(self, text: str) -> str:
        for secret in self.hidden:
            text = text.replace(secret, "***")
        return text

    def _right(self, ask: Ask, text: str) -> bool:
        if self.settings is None:
            return True
        count = ask.chunks * self.settings.chunk_pages
        return text.split(" ", maxsplit=1)[0] == pages.digest_of(ask.prompt, count, self.settings.page_bytes)


def _body(ask: Ask, room: int | None) -> dict[str, Any]:
    named = {} if room is None else {"rid": room_id(room)}
    return {"text": ask.prompt, "sampling_params": {"max_new_tokens": _TOKENS}, "stream": ask.stream, **named}


class _Gate:
    """Lets requests begin no faster than at a rate."""

    def __init__(self, rate: float | None) -> None:
        self._interval = 0.0 if rate is None else 1 / rate
        self._next = time.monotonic()

    async def wait(self) -> None:
        """Wait until the next request may begin."""
        turn = max(self._next, time.monotonic())
        self._next = turn + self._interval
        await asyncio.sleep(turn - time.monotonic())


def _text(page: str, *, stream: bool) -> tuple[int, str]:
    """What was generated. An error inside a stream, where the status has been sent, counts as the status it names."""
    try:
        if not stream:
            return _OK, str(json.loads(page)["text"])
        events = [line.removeprefix("data: ") for line in page.splitlines() if line.startswith("data: ")]
        if not events or events[-1] != "[DONE]":
            return 500, "the stream broke off"
        last = json.loads(events[-2]) if len(events) > 1 else {}
        if "error" in last:
            return int(last["error"].get("code", 500)), str(last["error"].get("message", last["error"]))
        return _OK, str(last["text"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return 500, f"the answer is not one of /generate: {error!r}"
