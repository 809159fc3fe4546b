"""The steps of the reference manager, one function each; the rows of ``spec/protocol.py`` say what each one is.

A step is a generator in two halves. It first yields which of the operations at hand may happen now; when every step of
a wave has said so for all of its operations, it is resumed and does them. An update of the status comes in parts (see
``spec/model.py``), and ``update`` says whether it is finished; what else the step does comes with its last part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from kvlatch.reference.arrays.core import At, Core
from kvlatch.reference.arrays.device import Array
from kvlatch.reference.arrays.tables import (
    ABSENT,
    BOTH,
    NOBODY,
    NOTHING,
    TOMBSTONE,
    B,
    Bootstrap,
    Chunk,
    F,
    Pages,
    Phase,
    S,
    Scheduler,
    T,
    W,
    Worker,
)

Step = Generator[Array, None, None]
Row = Callable[[Core, At], Step]


def among(column: Array, *codes: int) -> Array:
    """Where a column has one of the codes."""
    found = column == codes[0]
    for code in codes[1:]:
        found = found | (column == code)
    return found


# --------------------------------------------------------------------------------------------------------------------
# Scheduler


def create(m: Core, at: At) -> Step:
    thread = m.scheduler(at)
    yield m.may_update(at, thread, Scheduler.FREE, Scheduler.CREATE, m.tables.phase[at.room] == Phase.NEW)
    if m.update(at, thread, B, Scheduler.CREATE) is not None:
        m.tables.scheduler[at.room] = Scheduler.FREE
        m.tables.phase[at.room] = Phase.BOOT


def time_out(m: Core, at: At) -> Step:
    t, thread = m.tables, m.scheduler(at)
    due = (t.phase[at.room] == Phase.BOOT) & (m.poll(at.room) == B) & (m.design.timeout == "bootstrapping")
    yield m.may_update(at, thread, Scheduler.FREE, Scheduler.TIME_OUT, due)
    if m.update(at, thread, F, Scheduler.TIME_OUT) is not None:
        t.scheduler[at.room] = Scheduler.FREE
        t.phase[at.room] = Phase.CLEARING
        t.latch[at.room] = F


def abort(m: Core, at: At) -> Step:
    t, thread = m.tables, m.scheduler(at)
    can = among(t.phase[at.room], Phase.BOOT, Phase.INFLIGHT) & (t.latch[at.room] == NOTHING)
    yield m.may_update(at, thread, Scheduler.FREE, Scheduler.ABORT, can)
    stands = (t.status[at.room] == S) & (m.design.tell == "standing")
    if m.update(at, thread, F, Scheduler.ABORT) is not None:
        t.scheduler[at.room] = Scheduler.FREE
        t.latch[at.room] = m.xp.where(stands, S, F)


def admit(m: Core, at: At) -> Step:
    t = m.tables
    free = t.scheduler[at.room] == Scheduler.FREE
    yield free & (t.phase[at.room] == Phase.BOOT) & (m.poll(at.room) == W)
    t.phase[at.room] = Phase.RUNNING
    m.hold(at)


def enqueue(m: Core, at: At) -> Step:
    xp, t = m.xp, m.tables
    free = t.scheduler[at.room] == Scheduler.FREE
    yield free & (t.phase[at.room] == Phase.RUNNING) & m.is_head(t.chunk, at, Chunk.UNSENT)
    m.compute(at)
    wanted = m.has_infos(at.room, t.gen[at.room]) | (m.design.enqueue == "always")
    t.chunk[at.room, at.chunk] = xp.where(wanted, Chunk.QUEUED, Chunk.LOST)
    last = at.chunk == t.chunk.array.shape[1] - 1
    t.phase[at.room] = xp.where(last, Phase.INFLIGHT, Phase.RUNNING)


def settle_failed(m: Core, at: At) -> Step:
    t = m.tables
    polled = among(t.phase[at.room], Phase.BOOT, Phase.INFLIGHT) & (t.scheduler[at.room] == Scheduler.FREE)
    yield polled & (m.poll(at.room) == F)
    t.phase[at.room] = Phase.CLEARING
    t.latch[at.room] = F


def settle_success(m: Core, at: At) -> Step:
    t = m.tables
    polled = (t.phase[at.room] == Phase.INFLIGHT) & (t.scheduler[at.room] == Scheduler.FREE)
    yield polled & (m.poll(at.room) == S)
    t.phase[at.room] = Phase.CLEARING
    t.latch[at.room] = S


def clear_status(m: Core, at: At) -> Step:
    t = m.tables
    yield (t.phase[at.room] == Phase.CLEARING) & (t.scheduler[at.room] == Scheduler.FREE)
    t.phase[at.room] = Phase.FORGETTING
    t.first_terminal[at.room] = NOTHING
    t.status[at.room] = TOMBSTONE if m.tombstones else ABSENT
    t.stamp[at.room] = t.gen[at.room] if m.tombstones else 0


def clear_infos(m: Core, at: At) -> Step:
    t = m.tables
    yield (t.phase[at.room] == Phase.FORGETTING) & (t.scheduler[at.room] == Scheduler.FREE)
    t.phase[at.room] = Phase.RELEASING
    t.infos[at.room] = NOBODY


def release(m: Core, at: At) -> Step:
    t = m.tables
    ready = (t.phase[at.room] == Phase.RELEASING) & (t.scheduler[at.room] == Scheduler.FREE)
    yield ready & m.drained(at.room)
    t.phase[at.room] = Phase.DONE
    m.release(at)


def reuse(m: Core, at: At) -> Step:
    t = m.tables
    done = (t.phase[at.room] == Phase.DONE) & (t.scheduler[at.room] == Scheduler.FREE)
    yield done & (t.gen[at.room] == 0)
    t.gen[at.room] = 1
    t.phase[at.room] = Phase.NEW
    t.latch[at.room] = t.wire[at.room] = NOTHING
    t.pages[at.room] = Pages.NONE
    t.metadata[at.room] = t.notice[at.room] = 0
    t.straggler[at.room] = int(m.may("late"))
    t.stale[at.room] = t.chunk[at.room] == Chunk.QUEUED
    t.chunk[at.room] = Chunk.UNSENT


# --------------------------------------------------------------------------------------------------------------------
# Bootstrap thread


def hear_metadata(m: Core, at: At) -> Step:
    xp, t = m.xp, m.tables
    heard, gen = t.metadata[at.room], t.gen[at.room]
    in_place = place(m, t.phase[at.room], Phase.BOOT, Phase.BOOT)
    if not m.may("early"):  # what has been lost does not come after the notice
        in_place = in_place & (t.notice[at.room] == 0)
    due = ((heard == 0) & in_place) | ((heard == 1) & m.doubles)
    yield due & (t.bootstrap[at.room] == Bootstrap.IDLE)
    counts = m.hears(at.room, gen)
    t.metadata[at.room] = heard + 1
    t.infos[at.room] = xp.where(counts, gen, t.infos[at.room])
    t.bootstrap_gen[at.room] = gen
    t.bootstrap[at.room] = xp.where(counts, Bootstrap.REGISTERED, Bootstrap.IDLE)


def write_w(m: Core, at: At) -> Step:
    thread = m.bootstrap(at)
    yield m.may_update(at, thread, Bootstrap.REGISTERED, Bootstrap.WRITE_W)
    if m.update(at, thread, W, Bootstrap.WRITE_W) is not None:
        m.tables.bootstrap[at.room] = Bootstrap.IDLE


def hear_abort(m: Core, at: At) -> Step:
    xp, t = m.xp, m.tables
    heard, gen = t.notice[at.room], t.gen[at.room]
    in_place = place(m, t.phase[at.room], Phase.BOOT, Phase.INFLIGHT)
    if not (m.may("lossy") or m.may("early")):
        in_place = in_place & (t.metadata[at.room] > 0)
    due = ((heard == 0) & in_place) | ((heard == 1) & m.doubles)
    yield due & (t.bootstrap[at.room] == Bootstrap.IDLE)
    aborts = m.present(at.room) & (t.status[at.room] != S) & m.counts(at.room, gen)
    t.notice[at.room] = heard + 1
    t.bootstrap_gen[at.room] = gen
    t.bootstrap[at.room] = xp.where(aborts, Bootstrap.ABORTING, Bootstrap.IDLE)


def write_f(m: Core, at: At) -> Step:
    thread = m.bootstrap(at)
    yield m.may_update(at, thread, Bootstrap.ABORTING, Bootstrap.WRITE_F)
    if m.update(at, thread, F, Bootstrap.WRITE_F) is not None:
        m.tables.bootstrap[at.room] = Bootstrap.POPPING if m.design.abort == "pops" else Bootstrap.IDLE


def abort_pop(m: Core, at: At) -> Step:
    t = m.tables
    yield t.bootstrap[at.room] == Bootstrap.POPPING
    t.bootstrap[at.room] = Bootstrap.IDLE
    pop_infos(m, at, t.bootstrap_gen[at.room])


def hear_stale_metadata(m: Core, at: At) -> Step:
    xp, t = m.xp, m.tables
    yield straggler_due(m, at)
    t.straggler[at.room] = 0
    t.bootstrap_gen[at.room] = int(m.mistaken)
    if m.mistaken:
        counts = m.hears(at.room, t.gen[at.room])
        t.infos[at.room] = xp.where(counts, 1, t.infos[at.room])
        t.bootstrap[at.room] = xp.where(counts, Bootstrap.REGISTERED, Bootstrap.IDLE)
    elif not m.tombstones:
        t.infos[at.room] = 0
        t.bootstrap[at.room] = Bootstrap.REGISTERED


def hear_stale_abort(m: Core, at: At) -> Step:
    t = m.tables
    yield straggler_due(m, at)
    t.straggler[at.room] = 0
    t.bootstrap_gen[at.room] = int(m.mistaken)
    if m.mistaken or not m.tombstones:
        aborts = m.present(at.room) & (t.status[at.room] != S)
        if m.mistaken:
            aborts = aborts & m.counts(at.room, t.gen[at.room])
        t.bootstrap[at.room] = m.xp.where(aborts, Bootstrap.ABORTING, Bootstrap.IDLE)


def place(m: Core, phase: Array, first: int, last: int) -> Array:
    """Where a message may come: in these phases, before them if the network is early, after them if overdue."""
    return ((phase >= first) | m.may("early")) & ((phase <= last) | m.may("overdue"))


def straggler_due(m: Core, at: At) -> Array:
    t = m.tables
    return (t.gen[at.room] == 1) & (t.straggler[at.room] == 1) & (t.bootstrap[at.room] == Bootstrap.IDLE)


def pop_infos(m: Core, at: At, gen: Array) -> None:
    infos = m.tables.infos
    infos[at.room] = m.xp.where(m.has_infos(at.room, gen), NOBODY, infos[at.room])


# --------------------------------------------------------------------------------------------------------------------
# Transfer workers


def take(m: Core, at: At) -> Step:
    t = m.tables
    nothing_stale = ~(t.stale[at.room] == 1).any(axis=1)
    yield my_turn(m, at) & m.is_head(t.chunk, at, Chunk.QUEUED) & nothing_stale
    t.chunk[at.room, at.chunk] = Chunk.TAKEN
    m.take(at, t.gen[at.room])


def take_stale(m: Core, at: At) -> Step:
    t = m.tables
    yield my_turn(m, at) & m.is_head(t.stale, at, 1)
    t.stale[at.room, at.chunk] = 0
    m.take(at, 0)


def my_turn(m: Core, at: At) -> Array:
    """The worker is idle and, where one worker has all chunks of a room, so are the room's others."""
    t = m.tables
    idle: Array = t.worker[at.worker] == Worker.IDLE
    if m.design.queues == "sharded":
        idle = idle & (t.serving[at.room].sum(axis=1) == 0)
    return idle


