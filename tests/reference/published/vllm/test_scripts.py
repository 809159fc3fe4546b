"""The vLLM adapter and its laws: offline on a tiny wheel of our own, and marked `network` on published ones."""

from __future__ import annotations

import functools
import hashlib
import json
import zipfile
from pathlib import Path

import attrs
import pytest

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.published.vllm import scripts as vllm
from kvlatch.reference.published.vllm.laws import BY_LAW, LAWS, ROLES, Finding, as_room, judge, replay
from kvlatch.reference.published.vllm.scripts import START, Bounds, Engine, Node, Seen, Step
from kvlatch.reference.published.wheels import CannotFetch, Package, UnknownVersion, WheelMismatch
from kvlatch.spec.protocol import STATE


def script(text: str) -> list[Step]:
    """A script, by its steps: `P arrive` is prefill's, `D abort` decode's."""
    names = {"P": "prefill", "D": "decode", "N": "network", "T": "time"}
    return [Step.parse(f"{names[who]}/{op}") for who, op in (step.split() for step in text.split(", "))]


READING = "P arrive, P step, D arrive, D step"
"""Prefill has ended and keeps its blocks; decode's read of them is in flight."""

# --- Offline: a wheel that holds the least that the child asks for --------------------------------

TINY = {
    "vllm/distributed/kv_transfer/kv_connector/v1/__init__.py": """
import enum


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1
""",
    # One that frees what it has to keep when a request is aborted, and dies of a read that fails.
    "vllm/distributed/kv_transfer/kv_connector/v1/nixl_connector.py": """
import time

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole


class Meta:
    def __init__(self, to_read, to_send):
        self.to_read, self.to_send = to_read, to_send


class SchedulerHalf:
    def __init__(self):
        self.to_read = {}
        self.to_send = {}


class WorkerHalf:
    def __init__(self, engine_id):
        self.engine_id = engine_id
        self.reading = {}
        self.sending = {}


class NixlConnector:
    def __init__(self, config, role):
        self.connector_scheduler = SchedulerHalf() if role == KVConnectorRole.SCHEDULER else None
        engine_id = config.kv_transfer_config.engine_id
        self.connector_worker = WorkerHalf(engine_id) if role == KVConnectorRole.WORKER else None

    def get_num_new_matched_tokens(self, request, tokens):
        loads = bool(request.kv_transfer_params.get("loads"))
        return (16, True) if loads else (0, False)

    def update_state_after_alloc(self, request, blocks, tokens):
        if tokens:
            self.connector_scheduler.to_read[request.request_id] = blocks.get_block_ids()

    def build_connector_meta(self, output):
        half = self.connector_scheduler
        meta = Meta(dict(half.to_read), dict(half.to_send))
        half.to_read.clear()
        half.to_send.clear()
        return meta

    def request_finished(self, request):
        if request.status.name != "FINISHED_LENGTH_CAPPED" or request.kv_transfer_params.get("loads"):
            return False, None
        self.connector_scheduler.to_send[request.request_id] = time.perf_counter() + 480
        return True, {"loads": True}

    def step(self, meta):
        half = self.connector_worker
        for request_id in meta.to_read:
            handle = half.nixl_wrapper.make_prepped_xfer(notif_msg=request_id.encode())
            half.nixl_wrapper.transfer(handle)
            half.reading[request_id] = handle
        half.sending.update(meta.to_send)
        heard = {n.decode() for notices in half.nixl_wrapper.get_new_notifs().values() for n in notices}
        late = {r for r, expires in half.sending.items() if expires <= time.perf_counter()}
        sent = (heard | late) & half.sending.keys()
        for request_id in sent:
            del half.sending[request_id]
        states = {r: half.nixl_wrapper.check_xfer_state(handle) for r, handle in half.reading.items()}
        assert "ERR" not in states.values(), "a read has failed"
        read = {r for r, state in states.items() if state == "DONE"}
        for request_id in read:
            del half.reading[request_id]
        return sent, read
""",
    "vllm/v1/core/sched/scheduler.py": """
class Scheduler:
    def finish_requests(self, request_id, status):
        request = self.requests.get(request_id)
        if request is not None and not request.is_finished():
            request.status = status
            if request in self.running:
                self.running.remove(request)
            self.waiting.remove_requests([request])
            self._free_request(request)

    def _free_request(self, request):
        keeps, answer = self.connector.request_finished(request)
        if not keeps:
            self._free_blocks(request)
        return answer

    def _free_blocks(self, request):
        self.kv_cache_manager.free(request)
        del self.requests[request.request_id]
        self.finished_recving_kv_req_ids.discard(request.request_id)

    def _update_waiting_for_remote_kv(self, request):
        self.finished_recving_kv_req_ids.remove(request.request_id)

    def update_from_output(self, scheduler_output, output):
        brought = output.kv_connector_output
        self.finished_recving_kv_req_ids |= brought.finished_recving & self.requests.keys()
        for request_id in brought.finished_sending:
            self._free_blocks(self.requests[request_id])
""",
    "vllm/v1/request.py": """
import enum


class RequestStatus(enum.IntEnum):
    WAITING = 1
    WAITING_FOR_REMOTE_KVS = 2
    RUNNING = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5


class Request:
    def is_finished(self):
        return self.status >= RequestStatus.FINISHED_LENGTH_CAPPED
""",
    "vllm/v1/worker/kv_connector_model_runner_mixin.py": """
import contextlib
import types


class KVConnectorModelRunnerMixin:
    @staticmethod
    @contextlib.contextmanager
    def _get_kv_connector_output(scheduler_output):
        output = types.SimpleNamespace()
        yield output
        sent, read = get_kv_transfer_group().step(scheduler_output.kv_connector_metadata)
        output.finished_sending, output.finished_recving = sent, read
""",
}


