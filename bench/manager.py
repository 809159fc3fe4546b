"""A million random operations on the array manager: the same state on every backend that is here, bit by bit.

Each round draws an operation for each of many rooms, and does those that are enabled. Without a GPU the second backend
is NumPy behind CuPy's rules (tests/reference/arrays/cupy_facade.py): that shows that the code keeps to what CuPy has,
not that CuPy does the same.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType

import attrs
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from kvlatch.reference.arrays.device import NoDevice, module, to_host
from kvlatch.reference.arrays.manager import OF_CHUNKS, UPDATES, Batch, Manager, Operation, Part
from kvlatch.reference.arrays.tables import NONE, Column, Tables
from kvlatch.spec.designs import DESIGNS
from tests.reference.arrays.cupy_facade import xp as facade

ROOMS, OPERATIONS = 40_000, 1_000_000
NAMES_CHUNK = np.isin(np.arange(len(Operation)), [int(operation) for operation in OF_CHUNKS])
WRITES = np.isin(np.arange(len(Operation)), [int(operation) for operation in UPDATES])


@attrs.define
class Run:
    """One manager, what it has done so far, and the seconds that it took."""

    manager: Manager
    done: int = 0
    seconds: float = 0.0

    def round(self, draw: np.random.Generator) -> None:
        """Draw an operation for each room, and do those that are enabled; each room has a worker of its own."""
        room = np.arange(ROOMS, dtype=np.int32)
        operation = draw.integers(0, len(Operation), ROOMS).astype(np.uint8)
        part = np.where(WRITES[operation], draw.integers(Part.read, Part.retry + 1, ROOMS), Part.whole)
        part[WRITES[operation] & (part == Part.store)] = Part.read  # which is split's, and this is cas
        chunk = draw.integers(0, 2, ROOMS)
        start = time.perf_counter()
        xp = self.manager.xp
        worker = np.where(operation >= Operation.take, room, NONE)
        chunk = np.where(NAMES_CHUNK[operation], chunk, NONE)
        batch = Batch.of(xp, operation, room, part=part, worker=worker, chunk=chunk)
        mask = to_host(self.manager.enabled(batch))
        at = np.flatnonzero(mask)
        self.manager.apply(Batch.of(xp, operation[at], room[at], part=part[at], worker=worker[at], chunk=chunk[at]))
        self.seconds += time.perf_counter() - start
        self.done += int(mask.sum())

    def state(self) -> dict[str, bytes]:
        """Every array of the manager, as bytes."""
        arrays = {}
        for field in attrs.fields(Tables):
            value = getattr(self.manager.tables, field.name)
            if field.name != "journal":
                arrays[field.name] = to_host(value.array if isinstance(value, Column) else value).tobytes()
        return arrays


def backends() -> dict[str, ModuleType]:
    """What there is to compare."""
    found: dict[str, ModuleType] = {"NumPy": np, "facade": facade}
    try:
        found["CuPy"] = module("gpu")
    except NoDevice as reason:
        print(f"no CuPy here: {reason}")
    return found


def main() -> int:
    """Run all backends side by side; exit code 1 if two states differ."""
    runs = {
        name: Run(Manager(DESIGNS["latch"], "cas", "disorderly", rooms=ROOMS, workers=ROOMS, chunks=2, xp=xp))
        for name, xp in backends().items()
    }
    first = next(iter(runs.values()))
    seed = 0
    while first.done < OPERATIONS:
        before = first.done
        for run in runs.values():
            run.round(np.random.default_rng(seed))
        seed += 1
        if first.done == before and seed > 1_000:
            break
    states = {name: run.state() for name, run in runs.items()}
    for name, run in runs.items():
        same = states[name] == states[next(iter(runs))]
        rate = run.done / run.seconds
        verdict = "equal" if same else "DIFFERS"
        print(f"{name}: {run.done:,} operations in {seed} rounds, {rate:,.0f} a second, state {verdict}")
    return 0 if all(state == states[next(iter(runs))] for state in states.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
