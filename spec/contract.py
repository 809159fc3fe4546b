"""The contract between prefill's ranks and decode: two protocols side by side, and what each may rely on.

Alone, each protocol takes its neighbour for a stranger: to ``decode`` a sender may report what it likes, to ``ranks``
a table may say Success whenever it likes. Here a sender *is* a rank of prefill. The rows of both are taken as they are,
under the names of their protocols (``decode.report``), and some wait for one thing more: a *clause*.

**Obligation and assumption.** What a clause assumes of a rank, the room must keep, which is what a rank does inside:
a clause has it in the room's terms too, and ``proofs/contracts.py`` proves that every step of the room keeps it.

**Switches.** One for each clause. At any position but the first, the two ends may come to disagree. All switches of the
two protocols are at their first positions. No protocol's file knows another one; this file alone knows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import attrs

from kvlatch.spec import decode, protocol, ranks
from kvlatch.spec.clauses import Clause, Contract
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import NETWORKS, Choice, Lemma, Property, Protocol, Rule, Sizes, Thread, World
from kvlatch.spec.status import F, S
from kvlatch.spec.terms import FALSE, TRUE, Field, ForAll, Is, Term, implies, rewrite, some

# --------------------------------------------------------------------------------------------------------------------
# Switches

told = Field("told", "switch", ("as the table says", "before the table"))
"""Does a rank report success only once Success stands in its own table?"""
stands = Field("stands", "switch", ("what was said first", "the last word"))
"""May a table that has said Success say Failed later?"""
success = Field("success", "switch", ("when all is in", "when all is posted"))
"""Does a rank write Success only when its part is in decode's pages?"""
parts = Field("parts", "switch", ("every rank", "some ranks"))
"""Has every rank of prefill a part in the request? Decode does not wait for one that has none, and that may fail."""
network = Field("network", "switch", NETWORKS)
"""As in the decode protocol: may messages be lost, may the notice come early?"""

# --------------------------------------------------------------------------------------------------------------------
# Two protocols side by side


@attrs.frozen(eq=False)
class Side:
    """A protocol as a part of another one: its fields under its name, its sort of peers being the ranks."""

    of: Protocol
    fields: dict[Field, Field]

    @classmethod
    def beside(cls, of: Protocol) -> Side:
        """The fields of a protocol, as those of a rank, or of the room."""
        owners = {"room": "room"} | dict.fromkeys(of.sorts, "rank")
        named = {field: Field(f"{of.name}.{field.name}", owners[field.owner], field.labels) for field in of.state}
        return cls(of, named)

    def __call__(self, term: Term) -> Term:
        """A term of the protocol, as one of both."""

        def change(part: Term) -> Term | None:
            match part:
                case ForAll(over, inner):
                    return ForAll(" ".join([*over.split()[:-1], "rank"]), self(inner))
                case Is(Field(name="network") as other, index):
                    return network == other.labels[index]
                case Is(Field(owner="switch"), index):
                    return FALSE if index else TRUE
                case Field():
                    return self.fields[part]
            return None

        return rewrite(term, change)

    def rows(self) -> Iterator[Rule]:
        """Its rows, each under the name of the protocol, but those that need another position of a switch."""
        possible = [rule for rule in self.of.rows if self(rule.when) is not FALSE]
        for rule in possible:
            begins = self.of.threads[rule.actor].pc.labels[0]
            if rule.at in (begins, *(other.to for other in possible if other.actor == rule.actor)):
                yield attrs.evolve(
                    rule,
                    name=f"{self.of.name}.{rule.name}",
                    actor=f"{self.of.name} {rule.actor}",
                    to=rule.to if isinstance(rule.to, str) else self(rule.to),
                    when=self(rule.when),
                    then={self.fields[f]: v if isinstance(v, str) else self(v) for f, v in rule.then.items()},
                    per=rule.per and "rank",
                )

    def threads(self) -> dict[str, Thread]:
        """Its threads, likewise."""
        return {f"{self.of.name} {name}": Thread(self.fields[one.pc]) for name, one in self.of.threads.items()}

    def lemmas(self, *names: str) -> Iterator[Lemma]:
        """Some of its lemmas, likewise."""
        for name in names:
            yield Lemma(f"{self.of.name}: {name}", self(self.of.lemma(name).claim))


PREFILL: Final = Side.beside(ranks.RANKS)
RECEIVER: Final = Side.beside(decode.DECODE)
decided, entry, vote, place = (PREFILL.fields[field] for field in (ranks.decided, ranks.entry, ranks.vote, ranks.place))
metadata, writes, report, word, receiver = (
    RECEIVER.fields[field] for field in (decode.metadata, decode.writes, decode.report, decode.word, decode.entry)
)

# --------------------------------------------------------------------------------------------------------------------
# Clauses


