"""From rows to steps: grounding, the derived split and cas updates, and the semantics of one concrete step."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import pytest

from kvlatch.spec import protocol
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.merges import first_terminal_wins, table
from kvlatch.spec.model import Action, Instance, Machine, between_steps, build, merge_rows, named
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.protocol import RULES, chunk, pages, phase, stale, status, worker
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Atomicity, Network, Rule
from kvlatch.spec.status import ABSENT, TOMBSTONE, KVPoll
from kvlatch.spec.terms import TRUE, ForAll, Label, LastChunk, State, Term, Var, fields, free, where

LATCH, FIX_A = DESIGNS["latch"], DESIGNS["fix-a"]
LIFE = (
    "create", "hear_metadata", "write_w", "admit", "enqueue", "take", "check_status", "check_infos", "write_t", "post",
    "complete", "write_s", "tell_success", "conclude_pop", "settle_success", "clear_status", "clear_infos", "release",
)  # fmt: skip


def machine(design: str = "latch", level: Atomicity = "locked", network: Network = "orderly", **sizes: int) -> Machine:
    """A machine with one worker and one chunk, unless said otherwise."""
    instance = Instance(**{"workers": 1, "chunks": 1, **sizes})
    return Machine.of(DESIGNS[design], level, network, instance)


def run(on: Machine, names: Iterable[str], state: State | None = None, room: int | None = None) -> State:
    """The state after the steps with these names."""
    state = on.initial() if state is None else state
    for name in names:
        [action] = [a for a in on.enabled(state) if a.name == name and a.arguments.get("room") == room]
        state = on.step(state, action)
    return state


def reads(action: Action) -> set[Var]:
    """Every variable that an action looks at."""
    found = fields(action.guard).union(*(fields(term) for _, term in action.updates))
    return {field for field in found if isinstance(field, Var) and field.owner != "switch"}


@pytest.mark.parametrize(
    "sizes", [{"workers": -1}, {"workers": 9}, {"chunks": -1}, {"chunks": 5}, {"requests": 3}, {"rooms": 5}]
)
def test_instance_has_bounds(sizes: dict[str, int]) -> None:
    """Sizes that the model has no labels for are refused."""
    with pytest.raises(ValueError, match="1 to 8 workers, 1 to 4 chunks and rooms, 1 or 2 requests"):
        Instance(**sizes)


def test_where_there_is_one_room_nobody_chooses_it() -> None:
    """The room that a worker serves is part of the state if there are several."""
    (home,) = [ROOM.home.field] if ROOM.home else []
    assert home not in {var.field for var in machine().model.variables}
    assert home in {var.field for var in machine(rooms=2).model.variables}


def test_a_request_lives_and_settles() -> None:
    """The good case: one chunk, transferred, concluded, polled, cleared and released."""
    on = machine()
    end = named(on, run(on, LIFE))
    assert (end["phase"], end["status"], end["latch"], end["wire"]) == ("done", TOMBSTONE, "Success", "Success")
    assert end["pages"] == "released"


def test_a_field_is_one_variable_per_owner() -> None:
    """A room's field is one variable, a chunk's one per chunk, a worker's one per worker; each starts at index 0."""
    on = machine(workers=2, chunks=3)
    names = [var.name for var in on.model.variables]
    assert {"status", "chunk_0", "chunk_1", "chunk_2", "worker_0", "worker_1"} <= set(names)
    assert len(names) == len(set(names))
    assert set(on.initial().values()) == {0}
    assert named(on, on.initial())["phase"] == "new"


def test_numbers_of_chunks_and_rooms_are_cut_to_size() -> None:
    """A variable that holds a chunk or a room has exactly the labels that the instance has."""
    labels = {var.name: var.labels for var in build(Instance(workers=1, chunks=2, rooms=3)).variables}
    assert labels["job_0"] == ("0", "1")
    assert labels["job_room_0"] == ("elsewhere", "0", "1", "2")


def test_a_row_applies_at_every_place() -> None:
    """A worker's row that is about one chunk becomes one action per worker and chunk, each with its arguments."""
    model = build(Instance(workers=2, chunks=2))
    takes = [action for action in model.actions if action.name == "take"]
    assert [action.arguments for action in takes] == [
        {"worker": worker_, "chunk": chunk_} for worker_ in (0, 1) for chunk_ in (0, 1)
    ]
    assert [str(action) for action in takes] == ["take(0)", "take(1)"] * 2
    assert [action.thread for action in takes] == ["worker 0", "worker 0", "worker 1", "worker 1"]
    assert model.action("take", {"worker": 1, "chunk": 0}) is takes[2]
    assert model.action("take", {"worker": 2, "chunk": 0}) is None
    assert str(model.action("create", {})) == "create"


