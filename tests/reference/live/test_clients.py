"""Clients: what they ask is drawn from the seed, and what becomes of each of them is told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

import attrs
import pytest

httpx = pytest.importorskip("httpx", reason="needs the extra live")

from kvlatch.reference.live import clients as clients_module  # noqa: E402
from kvlatch.reference.live.clients import Clients  # noqa: E402
from kvlatch.reference.live.load import Ask, Load, number_of, prompt, room_of, rounds  # noqa: E402
from kvlatch.reference.live.pages import digest_of  # noqa: E402
from kvlatch.reference.live.records import Request  # noqa: E402
from kvlatch.reference.live.settings import Settings  # noqa: E402

LOAD = Load(requests=40, clients=8, seconds=30.0, patience=(0.01, 0.02))
SMALL = Settings(chunk_tokens=8, chunk_pages=2, page_bytes=64)
Answer = Callable[[Any], Awaitable[Any]]


def ask(number: int = 0, **changes: Any) -> Ask:
    """A patient client with a prompt of one chunk."""
    return attrs.evolve(Ask(number, f"prompt {number}", 1, None, stream=False), **changes)


def stormed(answer: Answer, drawn: list[Ask], load: Load = LOAD, settings: Settings | None = SMALL) -> list[Request]:
    """What becomes of these clients at a server that answers so."""

    async def run() -> list[Request]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            clients = Clients("http://router", load, settings, time.monotonic(), http)
            await clients.storm(drawn)
            return sorted(clients.done, key=lambda request: request.number)

    return asyncio.run(run())


async def right(request: Any) -> Any:
    """Answer with the digest of the prompt's pages, as a stream if that is asked for."""
    body = json.loads(request.content)
    said = {"text": f"{digest_of(body['text'], 2, 64)} is the digest"}
    if not body["stream"]:
        return httpx.Response(200, json=said)
    return httpx.Response(200, text=f'data: {{"text": ""}}\n\ndata: {json.dumps(said)}\n\ndata: [DONE]\n\n')


def test_the_seed_decides_what_is_asked() -> None:
    """Equal seeds ask the same, of control and of treatment; each prompt is asked once, within the bounds."""
    drawn = next(rounds(LOAD, 3, 64))
    assert drawn == next(rounds(LOAD, 3, 64)) != next(rounds(LOAD, 4, 64))
    assert len({one.prompt for one in drawn}) == LOAD.requests
    assert {one.chunks for one in drawn} <= set(range(LOAD.chunks[0], LOAD.chunks[1] + 1))
    assert all(len(one.prompt.split()) == one.chunks * 64 for one in drawn)
    assert all(one.patience is None or 0.01 <= one.patience <= 0.02 for one in drawn)
    assert {one.patience is None for one in drawn} == {one.stream for one in drawn} == {True, False}
    unread = rounds(attrs.evolve(LOAD, unread=3), 3, 64)
    for _ in range(2):
        assert [one.reads for one in next(unread)].count(False) == 3


