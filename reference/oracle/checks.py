"""The conformance oracle: hold your own status manager against the laws of ``kvlatch.spec``.

Write an adapter: nine methods that pass on to your manager what happens. Then, in your own tests::

    from kvlatch.reference.oracle.checks import Check, conforms

    @conforms(MyAdapter, known_failures={"success-not-overwritten": "we let a late failure win"})
    def test_manager(check: Check) -> None:
        check()

The oracle plays the lives of rooms against fresh managers (``harness.py``): every play within small bounds, with few
preemptions and short ones first, and random ones far beyond (``explore.py``, ``wander.py``), on real threads that are
held inside calls. A broken law raises :class:`Violation` with the law, what was seen, the play as a table with a column
for each thread, public reports of the same kind, and the command that plays it again. A law that nothing looked at is
skipped, with the reason. A manager that cannot be driven is an :class:`AdapterFault`, never a violation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, get_args

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.laws import LAWS, Broken, NotJudged, exit_code, select
from kvlatch.reference.oracle.adapter import Adapter, MakeAdapter, Probe
from kvlatch.reference.oracle.examine import SECONDS, examine
from kvlatch.reference.oracle.findings import Finding
from kvlatch.reference.oracle.inprocess import InProcess
from kvlatch.reference.oracle.report import Report
from kvlatch.reference.oracle.results import Result
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.schema import Profile

if TYPE_CHECKING:
    import pytest

__all__ = [
    "CHECKS", "LAWS", "Adapter", "AdapterFault", "Check", "Finding", "MakeAdapter", "Probe", "Profile", "Report",
    "Violation", "check_manager", "conforms", "examine", "laws_of",
]  # fmt: skip


def laws_of(profile: Profile) -> tuple[str, ...]:
    """The laws that a manager of this profile is held against."""
    other = next(name for name in get_args(Profile) if name != profile)
    return tuple(law for law in LAWS if law not in BY_NAME or BY_NAME[law].profile != other)


class Violation(AssertionError):
    """A law is broken; the text is the whole finding."""

    def __init__(self, law: str, answer: Broken) -> None:
        parts = [f"{law} is broken: {answer.sentence}", answer.text, f"again: {answer.again}" if answer.again else ""]
        super().__init__("\n\n".join(part for part in parts if part))
        self.law = law
        self.answer = answer


def check_manager(
    make_adapter: MakeAdapter,
    *,
    only: Collection[str] = (),
    profile: Profile = "first terminal wins",
    seed: int = 0,
    sequential: bool = False,
    known: Collection[str] = (),
    seconds: float = SECONDS,
) -> Report:
    """Hold a manager against the laws of its profile, or only some; UnknownLaw for a law that does not exist.

    ``make_adapter`` takes a :class:`Probe` and makes an adapter with a fresh manager; ``seed`` is that of the random
    plays; ``sequential`` promises that one thread at a time calls the manager; ``known`` are texts of plays to begin
    with. ``seconds`` is how much is done: as much work as takes so long on a quiet core, counted, so that the report is
    the same on any machine. Raises :class:`AdapterFault` where the adapter cannot be driven.
    """
    laws = tuple(select(laws_of(profile), only))
    return _examined(make_adapter, laws, seed, sequential, tuple(known), seconds)


@functools.lru_cache(maxsize=64)
def _examined(
    make_adapter: MakeAdapter,
    laws: tuple[str, ...],
    seed: int,
    sequential: bool,
    known: tuple[str, ...],
    seconds: float,
) -> Report:
    player, name = InProcess(make_adapter), name_of(make_adapter)
    try:
        return examine(player, name, laws, seed=seed, sequential=sequential, known=known, seconds=seconds)
    finally:
        player.close()


def name_of(make_adapter: MakeAdapter) -> str:
    """``module:name``, as the command line takes it."""
    return f"{make_adapter.__module__}:{getattr(make_adapter, '__qualname__', type(make_adapter).__qualname__)}"


# --- In pytest ------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Examination:
    """One examination for all checks of a test: those that are selected are its laws. ``plugin.py`` fills in the rest.

    ``share`` gets how to examine and gives the judgements and a summary, perhaps of another process that has done it.
    """

    make_adapter: MakeAdapter
    profile: Profile
    sequential: bool = False
    seconds: float = SECONDS
    laws: set[str] = attrs.field(factory=set)
    known: tuple[str, ...] = ()
    share: Callable[[Examination, Callable[[], Result]], Result] | None = None
    done: Result | None = None
    """The result, once there is one."""

    @property
    def subject(self) -> str:
        """The manager's name."""
        return name_of(self.make_adapter)

    def result(self) -> Result:
        """The judgements, made once."""
        if self.done is None:
            self.done = self.share(self, self._examined) if self.share is not None else self._examined()
        return self.done

    def _examined(self) -> Result:
        only = self.laws or set(laws_of(self.profile))
        report = check_manager(
            self.make_adapter,
            only=only,
            profile=self.profile,
            sequential=self.sequential,
            known=self.known,
            seconds=self.seconds,
        )
        return Result.of(report)


@attrs.frozen(eq=False)
class Check:
    """Call it to hold the manager against one law."""

    law: str
    examination: Examination

    def __call__(self) -> None:
        """Raise Violation if the law is broken; skip the test if it was not judged, and fail if no law was."""
        import pytest

        judgements = self.examination.result().judgements
        answer = next(one.answer for one in judgements if one.law == self.law)
        if isinstance(answer, Broken):
            raise Violation(self.law, answer)
        if isinstance(answer, NotJudged):
            if exit_code(judgements) == 3:
                pytest.fail(f"nothing was judged: {answer.why}", pytrace=False)
            pytest.skip(f"not judged: {answer.why}")


def conforms(
    make_adapter: MakeAdapter,
    known_failures: Mapping[str, str] | None = None,
    *,
    profile: Profile = "first terminal wins",
    sequential: bool = False,
    seconds: float = SECONDS,
) -> pytest.MarkDecorator:
    """Parametrize a test with ``check``, once for each law of the profile.

    ``known_failures`` says why a law is broken, by its name. It is strict: such a check has to fail, and by a
    Violation, so that an entry goes when the manager is mended. ``seconds`` is how much is done, as
    :func:`check_manager` counts it.
    """
    import pytest

    known = known_failures or {}
    select(list(LAWS), known)
    laws = laws_of(profile)
    if outside := [law for law in known if law not in laws]:
        raise ValueError(f"{outside[0]} is not a law of the profile {profile!r}")
    examination = Examination(make_adapter, profile, sequential, seconds)
    return pytest.mark.parametrize(
        "check",
        [
            pytest.param(
                Check(law, examination),
                id=law,
                marks=[pytest.mark.xfail(reason=known[law], raises=Violation, strict=True)] if law in known else [],
            )
            for law in laws
        ],
    )


def _check(law: str, make_adapter: MakeAdapter, seconds: float = SECONDS) -> None:
    report = check_manager(make_adapter, seconds=seconds)
    answer = next(one.answer for one in report.judgements if one.law == law)
    if isinstance(answer, Broken):
        raise Violation(law, answer)


CHECKS: Final[Mapping[str, Callable[..., None]]] = MappingProxyType(
    {law: functools.partial(_check, law) for law in laws_of("first terminal wins")}
)
"""One check for each law: it takes ``make_adapter``, perhaps ``seconds``, and raises :class:`Violation`.

All share one examination.
"""
