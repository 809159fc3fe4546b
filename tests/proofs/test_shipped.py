"""The certificates that come with the package: about this spec, about every pinned verdict, and not out of date."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlatch.proofs import pins
from kvlatch.proofs.archives import opened
from kvlatch.proofs.certificates import same
from kvlatch.proofs.prove import design_of
from kvlatch.proofs.recheck import SHIPPED, Manifest, answer, spec_hash
from kvlatch.proofs.worlds import scope_of
from kvlatch.spec.model import ANY
from kvlatch.spec.protocols import protocol_of
from kvlatch.spec.schema import Protocol
from kvlatch.spec.traces import read


def scope(protocol: Protocol) -> str:
    """The scope of a proof about any number of workers, or ranks."""
    return scope_of(protocol, protocol.everything.instance(ANY), protocol.everything.network)


@pytest.fixture(scope="module")
def shipped() -> Iterator[Path]:
    """The archive, unpacked; out of date if the spec, the lemmas or the way to write them down has changed since."""
    with opened(SHIPPED) as directory:
        assert Manifest.read(directory).spec == spec_hash(), f"{SHIPPED.name} is out of date: run `make certificates`"
        yield directory


def test_every_pinned_verdict_has_its_certificates(shipped: Path) -> None:
    """Each cell that holds is a theorem for any number of workers; each other is a trace of the pinned length."""
    manifest = Manifest.read(shipped)
    said: dict[tuple[str, str, int, str], str] = {}
    for theorem in manifest.theorems:
        protocol = protocol_of(design_of(theorem.design))
        assert theorem.scope == scope(protocol)
        said |= {(theorem.design, theorem.atomicity, count, theorem.prop): "holds" for count in protocol.counts}
    for name in (name for alike in manifest.shortest for name in alike.traces):
        trace = read(shipped / name)
        count = trace.instance.count(str(trace.instance.crowd))
        worlds = protocol_of(design_of(trace.design)).all_worlds
        (world,) = (w for w in worlds if (w.network, w.instance(count)) == (trace.network, trace.instance))
        said[trace.design, trace.atomicity, count, str(trace.prop)] = f"{len(trace.steps) - 1}{world.suffix}"
    assert said == pins.pinned()


@pytest.mark.thorough
def test_they_are_what_the_spec_gives(shipped: Path) -> None:
    """Computed again, every text is the same, byte for byte. In every run ``shipped`` compares the spec's hash."""
    assert same(shipped) == []


def test_a_sample_is_unsat(shipped: Path) -> None:
    """Every thirtieth obligation, and the least unrolling of each design: `kvlatch recheck` asks for all of them."""
    files = [file for file in Manifest.read(shipped).files if file.kind != "trace"]
    sample = [file for file in files if file.kind != "shorter"][::30]
    unrolled = sorted(
        (file for file in files if file.kind == "shorter"), key=lambda file: (shipped / file.name).stat().st_size
    )
    sample += {(file.design, file.atomicity): file for file in reversed(unrolled)}.values()
    assert {
        file.name: said for file in sample if (said := answer((shipped / file.name).read_text(), file.kind)) != "unsat"
    } == {}