def test_a_second_round_asks_for_something_else() -> None:
    """Other numbers, other prompts, and the same ones for the same seed."""
    first, second = islice(rounds(LOAD, 3, 64), 2)
    assert [one.number for one in first + second] == list(range(2 * LOAD.requests))
    assert len({one.prompt for one in first + second}) == 2 * LOAD.requests
    assert second == list(islice(rounds(LOAD, 3, 64), 2))[1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_right_answer_completes(stream: bool) -> None:
    """The digest is compared with that of the prompt, of a stream in its last event."""
    (done,) = stormed(right, [ask(stream=stream)])
    assert (done.outcome, done.wrong, done.code) == ("completed", False, 200)
    (other,) = stormed(right, [ask(stream=stream)], settings=attrs.evolve(SMALL, page_bytes=32))
    assert (other.outcome, other.wrong) == ("completed", True)
    (foreign,) = stormed(right, [ask(stream=stream)], settings=None)
    assert (foreign.outcome, foreign.wrong) == ("completed", False)


@pytest.mark.parametrize(
    ("reply", "code", "detail"),
    [
        ({"status_code": 503, "text": "overloaded"}, 503, "overloaded"),
        ({"status_code": 200, "text": "<html>"}, 500, "the answer is not one of /generate"),
        ({"status_code": 200, "json": {"words": []}}, 500, "the answer is not one of /generate"),
    ],
)
def test_an_error_is_a_failure_with_its_reason(reply: dict[str, Any], code: int, detail: str) -> None:
    """A status that is not 200, and an answer that is none."""

    async def answer(_: Any) -> Any:
        return httpx.Response(**reply)

    (done,) = stormed(answer, [ask()])
    assert (done.outcome, done.code) == ("failed", code)
    assert detail in done.detail


@pytest.mark.parametrize(
    ("text", "code", "detail"),
    [
        ('data: {"text": "half"}\n\n', 500, "the stream broke off"),
        ('data: {"error": {"message": "transfer failed", "code": 502}}\n\ndata: [DONE]\n\n', 502, "transfer failed"),
        ("data: [DONE]\n\n", 500, "the answer is not one of /generate"),
    ],
)
def test_a_stream_can_fail_after_its_status(text: str, code: int, detail: str) -> None:
    """The status line has said 200 by then, so the events have to be read."""

    async def answer(_: Any) -> Any:
        return httpx.Response(200, text=text)

    (done,) = stormed(answer, [ask(stream=True)])
    assert (done.outcome, done.code) == ("failed", code)
    assert detail in done.detail


def test_what_a_server_sends_back_of_a_key_is_hidden() -> None:
    """A proxy that shows the request it refused must not put the user's key into the user's report."""

    async def answer(request: Any) -> Any:
        return httpx.Response(401, text=f"refused: {request.headers['authorization']}")

    async def run() -> list[Request]:
        headers = {"Authorization": "Bearer k3y"}
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), headers=headers) as http:
            clients = Clients("http://router", LOAD, SMALL, 0.0, http, ("Bearer k3y", "k3y"))
            await clients.ask(ask())
            return clients.done

    (done,) = asyncio.run(run())
    assert done.detail == "refused: ***"


def test_a_client_that_never_reads_sends_its_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes its request by hand: with the headers of the others, to the path under which the router listens."""
    monkeypatch.setattr(clients_module, "_UNREAD_SECONDS", 0.0)
    received: list[bytes] = []

    async def run() -> None:
        async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await reader.readuntil(b"\r\n\r\n"))
            writer.close()

        server = await asyncio.start_server(heard, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, httpx.AsyncClient(headers={"X-Key": "k3y"}) as http:
            clients = Clients(f"http://127.0.0.1:{port}/v2", LOAD, SMALL, 0.0, http)
            await clients.ask(attrs.evolve(ask(), reads=False))

    asyncio.run(run())
    (head,) = received
    assert head.startswith(b"POST /v2/generate HTTP/1.1\r\n")
    assert b"x-key: k3y\r\n" in head.lower()


def test_a_connection_that_breaks_is_a_failure() -> None:
    """What the router's death looks like."""

    async def answer(request: Any) -> Any:
        raise httpx.RemoteProtocolError("Server disconnected", request=request)

    (done,) = stormed(answer, [ask()])
    assert (done.outcome, done.code) == ("failed", None)
    assert "Server disconnected" in done.detail


async def never(_: Any) -> Any:
    """A server that does not answer."""
    await asyncio.Event().wait()


def test_who_hangs_up_is_aborted_and_who_waits_in_vain_is_unaccounted() -> None:
    """Only a client that was willing to wait shows that an answer is missing."""
    load = attrs.evolve(LOAD, limit=0.05)
    done = stormed(never, [ask(0, patience=0.01), ask(1)], load)
    assert [request.outcome for request in done] == ["aborted", "unaccounted"]
    assert all("no answer after" in request.detail for request in done)


def test_no_more_clients_than_said_are_at_work_at_a_time() -> None:
    """And every request has its record."""
    now, most = 0, 0

    async def answer(request: Any) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(5):
            await asyncio.sleep(0)
        now -= 1
        return await right(request)

    done = stormed(answer, [ask(number) for number in range(40)])
    assert [request.number for request in done] == list(range(40))
    assert most == LOAD.clients


