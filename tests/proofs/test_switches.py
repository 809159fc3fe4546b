"""What the designs of published versions are about: one worker for a room, and a wire that doubles nothing."""

import attrs
import pytest

from kvlatch.proofs.pins import pinned
from kvlatch.proofs.search import explore
from kvlatch.spec.designs import DESIGNS, Design
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.protocol import metadata, notice, worker
from kvlatch.spec.schema import Network, Property
from kvlatch.spec.terms import Term, some

PUBLISHED = [name for name in DESIGNS if name.startswith(("sglang-", "mooncake-"))]
TWO_AT_WORK = some("worker", (worker != "idle") & some("other worker", worker != "idle"))
TWICE = (metadata == "twice") | (notice == "twice")


def reached(design: Design, network: Network, there: Term) -> bool:
    """Whether a run with two workers gets there."""
    prop = Property("there", "It is reached.", there, broken="it is")
    machine = Machine.of(design, design.atomicities[0], network, Instance(workers=2, chunks=2))
    return explore(machine, [prop]).length("there") is not None


@pytest.mark.parametrize("name", PUBLISHED)
def test_one_worker_has_all_chunks_of_a_room(name: str) -> None:
    """Two are never at work on it, but where the queues are shared."""
    assert not reached(DESIGNS[name], "orderly", TWO_AT_WORK)
    assert reached(attrs.evolve(DESIGNS[name], queues="shared"), "orderly", TWO_AT_WORK)


def test_tcp_doubles_no_message() -> None:
    """Nor does any other message come twice; over another transport it may."""
    design = attrs.evolve(DESIGNS["sglang-0.5.23"], abort="pops")
    small = attrs.evolve(design, atomicities=("locked",))
    assert not reached(small, "disorderly", TWICE)
    assert reached(attrs.evolve(small, transport="any"), "disorderly", TWICE)
    assert {DESIGNS[name].transport for name in PUBLISHED} == {"tcp"}


def test_no_pinned_length_of_published_code_depends_on_workers() -> None:
    """So no printed number needs two workers on one room."""
    verdicts = pinned()
    found = {key: text for key, text in verdicts.items() if key[0] in PUBLISHED}
    assert {key[2] for key in found} == {1, 2}
    assert all(text == verdicts[design, level, 1, prop] for (design, level, _, prop), text in found.items())