def package(folder: Path, files: dict[str, str], name: str = "no-such-package") -> Package:
    """A package whose only version, 1.0, is a wheel of these files in a cache of its own."""
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    pins = folder / "pins.txt"
    pins.write_text(f"# version, file, sha256\n1.0 {wheel.name} {hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    return Package("vllm", name, pins)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of the tiny wheel, which is the only one that is pinned."""
    monkeypatch.setenv("KVLATCH_CACHE", str(tmp_path))
    monkeypatch.setattr(vllm, "PACKAGE", package(tmp_path, TINY))
    return "1.0"


def test_a_script_is_seen_step_by_step(tiny: str) -> None:
    """A read is posted by decode's step, ended by the network, and known to both engines after their next steps."""
    seen = vllm.run(tiny, script(f"{READING}, N read_ends, P step, D step, D step"))
    assert [s.prefill.status for s in seen[:3]] == ["WAITING", *["FINISHED_LENGTH_CAPPED"] * 2]
    assert [s.flying for s in seen[2:5]] == [(), (1,), ()]
    assert (seen[4].prefill.holds, seen[5].prefill.holds, seen[5].prefill.conclusions) == (True, False, ("Success",))
    assert (seen[6].decode.received, seen[7].decode.status, seen[7].decode.freed) == ("Success", None, 1)


def test_a_step_may_be_taken_apart(tiny: str) -> None:
    """An abort between the worker's part of a step and the scheduler's finds the request still there."""
    seen = vllm.run(tiny, script("P arrive, P schedule, P work, P abort, P update"))
    assert [s.prefill.status for s in seen] == ["WAITING", "RUNNING", "RUNNING", None, None]


def test_every_law_that_the_tiny_engine_breaks_is_found_by_a_shortest_script(tiny: str) -> None:
    """Its planted faults are found: an abort frees what is being written, a failed read ends the engine."""
    broken = {f.law.name: f for f in judge(tiny, stages=[Bounds()]) if f.verdict == "broken"}
    assert {*broken} == {"pages-held-lease", "pages-held-decode", "one-outcome", "no-crash-decode"}
    assert broken["pages-held-decode"].script == (*script(READING), Step("decode", "abort"))
    assert broken["no-crash-decode"].script == (
        *script(READING),
        Step("network", "read_breaks"),
        Step("decode", "step"),
    )


def test_a_limit_cuts_an_exploration_off(tiny: str) -> None:
    """What is left out is said."""
    [explored] = vllm.explore(tiny, [Bounds(steps="split")], limit=50)
    assert (len(explored.nodes), explored.complete) == (50, False)


def test_shorter_scripts_come_first(tiny: str) -> None:
    """So the first script that breaks a law is a shortest one."""
    [explored] = vllm.explore(tiny, [Bounds()])
    lengths = [len(node.script) for node in explored.nodes]
    assert explored.complete
    assert lengths == sorted(lengths)
    assert lengths[-1] > len(script(READING))


@pytest.mark.parametrize("steps", ["N read_ends", "P arrive, P update", "P abort", "D arrive"])
def test_what_is_not_possible_is_a_fault(tiny: str, steps: str) -> None:
    """Such a script says nothing about a law."""
    with pytest.raises(AdapterFault, match="is not possible there"):
        vllm.run(tiny, script(steps))


def test_what_the_stand_ins_lack_is_a_fault_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attribute that only a real engine would have must not pass for an error of upstream's code."""
    path = "vllm/v1/core/sched/scheduler.py"
    text = TINY[path].replace("status = status", "status = status.severity")
    monkeypatch.setenv("KVLATCH_CACHE", str(tmp_path))
    monkeypatch.setattr(vllm, "PACKAGE", package(tmp_path, TINY | {path: text}))
    with pytest.raises(AdapterFault, match=r"prefill abort: AttributeError: .*severity"):
        vllm.run("1.0", script("P arrive, P abort"))


def test_nothing_is_judged_where_an_uneventful_request_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel that our stand-ins do not fit must not be said to break laws."""
    path = "vllm/v1/worker/kv_connector_model_runner_mixin.py"
    monkeypatch.setenv("KVLATCH_CACHE", str(tmp_path))
    monkeypatch.setattr(
        vllm, "PACKAGE", package(tmp_path, TINY | {path: TINY[path].replace("= sent, read", "= set(), read")})
    )
    with pytest.raises(AdapterFault, match="an uneventful request does not end well in prefill"):
        judge("1.0")


def test_a_wheel_without_the_code_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault says what is missing."""
    monkeypatch.setenv("KVLATCH_CACHE", str(tmp_path))
    monkeypatch.setattr(vllm, "PACKAGE", package(tmp_path, {"vllm/__init__.py": ""}))
    with pytest.raises(AdapterFault, match="the wheel has none of"):
        vllm.run("1.0", [])


def test_a_child_that_takes_too_long_is_a_fault(tiny: str) -> None:
    """Foreign code has a time limit."""
    with pytest.raises(AdapterFault, match=r"no answer in 0.001 s"):
        vllm.run(tiny, [], timeout=0.001)


# --- Laws, on what might be seen ------------------------------------------------------------------

KEPT = Engine(1, "FINISHED_LENGTH_CAPPED", holds=True, freed=0, received=None, conclusions=(), tracked=(), dead=None)
LOADING = attrs.evolve(KEPT, status="WAITING_FOR_REMOTE_KVS")
GONE = attrs.evolve(KEPT, status=None, holds=False, freed=1)


TRACKED = attrs.evolve(GONE, tracked=["half.sending"])


def concluded(outcome: str) -> Engine:
    """A request that is forgotten, and what its engine concluded."""
    return attrs.evolve(GONE, conclusions=[outcome])


def after(step: Step, prefill: Engine, decode: Engine, *reads: str) -> Node:
    """A script of one step, after which that is seen."""
    return Node(START, step, Seen(prefill, decode, tuple((1, state) for state in reads)))


P_STEP, D_STEP, SETTLE = Step("prefill", "step"), Step("decode", "step"), Step("time", "settle")


@pytest.mark.parametrize(
    ("node", "broken"),
    [
        (after(P_STEP, KEPT, LOADING, "PROC"), set()),
        (after(P_STEP, GONE, LOADING, "PROC"), {"pages-held-prefill"}),
        (after(P_STEP, GONE, LOADING, "DONE"), set()),
        (after(P_STEP, KEPT, GONE, "PROC"), {"pages-held-decode"}),
        (after(P_STEP, attrs.evolve(GONE, freed=2), LOADING, "DONE"), {"released-once-prefill"}),
        (after(D_STEP, KEPT, attrs.evolve(GONE, freed=2), "DONE"), {"released-once-decode"}),
        (after(D_STEP, KEPT, attrs.evolve(LOADING, received="Success"), "DONE"), set()),
        (after(D_STEP, KEPT, attrs.evolve(LOADING, received="Success"), "PROC"), {"success-complete"}),
        (after(D_STEP, KEPT, attrs.evolve(LOADING, received="Failed"), "ERR"), set()),
        (after(SETTLE, KEPT, GONE, "DONE"), {"settlement-prefill"}),
        (after(SETTLE, GONE, LOADING, "DONE"), {"settlement-decode"}),
        (after(SETTLE, TRACKED, GONE, "DONE"), {"no-ghost-prefill"}),
        (after(P_STEP, TRACKED, GONE, "DONE"), set()),
        (after(D_STEP, concluded("Failed"), concluded("Success"), "DONE"), {"one-outcome"}),
        (after(D_STEP, concluded("Success"), concluded("Success"), "DONE"), set()),
        (after(D_STEP, attrs.evolve(GONE, dead="KeyError: 7"), KEPT, "PROC"), {"no-crash-prefill"}),
    ],
)
def test_laws_are_judged_by_the_specs_formulas(node: Node, broken: set[str]) -> None:
    """Each state breaks just the laws that it should."""
    assert {law.name for law in LAWS if law.is_broken(node)} == broken


def test_a_second_request_that_inherits_a_load_is_seen() -> None:
    """room-reusable: it has only arrived, and is taken for loaded."""
    arrived = attrs.evolve(LOADING, generation=2, status="WAITING", holds=False)
    law = BY_LAW["room-reusable"]
    assert not law.is_broken(after(Step("decode", "arrive"), KEPT, arrived, "DONE"))
    assert law.is_broken(after(Step("decode", "arrive"), KEPT, attrs.evolve(arrived, received="Success"), "DONE"))


def test_every_label_is_one_of_the_specs() -> None:
    """A label that the spec does not know would make a formula that is never true."""
    for prefill in (KEPT, GONE, START.seen.prefill, attrs.evolve(KEPT, status="RUNNING")):
        seen = Seen(prefill, LOADING, ((1, "PROC"),))
        for role in ROLES:
            room = as_room(seen, role, rest=False)
            fields = {f.name: f.labels for f in STATE}
            assert all(label in fields[name] for name, label in room.items() if not name.startswith("worker"))


def test_a_finding_tells_the_whole_run() -> None:
    """A person gets the sentence, each step with what was seen, and reports; a machine gets the script."""
    node = after(P_STEP, GONE, LOADING, "PROC")
    law = BY_LAW["pages-held-prefill"]
    finding = Finding(law, "1.0", "broken", law.sentence(node), node, Bounds())
    heading, bounds, columns, row, reports = finding.text.splitlines()
    assert heading == f"vllm 1.0: pages-held-prefill is broken: {law.broken}"
    assert bounds == "whole steps, orderly network, 1 request"
    assert columns.split() == ["#", "step", "prefill's", "request", "decode's", "request", "reads"]
    assert row.split("  ")[-1].strip() == "in flight"
    assert reports.endswith("vllm#25067")
    assert json.loads(json.dumps(finding.as_json()))["script"] == ["prefill/step"]


def test_a_step_is_read_back() -> None:
    """Text and step are one another's, and what is none is refused."""
    step = Step("network", "lose_notice")
    assert Step.parse(str(step)) == step
    with pytest.raises(ValueError, match="network/abort is no step"):
        Step.parse("network/abort")


# --- Wheels ---------------------------------------------------------------------------------------


def test_a_wheel_comes_from_the_cache_and_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not the pinned one is refused, in one line that says what to do."""
    monkeypatch.setenv("KVLATCH_CACHE", str(tmp_path))
    found = package(tmp_path, {"vllm/__init__.py": ""}).fetch("1.0")
    assert found == tmp_path / "tiny-1.0-py3-none-any.whl"
    found.write_bytes(b"another")
    with pytest.raises(WheelMismatch, match="delete the file to fetch it again"):
        Package("vllm", "tiny", tmp_path / "pins.txt").fetch("1.0")


def test_an_unknown_version_names_the_known_ones() -> None:
    """Exit code 2: bad input."""
    with pytest.raises(
        UnknownVersion, match=r"'nine' is no version of vllm; pinned are 0\.10\.1\.1, .*0\.32\.0"
    ) as caught:
        vllm.fetch("nine")
    assert caught.value.exit_code == 2


def test_without_a_registry_a_wheel_cannot_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 4: it cannot be run here, and pip's own words say why."""
    monkeypatch.setenv("KVLATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(CannotFetch, match=r"vllm 1\.0: ERROR: No matching distribution") as caught:
        package(tmp_path, {}).fetch("1.0")
    assert caught.value.exit_code == 4


# --- On published wheels --------------------------------------------------------------------------


@functools.cache
def reason_without_wheel(version: str) -> str | None:
    """Asked once a version: without a network, each attempt takes pip a while."""
    try:
        vllm.fetch(version)
    except CannotFetch as error:
        return str(error)
    return None


def skip_unless_fetched(version: str) -> None:
    """Skips where the wheel cannot be had."""
    if reason := reason_without_wheel(version):
        pytest.skip(reason)


LEASE = "pages-held-lease 6, one-outcome 9"
"""What every version breaks, with the number of steps: decode still reads when the lease runs out."""
BROKEN = {
    "0.10.1.1": "pages-held-prefill 5, pages-held-decode 5, no-ghost-decode 7, no-crash-prefill 5, no-crash-decode 6, "
    + LEASE,
    "0.32.0": LEASE,
}


@pytest.mark.network
@pytest.mark.parametrize("version", BROKEN)
def test_the_shortest_scripts_of_a_version_are_found(version: str) -> None:
    """Every script with one request, whole steps and an orderly network is run: the verdicts are the pinned ones."""
    skip_unless_fetched(version)
    found = [f for f in judge(version, stages=[Bounds()]) if f.verdict == "broken"]
    assert {f"{f.law.name} {len(f.script)}" for f in found} == {*BROKEN[version].split(", ")}


ALL = " ".join(vllm.versions())
INCIDENTS = {
    "vllm#25067: prefill's client goes after prefill has ended": (
        f"{READING}, P abort",
        {"pages-held-prefill": "0.10.1.1"},
    ),
    "the same, and decode's notice finds nobody": (
        f"{READING}, P abort, N read_ends, P step",
        {"pages-held-prefill": "0.10.1.1", "no-crash-prefill": "0.10.1.1"},
    ),
    "vllm#32255: decode's client goes while blocks are loaded": (
        f"{READING}, D abort",
        {"pages-held-decode": "0.10.1.1 0.12.0"},
    ),
    "a read fails": (f"{READING}, N read_breaks, D step", {"no-crash-decode": "0.10.1.1 0.12.0"}),
    "decode's client goes before its turn": (
        "P arrive, P step, D arrive, D abort, T settle",
        {"no-ghost-decode": "0.12.0 0.24.0 0.28.0"},
    ),
    "vllm#21570: decode's turn comes after the lease": (
        "P arrive, P step, D arrive, T expire, P step, D step",
        {"pages-held-lease": ALL},
    ),
    # From 0.24.0 on only if a user switches the random suffix of ids off.
    "an id is used again at once": (
        "P arrive, P abort, P arrive, T settle",
        {"settlement-prefill": "0.12.0 0.24.0 0.28.0 0.32.0"},
    ),
    "an id is used again, after a load that was given up": (
        f"{READING}, D abort, N read_ends, P step, D step, P arrive, P step, D arrive",
        {"pages-held-decode": "0.10.1.1 0.12.0", "room-reusable": "0.10.1.1 0.12.0"},
    ),
}
"""Public reports and what the exploration has found: a script, and which versions break which laws in it."""


@pytest.mark.network
@pytest.mark.parametrize("version", vllm.versions())
def test_what_becomes_of_public_reports(version: str) -> None:
    """An old version breaks what its reports say, and a later one has it mended; what is open is open."""
    skip_unless_fetched(version)
    broken = replay(version, [script(steps) for steps, _ in INCIDENTS.values()])
    for (incident, (_, laws)), findings in zip(INCIDENTS.items(), broken, strict=True):
        expected = {law for law, versions in laws.items() if version in versions.split()}
        assert {finding.law.name for finding in findings} == expected, incident


@pytest.mark.network
def test_a_heartbeat_renews_the_lease() -> None:
    """In 0.32.0 decode's step has sent one, so that prefill keeps the blocks when the first lease would run out."""
    steps = script(f"{READING}, T expire, P step")
    held = {}
    for version in ("0.12.0", "0.32.0"):
        skip_unless_fetched(version)
        held[version] = vllm.run(version, steps)[-1].prefill.holds
    assert held == {"0.12.0": False, "0.32.0": True}


@pytest.mark.network
def test_ids_are_unique_in_later_versions() -> None:
    """Where they are, two requests of one id are not explored, and room-reusable cannot be asked."""
    for version, reuses in {"0.12.0": True, "0.24.0": False}.items():
        skip_unless_fetched(version)
        assert vllm.reuses_ids(version) == reuses
