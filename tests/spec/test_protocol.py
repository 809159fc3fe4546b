"""The rows of the protocol, one by one: what they name exists, and what they touch is their own."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from kvlatch.spec import protocol
from kvlatch.spec.designs import SWITCHES
from kvlatch.spec.model import between_steps
from kvlatch.spec.protocol import RULES, STATE, THREADS, chunk, phase
from kvlatch.spec.schema import Rule, Writer
from kvlatch.spec.status import KVPoll
from kvlatch.spec.terms import Field, Label, Term, Where, fields, free, value

PARTS = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
EACH = pytest.mark.parametrize(("actor", "thread"), THREADS.items(), ids=list(THREADS))


def labels(term: Term) -> set[str]:
    """Every label that a value can come to, fields aside."""
    match term:
        case Label(label):
            return {label}
        case Where(_, then, other):
            return labels(then) | labels(other)
    return set()


def terms(rule: Rule) -> list[Term]:
    """Everything that a row asks or stores."""
    return [rule.when, value(rule.to), *map(value, rule.then.values())]


def reads(rule: Rule) -> set[str]:
    """What the row leaves open: the owners of what it reads outside its quantifiers."""
    return {owner for term in terms(rule) for owner in free(term)}


def test_names_are_unique() -> None:
    """No two rows, no two fields of the state and no two switches have the same name."""
    names = [rule.name for rule in RULES], [field.name for field in STATE], [switch.name for switch in SWITCHES]
    for some in names:
        assert [name for name, count in Counter(some).items() if count > 1] == []


def test_every_field_of_the_module_is_part_of_the_state() -> None:
    """``STATE`` lists each field that the module defines, so none can be changed and forgotten."""
    defined = {field.name for field in vars(protocol).values() if isinstance(field, Field)}
    assert defined == {field.name for field in STATE}


@PARTS
def test_row_says_what_it_does(rule: Rule) -> None:
    """Every row has a sentence for the reader of a trace."""
    assert rule.says.rstrip().endswith((".", "..."))


@PARTS
def test_row_uses_known_fields(rule: Rule) -> None:
    """A row reads fields of the state and switches, and writes fields of the state only."""
    known = {*STATE, *SWITCHES}
    assert {field for term in terms(rule) for field in fields(term)} <= known
    assert set(rule.then) <= set(STATE)


@PARTS
def test_row_stores_labels_that_exist(rule: Rule) -> None:
    """Every label that a row stores, goes to, starts from or writes is one that the field has."""
    pc = THREADS[rule.actor].pc
    assert {rule.at, *labels(value(rule.to))} <= set(pc.labels)
    for field, term in rule.then.items():
        assert labels(value(term)) <= set(field.labels)
    assert rule.write is None or rule.write in KVPoll.__members__


@PARTS
def test_row_touches_one_room_and_one_worker(rule: Rule) -> None:
    """Only a worker's row has a worker of its own, only a ``per`` chunk row a chunk; others ask about all or none.

    So no row can reach a second room, or write to a second worker; but for one: where a further request comes, those
    who still have a chunk of the last one act for an older one, all of them.
    """
    allowed = {"room", "switch"} | ({"worker"} if rule.actor == "worker" else set())
    asks = {owner for term in (rule.when, value(rule.to)) for owner in free(term)}
    assert asks <= allowed | ({"chunk"} if rule.per else set())
    assert reads(rule) <= allowed | {"chunk"}
    everyone = {"worker"} if rule.name == "reuse_again" else set()
    assert {field.owner for field in rule.then} <= allowed | {"chunk"} | everyone
    if not rule.per:
        assert all("chunk" not in free(value(term)) for field, term in rule.then.items() if field.owner != "chunk")


@PARTS
def test_row_leaves_its_program_counter_to_at_and_to(rule: Rule) -> None:
    """No effect sets the counter, or the status when the row writes it: that is said once, by ``to`` and ``write``."""
    assert THREADS[rule.actor].pc not in rule.then
    assert rule.write is None or protocol.status not in rule.then


@EACH
def test_every_place_of_a_thread_is_reached_and_left(actor: str, thread: Writer) -> None:
    """Each label of a program counter is the start, or reached by some row, and some row leaves it again."""
    rows = [rule for rule in RULES if rule.actor == actor]
    between = {between_steps(rule) for rule in rows if rule.write is not None}
    reached = {thread.pc.labels[0]}.union(between, *(labels(value(rule.to)) for rule in rows))
    left = between | {rule.at for rule in rows}
    assert reached == set(thread.pc.labels)
    assert left == set(thread.pc.labels)


@EACH
def test_a_thread_stands_between_read_and_store_under_its_row_s_name(actor: str, thread: Writer) -> None:
    """The starred labels of a program counter are those of its rows that write, and no others."""
    starred = {label for label in thread.pc.labels if label.endswith("*")}
    assert starred == {between_steps(rule) for rule in RULES if rule.actor == actor and rule.write is not None}


def test_only_the_environment_is_unfair() -> None:
    """What nobody has to do is listed here: requests, decode's messages, aborts and broken transfers."""
    assert {rule.name for rule in RULES if not rule.fair} == {
        "create", "reuse", "reuse_again", "abort", "hear_metadata", "hear_abort", "hear_stale_metadata",
        "hear_stale_abort", "break",
    }  # fmt: skip


def test_typo_raises_where_the_row_is_written() -> None:
    """A label that its field does not have raises when the formula is built, not when it never holds."""
    with pytest.raises(TypeError, match=r"^phase is never 'bot': it is one of new, boot, "):
        Rule("create", "scheduler", "free", "free", phase == "bot")
    with pytest.raises(TypeError, match=r"^chunk is never 'gone'"):
        Rule("take", "worker", "idle", "taken", chunk.in_("queued", "gone"))


def test_rows_are_values() -> None:
    """A row is frozen, and equal to itself alone: a mutant is a changed copy, and the protocol stays what it is."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        RULES[0].at = "elsewhere"  # type: ignore[misc]  # the point
    assert attrs.evolve(RULES[0]) != RULES[0]