def check_status(m: Core, at: At) -> Step:
    t = m.tables
    yield m.has_chunk(at, Worker.TAKEN)
    present = m.present(at.room)
    dead = (t.status[at.room] == F) | (~present & (m.design.absent == "skips"))
    if m.tombstones:
        dead = dead | ~present | ~m.counts(at.room, t.job_gen[at.worker])
    m.give_up(at, dead)
    m.move(at, m.xp.where(dead, Worker.IDLE, Worker.CHECKED))


def check_infos(m: Core, at: At) -> Step:
    xp, t = m.xp, m.tables
    yield m.has_chunk(at, Worker.CHECKED)
    gen = t.job_gen[at.worker]
    found = m.has_infos(at.room, gen)
    fails = among(t.status[at.room], B, W, T) & m.counts(at.room, gen) & (m.design.guard == "fails")
    m.give_up(at, ~found)
    go_on = Worker.POSTING if m.design.mark == "never" else Worker.READY
    m.move(at, xp.where(found, go_on, xp.where(fails, Worker.FAILING, Worker.IDLE)))


def write_t(m: Core, at: At) -> Step:
    thread = m.worker(at)
    yield m.may_update(at, thread, Worker.READY, Worker.WRITE_T)
    if m.update(at, thread, T, Worker.WRITE_T) is not None:
        m.move(at, Worker.POSTING)


