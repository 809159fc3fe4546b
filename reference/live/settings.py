"""What an engine is started with: the same for control and treatment, but for the rules of its status manager."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import attrs

from kvlatch.reference.oracle.merge_table import as_merge
from kvlatch.spec import merges
from kvlatch.spec.designs import Design
from kvlatch.spec.merges import KEEP
from kvlatch.spec.schema import Atomicity
from kvlatch.spec.status import KVPoll

EngineRole = Literal["prefill", "decode"]
SCHEDULER: Final = "scheduler"
"""The name of the thread that runs a scheduler's loop."""
Aborts = Literal["decode", "prefill", "both"]
"""Which engines look for clients that have hung up."""


@attrs.frozen
class Rules:
    """A status manager's rules as data: a design, with its merge as a table, in one atomicity.

    An engine gets its rules as JSON, so a design that is defined in a reader's own module can be run too.
    """

    design: Design
    level: Atomicity
    module: ClassVar[str] = "kvlatch.reference.live.engine"

    @property
    def name(self) -> str:
        """What the build is called."""
        return f"{self.design.name}/{self.level}"

    @property
    def fingerprint(self) -> str:
        """Which build an engine is: twelve digits of the hash of its code, and of the hash of its manager's rules."""
        of_rules = {**self.as_json(), "name": ""}  # a name changes nothing
        digest = hashlib.sha256(json.dumps(of_rules, sort_keys=True).encode()).hexdigest()
        return f"{code_hash()[:12]}-{digest[:12]}"

    def configuration(self) -> dict[str, Any]:
        """What an engine is told of it."""
        return {"rules": self.as_json()}

    def as_json(self) -> dict[str, Any]:
        """All that makes a difference to the manager, by name."""
        switches = {f.name: getattr(self.design, f.name) for f in attrs.fields(Design) if f.name not in _NOT_SWITCHES}
        table = merges.table(self.design.merge)
        return {"name": self.design.name, "level": self.level, "merge": table, "switches": switches}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rules:
        """The rules of such data; ValueError or TypeError if it is not a design."""
        level: Atomicity = data["level"]
        rows = (tuple(KEEP if cell == KEEP else KVPoll(cell) for cell in row) for row in data["merge"])
        return cls(Design(data["name"], as_merge(tuple(rows)), (level,), **data["switches"]), level)


_NOT_SWITCHES: Final = ("name", "merge", "atomicities", "says")


@attrs.frozen(kw_only=True)
class Settings:
    """The size and the speed of an engine. Sizes are such that two cores can run a whole system.

    A prompt is cut into chunks of ``chunk_tokens`` tokens; a token is a word. A chunk is computed in
    ``chunk_seconds``, fills ``chunk_pages`` pages, and each page takes ``page_seconds`` on the wire: so a transfer
    takes time in proportion to its length. ``noise`` is the chance that a transfer worker is delayed before a store to
    the status table or a lock of the manager, by up to ``noise_seconds``: it makes a rare interleaving frequent, and
    makes none possible that was not. ``queue`` bounds the chunks that wait for a worker. ``aborts`` says which engines
    look for clients that have hung up: decode, which sends a notice; prefill, on its own; or both. ``ranks`` is how
    many ranks each engine of published code has, ``backend`` its transfer backend. Times are in seconds.
    """

    chunk_tokens: int = 64
    chunk_pages: int = 4
    chunk_seconds: float = 0.02
    page_bytes: int = 4096
    page_seconds: float = 0.003
    pages: int = 8192
    batch: int = 16
    workers: int = 16
    queue: int = 4096
    bootstrap_timeout: float = 3.0
    waiting_timeout: float = 10.0
    noise: float = 0.8
    noise_seconds: float = 0.06
    aborts: Aborts = "decode"
    ranks: int = 1
    backend: str = "nixl"
    seed: int = 0

    def chunks_of(self, prompt: str) -> int:
        """How many chunks a prompt has; ValueError if its pages are more than there are."""
        chunks = -(-len(prompt.split()) // self.chunk_tokens)
        if chunks * self.chunk_pages > self.pages:
            raise ValueError(f"the prompt needs {chunks * self.chunk_pages} pages: there are {self.pages}")
        return chunks


@cache
def code_hash() -> str:
    """A hash over the code that the engines run: this folder, the status manager, and how a table is a merge."""
    total = hashlib.sha256()
    here = Path(__file__).parent
    elsewhere = [here.with_name("manager.py"), here.with_name("host.py"), here.parent / "oracle" / "merge_table.py"]
    for path in [*sorted(here.rglob("*.py")), *elsewhere]:
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()
