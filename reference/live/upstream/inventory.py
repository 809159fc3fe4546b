"""What of a published version runs in an engine of ours, and what stands in for the rest of it.

``python -m kvlatch.reference.live.upstream.inventory`` prints the page docs/replaced.md. With the path of a wheel or a
folder it loads that code as an engine does, without starting one, and prints a JSON object.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

import attrs

from kvlatch.reference.live.upstream.load import SRT, load
from kvlatch.reference.live.upstream.replaced import arguments, replaced
from kvlatch.reference.live.upstream.scheduler import Replaced
from kvlatch.reference.live.upstream.subject import Published

VERSIONS: Final = ("0.5.15.post1", "0.5.19", "0.5.20", "0.5.23")
"""The versions of the page."""
_SECONDS: Final = 120.0
_HEAD: Final = """# What a storm on published code replaces

`kvlatch storm --build sglang==VERSION` runs upstream's scheduler, queues, managers, bootstrap server and transfers,
unmodified, in two processes without a GPU. This page says what is not upstream's. It is computed from the wheels, and
compared by a test.

* **Memory**: the KV pool is two NumPy arrays, an allocator of single tokens over upstream's base class, and a cache
  without prefixes. A token is a page. What NIXL is told is on the GPU is on the host; Mooncake's transfer engine is its
  own, over TCP, by upstream's switch for it (`MC_FORCE_TCP`).
* **The model**: a chunk takes a set time, and its KV is a function of prompt and position. Decode does not decode:
  it compares the bytes that have come with that function, answers, and releases.
* **Intake**: requests and aborts get into the scheduler by a list of calls, in the place of ZMQ and a broadcast; of two
  ranks, the first hands its list to the second at each turn of the loop. With `--reuse` the room id comes from the
  client, and not from the router. A batch is first come, first served, one request in chunks at a time, in the place of
  `PrefillAdder`.
* **The wire** takes a set time for a chunk at least. **The status table** is a dictionary whose stores by transfer
  workers can be delayed.
* **Ranks** (`--ranks 2`) are two processes an engine. What they poll is reduced by upstream's own
  `poll_and_all_reduce`, whose `torch.distributed.all_reduce` is the same operation over a socket, in the place of gloo;
  every rank has a manager, a pool and a content of its own.
* **Metrics**: statistics, traces and upstream's reporter of metrics are silent. The gauges that are served have the
  names that upstream gives them, and are the lengths of upstream's own queues at that moment.
* Loops without overlap; NIXL, or Mooncake with `--backend mooncake` (the lists are of NIXL). Decode waits for a
  transfer as long as it does by default, 300 s; prefill for metadata 3 s, in the place of 300.

A stub that is read as a decision stops the storm with exit code 3 and a line that names it: nothing is decided by what
is not there. What hangs on a part that is replaced is not judged: whether memory is enough, whether a prefix is found,
how requests are ordered; and with two ranks, what gloo does when one of them is late or dead.
"""
_PARTS: Final = ("managers.scheduler", "disaggregation.nixl.conn", "mem_cache.common", "mem_cache.allocator.base")


@attrs.frozen
class Inventory:
    """Modules that are upstream's own, modules that are stubs, and the names and methods that are ours."""

    real: tuple[str, ...]
    stubs: tuple[str, ...]
    names: tuple[str, ...]
    methods: tuple[str, ...]


def of(code: Path) -> Inventory:
    """The inventory of a wheel or a folder; RuntimeError, with the last line that was said, if it cannot be loaded."""
    command = [sys.executable, "-m", "kvlatch.reference.live.upstream.inventory", str(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return Inventory(**{name: tuple(values) for name, values in json.loads(done.stdout).items()})


def _look(code: Path) -> dict[str, list[str]]:
    given = arguments("prefill", 0)
    names = replaced(given)
    finder = load(code, names)
    modules: list[Any] = [importlib.import_module(f"{SRT}.{part}") for part in _PARTS]
    upstream = {name for kind in modules[0].Scheduler.__mro__[:-1] for name in vars(kind)}
    ours = [name for name in vars(Replaced) if name in upstream and not name.startswith("__")]
    own = {f"{module}.{name}" for module in names if module in finder.stubs for name in names[module]}
    own.add(f"{SRT}.disaggregation.nixl.conn._normalize_kv_mem_kinds")
    foreign = [name for name in finder.stubs if name.partition(".")[0] != "sglang"]
    stubs = [name for name in finder.stubs if name not in foreign]
    return {
        "real": sorted(finder.real),
        "stubs": sorted(set(stubs) | {name.partition(".")[0] for name in foreign}),
        "names": sorted(own),
        "methods": sorted(ours),
    }


def section(version: str, found: Inventory) -> str:
    """The section of the page about a version."""
    strip = f"{SRT}."
    parts = {
        "Upstream's own modules": [name.removeprefix(strip) for name in found.real],
        "Methods of the scheduler that are ours": found.methods,
        "Names that are ours": [name.removeprefix(strip) for name in found.names],
        "Stubs, which decide nothing": [name.removeprefix(strip) for name in found.stubs],
    }
    lines = [f"## {version}", ""]
    for title, names in parts.items():
        text = f"**{title}** ({len(names)}): {', '.join(f'`{name}`' for name in names)}."
        lines += [*textwrap.wrap(text, 120), ""]
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    sections = [section(version, of(Published.of(f"sglang=={version}").subject.code)) for version in VERSIONS]
    return "\n".join([_HEAD, *sections])


if __name__ == "__main__":
    print(json.dumps(_look(Path(sys.argv[1]))) if sys.argv[1:] else page(), end="" if not sys.argv[1:] else "\n")