def post(m: Core, at: At) -> Step:
    yield m.stands(at, Worker.POSTING)
    m.move(at, Worker.TRANSFERRING)


def complete(m: Core, at: At) -> Step:
    xp, t = m.xp, m.tables
    yield m.has_chunk(at, Worker.TRANSFERRING)
    m.copy(at)
    m.deliver(at)
    if m.design.success == "last":
        last = at.chunk == t.chunk.array.shape[1] - 1
    else:
        last = m.own(at) & (t.chunk[at.room] == Chunk.DONE).all(axis=1)
    arrived = Worker.ARRIVED if m.design.conclude == "rechecks" else Worker.CONCLUDING
    m.move(at, xp.where(last, arrived, Worker.MARKING if m.design.mark == "again" else Worker.IDLE))


def break_(m: Core, at: At) -> Step:
    yield m.has_chunk(at, Worker.TRANSFERRING)
    m.give_up(at, m.own(at))
    m.move(at, Worker.FAILING)


def write_t_again(m: Core, at: At) -> Step:
    thread = m.worker(at)
    yield m.may_update(at, thread, Worker.MARKING, Worker.WRITE_T_AGAIN)
    if m.update(at, thread, T, Worker.WRITE_T_AGAIN) is not None:
        m.move(at, Worker.IDLE)


