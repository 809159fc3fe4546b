"""``kvlatch storm``: the command and its options. ``run.py`` does it, ``report.py`` and ``page.py`` report it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from kvlatch.commands.common import Number, folder_can_be_made, json_option, refuse
from kvlatch.commands.exits import USAGE, Failure
from kvlatch.reference.live.load import ROUNDS, Load

_RATE: Final = 20.0
"""Most requests a second to a deployment whose user does not say another rate."""
_PAIR: Final = 2
_OF_A_DEPLOYMENT: Final = ("metrics", "header", "label", "against", "yes")
_OF_A_SYSTEM: Final = ("builds", "queue", "noise", "hits", "aborts", "reuse", "ranks", "backend", "faults")
"""Options that are about a system that is started here."""


@click.command()
@click.option(
    "--build",
    "builds",
    multiple=True,
    metavar="BUILD",
    help="What is stormed: a design, or published code. One by itself; of two, the control and then the treatment. By "
    "default seed-control and latch.",
)
@click.option("--url", metavar="URL", help="Instead, a deployment that runs already: where its router listens.")
@click.option("--metrics", multiple=True, metavar="URL", help="With --url: the metrics page of a prefill engine.")
@click.option(
    "--header",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="With --url: send this header too, a key say. No report has its value.",
)
@click.option("--label", default="", metavar="NAME", help="With --url: what you call the build that runs.")
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
    "--requests", type=click.IntRange(1, 100_000), default=160, show_default=True, help="At most, in a round."
)
@click.option("--clients", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At work at a time.")
@click.option("--seconds", type=Number(0.1, 3600), default=6.0, show_default=True, help="At most, for a round.")
@click.option(
    "--hits",
    type=click.IntRange(0),
    help=f"Go on until N aborts landed inside the window of the race, for {ROUNDS} rounds at most; 0 for one round. By "
    "default 20; 6 for published code, which has one transfer worker a decode engine.",
    metavar="N",
)
@click.option("--rate", type=Number(0.1), help="Most requests a second; 20 with --url, else no limit.")
@click.option(
    "--patience",
    type=(Number(0), Number(0)),
    default=(0.05, 0.6),
    show_default=True,
    metavar="LEAST MOST",
    help="Seconds after which an impatient client hangs up.",
)
@click.option(
    "--chunks",
    type=(click.IntRange(1, 1000), click.IntRange(1, 1000)),
    metavar="LEAST MOST",
    help="Length of a prompt, in chunks of 64 words. By default 4 to 10; 1 to 3 for published code.",
)
@click.option(
    "--limit",
    type=Number(1),
    default=20.0,
    show_default=True,
    help="Seconds after which a patient client gives up, too: its request is unaccounted for.",
)
@click.option(
    "--unread", type=click.IntRange(0), default=0, help="How many clients of a round never read their answer."
)
@click.option(
    "--queue", type=click.IntRange(1), default=4096, show_default=True, help="Chunks that may wait for a worker."
)
@click.option(
    "--noise",
    type=Number(0, 1),
    default=0.8,
    show_default=True,
    help="Chance that a worker is delayed before a store or a lock; 0 leaves the race to luck.",
)
@click.option(
    "--aborts",
    type=click.Choice(["decode", "prefill", "both"]),
    default="decode",
    show_default=True,
    help="Which engines notice that a client has hung up.",
)
@click.option(
    "--reuse", is_flag=True, help="Published code: a client that hung up asks again at once, with the same room id."
)
@click.option(
    "--ranks",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="Published code: ranks of each engine, whose statuses upstream reduces to one.",
)
@click.option(
    "--backend",
    type=click.Choice(["nixl", "mooncake"]),
    default="nixl",
    show_default=True,
    help="Published code: its transfer backend, over TCP on this machine.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    type=click.Choice(["kill-prefill", "kill-decode", "kill-router"]),
    help="Kill -9 this part in the middle of the storm.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    callback=folder_can_be_made,
    help="Folder of the report; by default storm-N.",
)
@json_option("One JSON object: the report, with the laws of each build; room ids are strings.")
def storm(
    requests: int, clients: int, seconds: float, hits: int | None, rate: float | None, patience: tuple[float, float],
    chunks: tuple[int, int] | None, limit: float, unread: int, queue: int, noise: float, aborts: str,
    reuse: bool, ranks: int, backend: str, header: tuple[str, ...], faults: tuple[Any, ...], **question: Any,
) -> int:  # fmt: skip
    """Storm a live prefill/decode system with clients that hang up, and see whether it leaves requests behind.

    Alone: control and treatment by turns, each on a system of its own that is started here, with real NIXL transfers
    behind the real sglang-router. A build is a design that ships, or your MODULE:NAME, with /locked, /split or /cas: an
    engine of ours whose status manager follows it. Or it is published code, as conform takes it: sglang==VERSION, a
    folder or a wheel, with +OVERLAY: upstream's own schedulers, queues, managers and transfers, without a GPU.

    Exit 0 if the treatment (or the one build) breaks no law although the race fired; 1 if it breaks one, as when it
    pins a request, leaves one without an ending, or answers one with wrong pages; 3 if the storm does not show which.
    """
    deployment = question["url"] is not None
    if deployment:
        refuse(_OF_A_SYSTEM, "with --url: it is about a system that is started here")
    else:
        refuse(_OF_A_DEPLOYMENT, "without --url: it is about a deployment that runs already")
    if len(question["builds"]) > _PAIR:
        raise Failure("--build names at most two builds: the control and the treatment", USAGE)

    from kvlatch.commands.storm.question import Question, published
    from kvlatch.commands.storm.question import header as read_header
    from kvlatch.commands.storm.run import answer

    upstream = published(question["builds"])
    if (reuse or ranks > 1 or backend != "nixl") and not upstream:
        about = "--reuse, --ranks and --backend are about published code"
        raise Failure(f"{about}: name it with --build sglang==VERSION", USAGE)
    if hits is None:
        hits = 6 if upstream else 20
    if chunks is None:
        chunks = (1, 3) if upstream else (4, 10)
    try:
        load = Load(
            requests=requests, clients=clients, seconds=seconds, rate=rate or (_RATE if deployment else None),
            patience=patience, chunks=chunks, limit=limit, unread=unread, hits=0 if deployment else hits, reuse=reuse,
        )  # fmt: skip
    except ValueError as error:
        raise Failure(str(error), USAGE) from error
    settings = {"queue": queue, "noise": noise, "aborts": aborts, "ranks": ranks, "backend": backend}
    headers = dict(map(read_header, header))
    once = tuple(dict.fromkeys(faults))
    return answer(Question(load=load, settings=settings, headers=headers, faults=once, **question))
