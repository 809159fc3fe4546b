"""Check a batch of mutants of a log: ``python -m tests.reference.logs.fuzz READER LOG MUTANT FROM COUNT``.

READER is `check`, or `convert` for what an engine says by itself. Mutants are numbered, and begin with FROM.

A process of its own; exit 0 if each got an answer or one line. A fork would be quicker, and stand still where Arrow's
threads hold a lock.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.converting.digest import Digest
from kvlatch.reference.logs.converting.read import converted
from kvlatch.reference.logs.events import VERSIONS, LogError, Names
from kvlatch.reference.logs.parse import event_of

MEMORY = 4 << 30
"""Bytes of address space: a length that was mutated into terabytes is refused, not tried."""
MOST = 500 << 10
"""Kilobytes that may be in memory at any time."""


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Bytes flipped, put in, taken out, or the end cut off."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at, how = chance.randrange(len(found) or 1), chance.random()
        if how < 0.7 and found:
            found[at] = chance.randrange(256)
        elif how < 0.8:
            del found[at:]
        elif how < 0.9:
            found[at:at] = chance.randbytes(3)
        else:
            del found[at : at + chance.randrange(20)]
    return bytes(found)


def most_in_memory() -> int:
    """Kilobytes that were in memory at most; getrusage begins with those of the process that started this one."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def convert(path: Path) -> None:
    """Convert a file as `kvlatch convert` does; each event must be one that `kvlatch check` takes."""
    digest = Digest("line")
    for number, said in enumerate(converted([path], None, None, digest), 2):
        event_of(number, json.loads(json.dumps(said)), Names(), VERSIONS[-1])
    json.dumps([*digest.lines(), digest.members()])


READERS: Final[dict[str, Callable[[Path], object]]] = {"check": check, "convert": convert}


def main() -> None:
    """Write down the seed of each mutant before it is checked, so that the one which ends the process is known."""
    reader, log, path = READERS[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3])
    first, count = int(sys.argv[4]), int(sys.argv[5])
    data = log.read_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for seed in range(first, first + count):
        path.with_suffix(".seed").write_text(str(seed))
        path.write_bytes(mutated(data, random.Random(seed)))  # noqa: S311  # for no secret
        try:
            reader(path)
        except LogError as error:
            if "\n" in str(error):
                raise
        if (peak := most_in_memory()) > MOST:
            sys.exit(f"{peak:,} KB were in memory")


if __name__ == "__main__":
    main()