@pytest.mark.parametrize("level", ["locked", "split", "cas"])
def test_every_action_has_a_label_of_its_own(level: Atomicity) -> None:
    """A proof finds an action's obligations by its label: no two actions of a model may share one."""
    model = build(Instance(workers=2, chunks=2, requests=2, rooms=2)).of(LATCH, level, "disorderly")
    labels = [action.label for action in model.actions]
    assert len(set(labels)) == len(labels)
    assert "take worker=1 chunk=0 room=1" in labels


def test_rows_about_a_second_request_need_one() -> None:
    """Where a room id is used once, no row about its second use applies; where it is used without end, all rows do."""
    second = {rule.name for rule in RULES if rule.requests == 2}
    assert second
    assert not second & {action.name for action in build(Instance(requests=1)).actions}
    assert second <= {action.name for action in build(Instance(requests=2)).actions}
    endless = {action.rule.name for action in build(ROOM.everything.sizes).actions}
    assert endless == {rule.name for rule in RULES}


def test_an_effect_on_chunks_without_one_reaches_all() -> None:
    """A row that is not about one chunk sets a chunk's field for every chunk: with a second request all are unsent."""
    reuse = build(Instance(chunks=2, requests=2)).action("reuse", {})
    assert reuse is not None
    assert {var.name for var, _ in reuse.updates} >= {"chunk_0", "chunk_1", "stale_0", "stale_1"}


@pytest.mark.parametrize(
    ("actor", "when"),
    [("scheduler", worker == "idle"), ("scheduler", chunk == "done"), ("worker", stale == "no")],
    ids=["worker", "chunk", "worker's chunk"],
)
def test_a_row_must_say_whose_field_it_means(actor: str, when: Term) -> None:
    """A row that asks about a worker or a chunk that it does not have is refused when it is bound."""
    pc = protocol.THREADS[actor].pc.labels[0]
    with pytest.raises(TypeError, match="the row must have one, or say per="):
        build(Instance(), ROOM.with_rows((Rule("lost", actor, pc, pc, when),)))


def test_quantifiers_are_conjunctions() -> None:
    """For every worker, other worker, chunk, earlier chunk and other chunk each binds the places that it says."""
    model = build(Instance(workers=3, chunks=3))

    def bound(formula: Term) -> list[set[str]]:
        return [{var.name for var in fields(term)} for term in model.instances(formula)]

    assert bound(ForAll("worker", worker == "idle")) == [{"worker_0", "worker_1", "worker_2"}]
    assert (
        bound((worker == "idle") & ForAll("other worker", worker != "idle"))
        == [{"worker_0", "worker_1", "worker_2"}] * 3
    )
    assert bound(ForAll("other worker", worker != "idle")) == [
        {"worker_1", "worker_2"}, {"worker_0", "worker_2"}, {"worker_0", "worker_1"},
    ]  # fmt: skip
    assert bound(ForAll("earlier chunk", chunk == "done")) == [set(), {"chunk_0"}, {"chunk_0", "chunk_1"}]
    assert bound(ForAll("other chunk", chunk == "done"))[1] == {"chunk_0", "chunk_2"}
    assert bound((chunk == "done") & LastChunk())[2] == {"chunk_2"}
    assert bound((chunk == "done") | LastChunk())[2] == set()
    assert len(bound((worker == "idle") & (chunk == "done"))) == 9
    assert bound(phase == "new") == [{"phase"}]


def test_binding_a_ground_formula_changes_nothing() -> None:
    """A formula that speaks of variables already is its own claim."""
    model = build(Instance())
    ground = model.claim(phase == "done")
    assert fields(model.claim(ground)) == fields(ground)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.write], ids=lambda rule: rule.name)
def test_split_and_cas_are_derived_from_the_locked_row(rule: Rule) -> None:
    """A write is one step when locked, read and store when split, and read, swap and retry with cas."""
    parts: dict[Atomicity, list[str]] = {
        "locked": [""],
        "split": ["read", "store"],
        "cas": ["read", "swap", "retry"],
    }
    for level, expected in parts.items():
        model = build(Instance(workers=1, chunks=1)).of(attrs.evolve(LATCH, mark="again"), level, "disorderly")
        derived = [action for action in model.actions if action.rule is rule]
        assert [action.part for action in derived] == expected
        assert [action.name for action in derived] == [".".join(filter(None, (rule.name, part))) for part in expected]
        assert derived[0].fair == rule.fair
        assert all(action.fair for action in derived[1:])
        if level != "locked":
            thread = protocol.THREADS[rule.actor]
            read = {var.field: term for var, term in derived[0].updates}
            assert set(read) == {thread.pc, thread.seen}
            pc = read[thread.pc]
            assert isinstance(pc, Label)
            assert pc.label == between_steps(rule)
            assert fields(read[thread.seen]) == {read[thread.seen]}


