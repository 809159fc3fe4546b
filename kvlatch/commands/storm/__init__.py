"""``kvlatch storm``: the command, and what it takes. ``run.py`` does it, ``report.py`` puts it on a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvlatch.commands.exits import USAGE, Failure
from kvlatch.reference.live.load import Load


@click.command()
@click.option("--control", default="seed-control", show_default=True, metavar="DESIGN", help="The build that fails.")
@click.option("--treatment", default="latch", show_default=True, metavar="DESIGN", help="The build with the fix.")
@click.option("--design", "designs", multiple=True, metavar="DESIGN", help="Instead, this one by itself.")
@click.option("--url", metavar="URL", help="Instead, a deployment that runs already: where its router listens.")
@click.option("--metrics", multiple=True, metavar="URL", help="With --url: the metrics page of a prefill engine.")
@click.option("--build", "label", default="", metavar="NAME", help="With --url: what you call the build that runs.")
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="REPORT",
    help="With --url: the report.json of the control, stormed before.",
)
@click.option("--yes", is_flag=True, help="With --url: do not ask before requests are sent.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the requests and the delays.")
@click.option(
    "--repetitions", type=click.IntRange(1, 100), help="Storms on each build; 4, or 1 where none is compared."
)
@click.option(
    "--requests", type=click.IntRange(1, 100_000), default=160, show_default=True, help="At most, in a storm."
)
@click.option("--clients", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At work at a time.")
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), default=6.0, show_default=True, help="At most, for a storm."
)
@click.option("--rate", type=click.FloatRange(0.1), help="Most requests a second; 20 with --url, else no limit.")
@click.option(
    "--patience",
    type=(click.FloatRange(0), click.FloatRange(0)),
    default=(0.05, 0.6),
    show_default=True,
    metavar="LEAST MOST",
    help="Seconds after which an impatient client hangs up.",
)
@click.option(
    "--chunks",
    type=(click.IntRange(1, 1000), click.IntRange(1, 1000)),
    default=(4, 10),
    show_default=True,
    metavar="LEAST MOST",
    help="Length of a prompt, in chunks of 64 words.",
)
@click.option(
    "--limit",
    type=click.FloatRange(1),
    default=20.0,
    show_default=True,
    help="Seconds after which a patient client gives up, too: its request is unaccounted for.",
)
@click.option("--unread", type=click.IntRange(0), default=0, help="So many clients never read their answer.")
@click.option(
    "--queue", type=click.IntRange(1), default=4096, show_default=True, help="Chunks that may wait for a worker."
)
@click.option(
    "--noise",
    type=click.FloatRange(0, 1),
    default=0.8,
    show_default=True,
    help="Chance that a worker is delayed before a store or a lock; 0 leaves the race to luck.",
)
@click.option("--both-abort", is_flag=True, help="Prefill looks for clients that hung up too, every four seconds.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    type=click.Choice(["kill-prefill", "kill-decode", "kill-router"]),
    help="Kill -9 this part in the middle of the storm.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the report; by default storm-N."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: the report.")
def storm(
    requests: int, clients: int, seconds: float, rate: float | None, patience: tuple[float, float],
    chunks: tuple[int, int], limit: float, unread: int, queue: int, noise: float, both_abort: bool, **question: Any,
) -> int:  # fmt: skip
    """Storm a live prefill/decode system with clients that hang up, and see whether it leaves requests behind.

    Alone: control and treatment by turns, each on a system of its own that is started here, with real NIXL transfers
    behind the real sglang-router. DESIGN is a design that ships, or your module:NAME, with /locked, /split or /cas.

    Exit 0 if the treatment (or the one build) leaves nothing behind although the race fired; 1 if it pins a request,
    leaves one without an ending, or answers one with wrong pages; 3 if the storm does not show which.
    """
    from kvlatch.commands.storm.run import Question, answer

    if rate is None and question["url"]:
        rate = 20.0
    try:
        load = Load(
            requests=requests, clients=clients, seconds=seconds, rate=rate, patience=patience, chunks=chunks,
            limit=limit, unread=unread,
        )  # fmt: skip
    except ValueError as error:
        raise Failure(str(error), USAGE) from error
    settings = {"queue": queue, "noise": noise, "both_abort": both_abort}
    return answer(Question(load=load, settings=settings, **question))