def test_a_storm_ends_when_its_time_is_over() -> None:
    """Requests that have not begun by then are never sent."""
    load = attrs.evolve(LOAD, seconds=0.0)
    assert stormed(right, [ask(number) for number in range(40)], load) == []


def test_requests_begin_no_faster_than_at_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-th begins n intervals after the first, however many clients there are."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr("kvlatch.reference.live.clients.asyncio.sleep", noted)
    stormed(right, [ask(number) for number in range(8)], attrs.evolve(LOAD, rate=0.5))
    assert [round(wait) for wait in waits] == [2 * number for number in range(8)]


def test_clients_of_a_storm_that_is_stopped_have_hung_up() -> None:
    """Cancelled, it still has a record of each request that was sent."""

    async def run() -> list[Request]:
        sent = asyncio.Semaphore(0)

        async def answer(request: Any) -> Any:
            sent.release()
            return await never(request)

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            clients = Clients("http://router", LOAD, SMALL, time.monotonic(), http)
            storm = asyncio.create_task(clients.storm([ask(number) for number in range(40)]))
            for _ in range(LOAD.clients):
                await sent.acquire()
            storm.cancel()
            await asyncio.gather(storm, return_exceptions=True)
            return clients.done

    done = asyncio.run(run())
    assert len(done) == LOAD.clients
    assert {(request.outcome, request.detail) for request in done} == {("aborted", "the storm was interrupted")}


def test_a_client_that_never_reads_sends_its_request_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes up a connection, and is counted as one that hung up."""
    monkeypatch.setattr("kvlatch.reference.live.clients._UNREAD_SECONDS", 0.0)

    async def run() -> tuple[Request, bytes]:
        heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.set_result(await reader.read())
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, httpx.AsyncClient() as http:
            clients = Clients(f"http://127.0.0.1:{port}", LOAD, SMALL, time.monotonic(), http)
            await clients.storm([ask(reads=False)])
            return clients.done[0], await heard

    done, heard = asyncio.run(run())
    assert (done.outcome, done.detail) == ("aborted", "never read its answer")
    head, body = heard.split(b"\r\n\r\n")
    assert head.startswith(b"POST /generate HTTP/1.1")
    assert json.loads(body)["text"] == "prompt 0"


def test_bounds_are_in_order() -> None:
    """A mistake in the options is said, not turned round."""
    with pytest.raises(ValueError, match=r"patience: the least, 2, is more than the most, 1\.5"):
        attrs.evolve(LOAD, patience=(2.0, 1.5))
    with pytest.raises(ValueError, match="chunks: the least, 9, is more than the most, 8"):
        attrs.evolve(LOAD, chunks=(9, 8))


@pytest.mark.parametrize("reuse", [False, True])
def test_who_hung_up_asks_again_with_the_same_room(reuse: bool) -> None:
    """At once; after an answer it is another room. Without reuse the client names no room at all."""
    rids: list[str | None] = []

    async def answer(request: Any) -> Any:
        rids.append(json.loads(request.content).get("rid"))
        if len(rids) in (1, 2):
            await asyncio.Event().wait()  # the client hangs up
        return await right(request)

    impatient = [ask(number, patience=0.01) for number in range(2)]
    load = attrs.evolve(LOAD, clients=1, reuse=reuse)
    done = stormed(answer, [*impatient, ask(2), ask(3)], load)
    assert [request.outcome for request in done] == ["aborted", "aborted", "completed", "completed"]
    if not reuse:
        assert rids == [None] * 4
        return
    rooms = [room_of(rid) for rid in rids]
    assert None not in rooms
    assert rooms[0] == rooms[1] == rooms[2] != rooms[3]


@pytest.mark.parametrize("rid", [None, 7, "", "room-", "room-x", "room-7 ", "a room-7", "room-" + "9" * 20])
def test_other_request_ids_name_no_room(rid: object) -> None:
    """Nor do ids that are no text."""
    assert room_of(rid) is None


@pytest.mark.parametrize(("seed", "number"), [(1001, 12), (0, -3), (-7, 0)])
def test_a_prompt_says_the_number_of_its_request(seed: int, number: int) -> None:
    """Both engines read it there; no other prompt has one."""
    assert number_of(prompt(seed, number, 64)) == number
    assert number_of(f"no {prompt(seed, number, 64)}") is None
