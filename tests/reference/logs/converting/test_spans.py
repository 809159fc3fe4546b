"""SGLang's spans: how a request ended at either end, and nothing that a dropped span would have shown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.converting.digest import Digest
from kvlatch.reference.logs.converting.read import HEADER, converted
from kvlatch.reference.logs.events import LogError
from kvlatch.reference.logs.report import Report

ROOM = 0x4016_5B12_9A3C_77F9
FAILED = f"Prefill transfer failed for request rank=0 req.rid='a1' req.bootstrap_room={ROOM} with exception boom"
GAVE_UP = FAILED.replace("Prefill", "Decode").replace("req.", "decode_req.req.")
"""A time-out, or an abort of decode's own."""


def attributes(**said: object) -> list[dict[str, object]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in said.items()
    ]


def span(name: str, own: str, parent: str = "", at: float = 0.0, reason: str = "", **said: object) -> dict[str, Any]:
    """A span as OTLP has it: times in nanoseconds and as strings, identifiers in hexadecimal."""
    return {
        "traceId": own[:1] * 32, "spanId": own, "parentSpanId": parent, "name": name, "kind": 1,
        "startTimeUnixNano": "1772359200000000000", "endTimeUnixNano": str(int((1772359200 + at) * 10**9)),
        "attributes": attributes(**said, **({"reason": reason} if reason else {})),
        "status": {"code": 2} if reason else {},
    }  # fmt: skip


def request(side: str, *stages: str, at: float = 10.0, reason: str = "", rank: int = 0) -> list[dict[str, Any]]:
    """The spans of one request on one engine; a child comes before its parent, as spans are exported when they end."""
    host = "c0ffee00" if side == "prefill" else "deadbeef"
    letter = host[0]
    thread = span(f"Scheduler [TP {rank}]", f"{letter}2", f"{letter}1", at, reason,
                  host_id=host * 4, pid=7, thread_label="Scheduler", tp_rank=rank)  # fmt: skip
    below = [span(stage, f"{letter}{n}", f"{letter}2", at) for n, stage in enumerate(stages, 3)]
    return [*below, thread, span(f"{side} Req a1", f"{letter}1", "", at, rid="a1", bootstrap_room=hex(ROOM))]


def document(spans: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def read(folder: Path, *documents: Any, indent: int | None = None) -> tuple[Report, Digest]:
    """What ``kvlatch check`` says of converted spans, which lie in one file, or in one line each."""
    path, log, digest = folder / "spans.json", folder / "log.ndjson", Digest("span")
    path.write_text("\n".join(json.dumps(one, indent=indent) for one in documents), encoding="utf-8")
    said = list(converted([path], None, None, digest))
    log.write_text("".join(f"{json.dumps(one)}\n" for one in [HEADER, *said]), encoding="utf-8")
    return check(log), digest


PREFILL = ("prefill_prepare", "prefill_bootstrap", "prefill_transfer_kv_cache")
DECODE = ("decode_prepare", "decode_bootstrap", "decode_transferred", "decode_waiting")


@pytest.mark.parametrize("indent", [None, 2])
def test_two_ends_that_agree(tmp_path: Path, indent: int | None) -> None:
    """One document in one line, or in many; rooms are in hexadecimal, ranks numbers that come as strings."""
    report, digest = read(
        tmp_path, document([*request("prefill", *PREFILL), *request("decode", *DECODE)]), indent=indent
    )
    assert [j.law for j in report.judgements if j.verdict == "kept"] == ["one-outcome"]
    assert not report.findings
    assert digest.known == len(PREFILL) + len(DECODE)


def test_two_ends_that_disagree(tmp_path: Path) -> None:
    """A document for each export, with the roots in another one than the stages."""
    prefill, decode = request("prefill", *PREFILL[:2], reason=FAILED), request("decode", *DECODE)
    report, _ = read(tmp_path, document(prefill[:-1]), document(decode), document(prefill[-1:]))
    (finding,) = report.findings
    assert (finding.law, finding.room, finding.rank) == ("one-outcome", ROOM, "TP0")


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (request("prefill", *PREFILL[:2], reason=FAILED.replace("boom", "Aborted by AbortReq.")),
         request("decode", *DECODE)),
        (request("prefill", *PREFILL), request("decode", *DECODE[:2], reason=GAVE_UP)),
        (request("prefill", *PREFILL[:2]), request("decode", *DECODE)),  # a span was dropped
        (request("prefill", *PREFILL)[:-1], request("decode", *DECODE)),  # and a root: whose they were is unknown
        (request("prefill", *PREFILL, rank=1), request("decode", *DECODE)),
    ],
)  # fmt: skip
def test_nobody_is_accused_for_what_spans_do_not_show(
    tmp_path: Path, prefill: list[dict[str, Any]], decode: list[dict[str, Any]]
) -> None:
    report, _ = read(tmp_path, document([*prefill, *decode]))
    assert not report.findings


def test_a_request_that_hangs_is_listed(tmp_path: Path) -> None:
    """It has been through a stage, and no span says how it ended; others went on for long."""
    late = [{**one, "traceId": "9" * 32} for one in request("decode", *DECODE, at=999)]
    _, digest = read(tmp_path, document([*request("prefill", *PREFILL[:2]), *late]))
    assert [[place.room for place in places] for places in digest.open.values()] == [[ROOM]]


@pytest.mark.parametrize(
    "text",
    [
        '{"resourceSpans": 3}', '{"resourceSpans": [null, {"scopeSpans": [{"spans": [7, {"attributes": [1]}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"endTimeUnixNano": "x"}, {"endTimeUnixNano": []}]}]}]}',
    ],
)  # fmt: skip
def test_spans_of_odd_shapes_are_passed_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spans.json"
    path.write_text(text, encoding="utf-8")
    assert not list(converted([path], None, None, Digest("span")))


@pytest.mark.parametrize(
    "text", ['{"resourceSpans": [', '{"resourceSpans": []}\n{"resourceSp\n', '{"resourceSpans": ' + "[" * 100_000]
)
def test_what_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spans.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LogError, match=r"spans\.json"):
        list(converted([path], None, None, Digest("span")))


def test_spans_in_a_circle_end(tmp_path: Path) -> None:
    """Each the other's parent."""
    spans = [span("decode_transferred", "a1", "a2"), span("x", "a2", "a1")]
    _, digest = read(tmp_path, document(spans))
    assert sum(digest.left_out.values()) == 1


def test_a_last_line_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    """As a collector leaves it that was killed."""
    path, digest = tmp_path / "spans.json", Digest("span")
    whole = document([*request("prefill", *PREFILL), *request("decode", *DECODE)])
    path.write_text(f'{json.dumps(whole)}\n{{"resourceSp', encoding="utf-8")
    assert len(list(converted([path], None, None, digest))) == 2
    assert list(digest.left_out.values()) == [1]