def test_a_split_store_overwrites_what_came_in_between() -> None:
    """Unlocked Python: the worker has read WaitingForInput, Failed is written, and the worker stores Transferring."""
    on = machine("fix-a", "split")
    upto = ["create.read", "create.store", "hear_metadata", "write_w.read", "write_w.store", "admit", "enqueue", "take",
            "check_status", "check_infos", "write_t.read"]  # fmt: skip
    state = run(on, [*upto, "hear_abort", "write_f.read", "write_f.store"])
    assert named(on, state)["status"] == named(on, state)["first_terminal"] == "Failed"
    assert named(on, run(on, ["write_t.store"], state))["status"] == "Transferring"


def test_a_swap_does_not() -> None:
    """The same with compare and swap: the entry is not what was seen, so the worker reads again, and keeps it."""
    on = machine("latch", "cas")
    upto = ["create.read", "create.swap", "hear_metadata", "write_w.read", "write_w.swap", "admit", "enqueue", "take",
            "check_status", "check_infos", "write_t.read"]  # fmt: skip
    state = run(on, [*upto, "hear_abort", "write_f.read", "write_f.swap"])
    assert "write_t.swap" not in {action.name for action in on.enabled(state)}
    state = run(on, ["write_t.retry"], state)
    assert named(on, state)["worker_seen_0"] == "Failed"
    assert named(on, run(on, ["write_t.swap"], state))["status"] == "Failed"


def test_a_store_that_keeps_does_not_touch_the_table() -> None:
    """A thread that has read Failed, and keeps it, leaves alone what came in between, and stores nothing."""
    on = machine("fix-a", "split")
    by_name = {var.name: var for var in on.model.variables}
    state = dict(on.initial())
    for name, label in {"bootstrap": "write_w*", "bootstrap_seen": "Failed", "status": "Success"}.items():
        state[by_name[name]] = by_name[name].index(label)
    after = named(on, run(on, ["write_w.store"], state))
    assert (after["status"], after["bootstrap"], after["bootstrap_seen"]) == ("Success", "idle", ABSENT)


def test_the_first_terminal_status_is_remembered() -> None:
    """``first_terminal`` keeps the first terminal status that the entry has had, and a clear forgets it."""
    on = machine("seed-control")
    failed = run(on, ["create", "hear_metadata", "write_w", "hear_abort", "write_f"])
    assert named(on, failed)["first_terminal"] == "Failed"
    cleared = run(on, ["settle_failed", "clear_status"], failed)
    assert named(on, cleared)["first_terminal"] == "none"


def test_a_write_for_the_past_does_not_reach_a_tombstone() -> None:
    """With tombstones a late write for a cleared request stores nothing; without, it makes a ghost."""
    late = ["create", "hear_metadata", "time_out", "clear_status", "write_w"]
    with_tombstones, without = machine("latch"), machine("fix-a")
    assert named(with_tombstones, run(with_tombstones, late))["status"] == TOMBSTONE
    assert named(without, run(without, late))["status"] == "WaitingForInput"


@pytest.mark.parametrize(("place", "shown"), [("transferring", "Transferring"), ("arrived", "Success")])
def test_a_sender_may_hold_success_back(place: str, shown: str) -> None:
    """Since 0.5.19 a poll shows Success as Transferring while a chunk is outstanding."""
    on = machine("sglang-0.5.23", "split")
    by_name = {var.name: var for var in on.model.variables}
    state = {**on.initial(), by_name["status"]: status.index("Success"), by_name["worker_0"]: worker.index(place)}
    polled = [s.name for s in KVPoll if on.holds(on.model.claim(protocol.polls(s.name)), state)]
    assert polled == [shown]


def test_only_enabled_actions_can_be_taken() -> None:
    """A step that its guard forbids raises and names the action."""
    on = machine()
    admit = on.model.action("admit", {})
    assert admit is not None
    with pytest.raises(ValueError, match=r"^admit is not enabled$"):
        on.step(on.initial(), admit)


def test_a_design_s_model_has_no_switches_left() -> None:
    """Fixing a design takes the switches out of every guard and effect, and the steps that it can never take."""
    whole = build(Instance())
    model = whole.of(LATCH, "locked", "orderly")
    for action in model.actions:
        for term in (action.guard, *dict(action.updates).values()):
            assert "switch" not in free(term)
    names = {action.name for action in model.actions}
    assert {"write_t.read", "write_t.store", "write_t.swap"} & names == set()
    assert len(model.actions) < len(whole.actions)