def conclude(m: Core, at: At) -> Step:
    xp, t = m.xp, m.tables
    yield m.stands(at, Worker.ARRIVED)
    failed = t.status[at.room] == F
    t.worker_seen[at.worker] = xp.where(failed, F, ABSENT)
    present = xp.where(failed, Worker.TELLING, Worker.CONCLUDING)
    m.move(at, xp.where(m.present(at.room), present, Worker.IDLE))


def write_s(m: Core, at: At) -> Step:
    yield from _conclude_with(m, at, S, Worker.CONCLUDING, Worker.WRITE_S)


def fail(m: Core, at: At) -> Step:
    yield from _conclude_with(m, at, F, Worker.FAILING, Worker.FAIL)


def _conclude_with(m: Core, at: At, status: int, before: int, between: int) -> Step:
    """Write a terminal status, and keep for decode what it left in the table."""
    t, thread = m.tables, m.worker(at)
    yield m.may_update(at, thread, before, between)
    if (stands := m.update(at, thread, status, between)) is not None:
        t.worker_seen[at.worker] = stands if m.design.tell == "standing" else status
        m.move(at, Worker.TELLING)


def tell_success(m: Core, at: At) -> Step:
    yield m.stands(at, Worker.TELLING) & (m.tables.worker_seen[at.worker] == S)
    _tell(m, at, S)
    m.move(at, Worker.POPPING)


def tell_failed(m: Core, at: At) -> Step:
    yield m.stands(at, Worker.TELLING) & (m.tables.worker_seen[at.worker] == F)
    _tell(m, at, F)
    m.move(at, Worker.IDLE)


def _tell(m: Core, at: At, status: int) -> None:
    """Decode is told; with tombstones it knows which request that is about."""
    xp, t = m.xp, m.tables
    wire = t.wire[at.room]
    heard = xp.where(among(wire, NOTHING, status), status, BOTH)
    t.wire[at.room] = xp.where(m.own(at), heard, wire) if m.tombstones else heard
    t.worker_seen[at.worker] = ABSENT


def tell_nothing(m: Core, at: At) -> Step:
    seen = m.tables.worker_seen
    yield m.stands(at, Worker.TELLING) & ~among(seen[at.worker], F, S)
    seen[at.worker] = ABSENT
    m.move(at, Worker.IDLE)


def conclude_pop(m: Core, at: At) -> Step:
    yield m.stands(at, Worker.POPPING)
    pop_infos(m, at, m.tables.job_gen[at.worker])
    m.move(at, Worker.IDLE)
