"""A manager in this process, played on real threads that are held where two of them touch the same thing.

Before the first play the manager's own modules are rewritten so that each access is seen (``instrument.py``), and a few
whole lives are played to learn where threads share something without a common lock (``sharing.py``). Each play makes a
fresh manager, whose locks, queues, threads and clock are the cast's (``primitives.py``, ``interleave.py``).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from kvlatch.reference.oracle import subject
from kvlatch.reference.oracle.adapter import MakeAdapter
from kvlatch.reference.oracle.budget import SECOND
from kvlatch.reference.oracle.instrument import Instrumented, publish
from kvlatch.reference.oracle.interleave import Cast
from kvlatch.reference.oracle.moves import (
    Script,
    Seen,
    Step,
)  # fmt: skip
from kvlatch.reference.oracle.places import ORACLE
from kvlatch.reference.oracle.primitives import Primitive, installed
from kvlatch.reference.oracle.rehearsals import LIVES
from kvlatch.reference.oracle.stage import House, Stage
from kvlatch.reference.oracle.turns import turns

_STEP: Final = 200
_TURN: Final = 125
_PROCESS: Final = 60_000
_ANEW: Final = 1_000
_HUNG: Final = 2
"""What counts as work (``budget.py``): a step with what the harness thinks of it, a turn of a thread, a process, an
import of modules anew for a play, a second of patience with what hangs, of which a little shows all there is.
"""


class InProcess:
    """A :class:`~.moves.Player` for adapters in this process.

    ``patience`` is for how many seconds a step may hang, as a :class:`~.interleave.Cast` counts them.
    With ``held`` False no thread is held inside a call: each is made as a whole, as far as it does not wait.
    """

    def __init__(self, make_adapter: MakeAdapter, patience: float = 3.0, *, held: bool = True) -> None:
        self._house = House(make_adapter, Cast(patience))
        self._house.sharing.fixed = not held
        self._instrumented = Instrumented()
        self._prepared = False
        self._session: _Session | None = None

    # --- Where threads are held ---

    @property
    def places(self) -> tuple[str, ...]:
        """Where threads are held: where two of them touch the same thing without a common lock."""
        self._prepare()
        return tuple(sorted(self._house.sharing.places))

    def learn(self) -> bool:
        """Hold threads also at the places that the last plays have shown; True if there are any, to begin again."""
        return self._house.sharing.learn()

    def hold(self, places: Sequence[str]) -> None:
        """Hold threads at these places too, and learn no more."""
        self._prepare()
        self._house.sharing.places |= set(places)
        self._house.sharing.fixed = True

    @property
    def unseen(self) -> tuple[str, ...]:
        """What the plays do not look into: files whose source does not fit, and types of objects that are opaque."""
        return (*sorted(self._instrumented.blind), *sorted(self._house.digest.opaque))

    @property
    def work(self) -> int:
        """How much it has done so far: steps, turns of threads, accesses, atoms of digests, and so on."""
        house, cast = self._house, self._house.cast
        counted = house.steps * _STEP + cast.turns * _TURN + house.sharing.touches + house.digest.atoms
        counted += 0 if house.anew is None else house.plays * _ANEW
        return counted + cast.asked + cast.started * _PROCESS + int(cast.hung * _HUNG * SECOND)

    # --- Playing ---

    def play(self, scripts: Sequence[Script]) -> list[Seen]:
        """What is seen after the last step of each script; AdapterFault if the adapter cannot be made or understood."""
        self._prepare()
        self._end_session()
        with self._on_stage():
            return [self._played(script) for script in scripts]

    def _played(self, script: Script) -> Seen:
        *before, last = turns(script)
        stage = Stage(self._house)
        try:
            stage.begin()
            for turn in before:
                stage.go(turn.step, turn.passes)
            return stage.step(last.step, keyed=True)
        finally:
            stage.close()

    def begin(self) -> _Session:
        """A play on a fresh manager, to be made step by step, until it is closed or another one begins."""
        self._prepare()
        self._end_session()
        self._session = _Session(self)
        return self._session

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def close(self) -> None:
        """End the threads, and give the manager's functions their own code back."""
        self._end_session()
        self._house.cast.close()
        self._instrumented.restore()

    @contextmanager
    def _on_stage(self) -> Iterator[None]:
        with ExitStack() as stack:
            if gc.isenabled():  # what is collected may run foreign code, at any point of a play
                gc.disable()
                stack.callback(gc.enable)
            stack.enter_context(installed())
            if self._house.anew is not None:
                stack.enter_context(self._house.anew.importing())
            Primitive.touch = self._house.sharing.touch
            publish(self._house.sharing.hooks())
            yield

    def _prepare(self) -> None:
        """Rewrite the manager's modules, find out whether they keep anything, and learn where threads are held."""
        if self._prepared:
            return
        self._prepared = True
        modules = subject.own_modules(self._house.make, self._parts())
        files = subject.labels(modules)
        self._instrumented.add(files)
        self._house.kept = subject.kept(modules)
        if subject.Anew.possible(self._house.make) and (subject.holds_real_things(modules) or self._keeps_something()):
            self._house.anew = subject.Anew(self._house.make, modules, files)
        for life in LIVES if not self._house.sharing.fixed else ():
            if not self._house.cast.hung:  # the next ones would hang as well, and each takes long
                self._rehearse(life)
        self._house.sharing.learn()

    def _parts(self) -> list[object]:
        with self._on_stage():
            stage = Stage(self._house)
            try:
                stage.begin()
                return stage.parts()
            finally:
                stage.close()

    def _rehearse(self, life: Script) -> None:
        with self._on_stage():
            stage = Stage(self._house)
            try:
                stage.begin()
                stage.rehearse(life)
            finally:
                stage.close()

    def _keeps_something(self) -> bool:
        """What the modules keep is not the same after a life as before."""
        before = self._house.digest.of(one.value() for one in self._house.kept)
        self._rehearse(LIVES[0])
        return before != self._house.digest.of(one.value() for one in self._house.kept)


class _Session:
    """A play in progress, whose stage is set for as long as it lasts."""

    def __init__(self, player: InProcess) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(player._on_stage())
        self._stage = Stage(player._house)
        self._stack.callback(self._stage.close)
        try:
            self._stage.begin()
        except BaseException:
            self._stack.close()
            raise

    def step(self, step: Step, *, whole: bool = False) -> Seen:
        """Make one step, and say what is seen after it; ``whole``: the call goes on to its end, held nowhere."""
        return self._stage.step(step, whole=whole)

    def warm_up(self) -> None:
        """Let another request come and go first."""
        self._stage.warm_up()

    def close(self) -> None:
        """End the play."""
        self._stack.close()


ORACLE.add(__file__)