CLAUSES: Final = (
    Clause(
        "decode.report", "Decode is told Success by a rank whose table says Success.",
        (entry == S) | (told == "before the table"),
        event=protocol.wire == S, demand=(protocol.status == S) | (protocol.latch == S),
    ),
    Clause(
        "decode.break", "Decode is told Failed by a rank whose table says Failed.",
        entry == F,
        event=protocol.wire == F, demand=(protocol.status == F) | (protocol.latch == F),
    ),
    Clause(
        "ranks.complete", "A table says Success when all chunks are in decode's pages.",
        (writes == "in") | (metadata == "left out") | ((success == "when all is posted") & (writes == "posted")),
        event=protocol.status == S, demand=ForAll("chunk", protocol.chunk == "done"),
    ),
    Clause(
        "ranks.fail_late", "A table that has said Success does not say Failed.",
        stands == "the last word",
        event=(protocol.first_terminal == S) & (protocol.status == F), demand=FALSE,
    ),
)  # fmt: skip
"""What a step of one protocol waits for in the other. Where none says so, each takes its steps by itself."""
_ASSUMED: Final = {
    **{clause.row: clause.assumption for clause in CLAUSES},
    "decode.leave_out": parts == "some ranks",
}
_LATE: Final = Rule(
    "ranks.fail_late", "ranks rank", "runs", "runs",
    (entry == S) & (place == "running"), {entry: F, PREFILL.fields[ranks.reason]: "known"},
    fair=False,
    says="Something fails on this rank after it has written Success, and Failed takes its place.",
)  # fmt: skip

ROWS: Final = tuple(
    attrs.evolve(rule, when=rule.when & _ASSUMED[rule.name]) if rule.name in _ASSUMED else rule
    for rule in (*PREFILL.rows(), _LATE, *RECEIVER.rows())
)

# --------------------------------------------------------------------------------------------------------------------
# What joins the two

PROPERTIES: Final = (
    Property(
        "both-ends-agree", "Prefill's ranks never give up as failed what decode takes for a success.",
        (decided == F) & (receiver == S),
        reports=("sgl-project/sglang#31030",),
        broken="prefill's ranks have agreed on Failed, and decode says Success",
    ),
    Property(
        "success-is-there", "Decode takes for a success only what every rank has written and says that it has.",
        (receiver == S) & some("rank", (entry != S) | (writes != "in")),
        broken="decode says Success, and a rank does not, or its part is not in decode's pages",
    ),
    Property(
        "written-when-done", "No rank takes a request out as a success whose write still runs.",
        some("rank", (place == "succeeded") & (writes == "posted")),
        broken="a rank has taken the request out as a success, and its write into decode's pages still runs",
    ),
)  # fmt: skip

LEMMAS: Final = (
    *PREFILL.lemmas("voted Failed", "agreed on Failed"),
    *PREFILL.lemmas("a request ends as decided", "agreed on Success"),
    *RECEIVER.lemmas("reported success", "success has all", "written for a request"),
    Lemma("every rank has a part", metadata != "left out"),
    Lemma("Success when all is in", implies(entry == S, (writes == "in") | (metadata == "left out"))),
    Lemma("voted Success when all is in", implies(vote == S, (writes == "in") | (metadata == "left out"))),
    Lemma("reported as the table says", implies((report != "none") & (word == S), entry == S)),
)
FEW: Final = {
    "both-ends-agree": (
        "ranks: voted Failed", "ranks: agreed on Failed", "decode: success has all",
        "every rank has a part", "reported as the table says",
    ),
    "success-is-there": (
        "decode: reported success", "decode: success has all", "every rank has a part", "reported as the table says",
    ),
    "written-when-done": (
        "ranks: a request ends as decided", "ranks: agreed on Success", "voted Success when all is in",
        "Success when all is in", "decode: written for a request",
    ),
}  # fmt: skip
"""For each property, lemmas that suffice."""


SWITCHES: Final = (told, stands, success, parts, network)


def _design(name: str, says: str, **chosen: str) -> Choice:
    return Choice(f"contract-{name}", "contract", SWITCHES, chosen, says=says)


DESIGNS: Final = {
    design.name: design
    for design in (
        _design("latch", "Every clause is kept."),
        _design("told-early", "A rank reports before it writes.", told="before the table"),
        _design("last-word", "Failed replaces Success in a table.", stands="the last word"),
        _design("posted", "A rank writes Success when it has posted.", success="when all is posted"),
        _design("left-out", "A rank without a part may fail.", parts="some ranks"),
    )
}


@attrs.frozen
class Ends(Sizes):
    """How many ranks prefill has, or any number."""

    crowd: ClassVar[str | None] = "rank"
    ranks: int = 1


CONTRACT: Final = Protocol(
    "contract",
    "The ranks of prefill and decode, side by side: what each relies on.",
    sizes=Ends,
    sorts=("rank",),
    state=(*PREFILL.fields.values(), *RECEIVER.fields.values()),
    threads={**PREFILL.threads(), **RECEIVER.threads()},
    rows=ROWS,
    switches=SWITCHES,
    designs=DESIGNS,
    properties=PROPERTIES,
    worlds=(
        World("orderly network", "", "orderly", Ends()),
        World("several faults of the network", "d", "disorderly", Ends()),
    ),
    everything=World("everything", "", "disorderly", Ends()),
    lemmas=LEMMAS,
    few=FEW,
    contract=Contract(CLAUSES, ROOM, "latch"),
)