def test_a_design_s_claims_have_no_switches_left() -> None:
    """What a design's model says of a room, a worker or a chunk asks no switch; the model of all designs still does."""
    whole = build(Instance(workers=2, chunks=2))
    asks = [*(prop.bad for prop in PROPERTIES), protocol.held, protocol.drained, protocol.last_to_arrive]
    assert any("switch" in free(whole.claim(prop.bad)) for prop in PROPERTIES)
    assert all("switch" in free(term) for formula in asks[-3:] for term in whole.instances(formula))
    for level in LATCH.atomicities:
        model = whole.of(LATCH, level, "disorderly")
        bound = [model.claim(prop.bad) for prop in PROPERTIES]
        bound += [term for formula in asks for term in model.instances(formula)]
        assert not [term for term in bound if "switch" in free(term)]


@pytest.mark.parametrize(("design", "drops"), [("latch", True), ("seed-control", False)])
def test_a_claim_is_about_its_design(design: str, drops: bool) -> None:
    """The same formula about the same state holds in one design and not in another: pages drained or not."""
    on = machine(design)
    state = run(on, LIFE[: LIFE.index("complete")])
    assert on.holds(on.model.claim(protocol.drained), state) is not drops


def test_merge_rows_treat_a_tombstone_as_no_entry() -> None:
    """The merge by index has one row per label of the entry; a tombstone's is that of no entry, a dot is None."""
    rows = merge_rows(table(first_terminal_wins))
    assert len(rows) == len(status.labels) == 7
    assert rows[status.index(TOMBSTONE)] == rows[status.index(ABSENT)]
    assert rows[status.index("Failed")] == (None,) * 5
    assert rows[status.index("Bootstrapping")][4] == status.index("Success")


def test_rooms_do_not_interact() -> None:
    """With two rooms every action reads and writes one of them, its own worker, and what workers say of theirs."""
    model = build(Instance(workers=2, chunks=2, requests=2, rooms=2))
    for action in model.actions:
        other = f"@{1 - action.arguments['room']}"
        assert not [var.name for var in reads(action) if var.name.endswith(other)]
        mine = f"_{action.arguments['worker']}" if "worker" in action.arguments else "nobody's"
        for var, _ in action.updates:
            assert not var.name.endswith(other)
            assert var.owner != "worker" or var.name.endswith(mine)


def test_a_step_in_one_room_changes_nothing_of_another() -> None:
    """A whole life in room 1 leaves every variable of room 0 at its start."""
    on = machine(rooms=2)
    state = run(on, LIFE, room=1)
    assert named(on, state)["phase@1"] == "done"
    assert {name: label for name, label in named(on, state).items() if name.endswith("@0")} == {
        name: label for name, label in named(on, on.initial()).items() if name.endswith("@0")
    }


def test_a_worker_stays_with_the_room_of_its_chunk() -> None:
    """A worker that has taken a chunk of room 1 takes no step for room 0 until it is idle again."""
    on = machine(rooms=2)
    state = run(on, LIFE[:5], room=0)
    state = run(on, LIFE[:6], state, room=1)
    assert named(on, state)["job_room_0"] == "1"
    assert {action.arguments["room"] for action in on.enabled(state) if "worker" in action.arguments} == {1}


def test_a_claim_about_a_room_asks_only_its_own_workers() -> None:
    """The pages of room 0 are free to be released while a worker transfers for room 1, whose own are not."""
    on = machine(rooms=2)
    state = run(on, LIFE[: LIFE.index("complete")], run(on, LIFE, room=0), room=1)
    assert named(on, state)["worker_0"] == "transferring"
    for room, free_ in enumerate((True, False)):
        assert on.holds(on.model.claim(protocol.drained, room), state) is free_
        released = {**state, **{var: pages.index("released") for var in on.model.variables if var.field is pages}}
        assert on.holds(on.model.claim(BY_NAME["pages-held"].bad, room), released) is not free_


def test_with_one_room_every_worker_serves_it() -> None:
    """Where there is one room, for every worker asks no worker which room it serves."""
    [claim] = build(Instance(workers=2)).instances(ForAll("worker", worker == "idle"))
    assert {field.name for field in fields(claim)} == {"worker_0", "worker_1"}
    [claim] = build(Instance(workers=2, rooms=2)).instances(ForAll("worker", worker == "idle"))
    assert {field.name for field in fields(claim)} == {"worker_0", "worker_1", "job_room_0", "job_room_1"}


def test_rules_other_than_the_protocol_s_make_a_mutant() -> None:
    """A model of changed rows has the changed step."""
    forget = Rule("forget", "scheduler", "free", "free", TRUE, {pages: where(phase == "new", "none", "released")})
    on = Machine.of(LATCH, "locked", "orderly", Instance(), ROOM.with_rows((*RULES, forget)))
    assert named(on, run(on, ["create", "forget"]))["pages"] == "released"
