"""Events as bytes, and what the spec says of what they show."""

from itertools import product

from kvlatch.reference.logs.codes import CODES, EVENTS, SILENT, UNOBSERVED, UNSAID, decode, encode
from kvlatch.reference.logs.events import LIVE, STATUSES, TABLE_OPS
from kvlatch.reference.logs.laws import Seen, broken_in
from kvlatch.spec.status import KVPoll


def test_bytes_and_events_are_one_to_one() -> None:
    """Every event that a table's log can say has a byte of its own, below CODES, that decodes to it."""
    seen = set()
    for (op, name), incoming, observed in product(enumerate(TABLE_OPS), range(UNSAID + 1), range(UNOBSERVED + 1)):
        code = encode(op, incoming, observed)
        event = decode(code)
        seen.add(code)
        assert (event.op, event.status) == (name, (*STATUSES, None)[observed])
        assert event.incoming == ((*STATUSES[:5], None)[incoming] if name == "write" else None)
    assert seen == set(range(CODES))


def test_silent_events_are_those_that_leave_a_status_unknown_to_the_log() -> None:
    """An unobserved poll, abort or write says nothing of the room; an unobserved create or clear does."""
    silent = {event for code, event in enumerate(EVENTS) if code >= SILENT}
    assert silent == {event for event in EVENTS if event.status is None and event.op not in ("create", "clear")}


def test_live_statuses_are_those_that_pin_an_idle_request() -> None:
    """LIVE agrees with the property no-pin: in the inflight queue, with every thread idle, they are the pinned ones."""
    pinned = [status.name for status in KVPoll if "no-pin" in broken_in(Seen(status.name, phase="inflight"))]
    assert pinned == list(LIVE)
