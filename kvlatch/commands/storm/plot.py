"""An abort storm over time: as an SVG for the report, and in block characters for a terminal.

Both take builds as a mapping from what a build is called to its runs. Names must be printable.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from kvlatch.reference.live.records import Outcome, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Builds = Mapping[str, Sequence[Run]]
Dashes = Literal["-"] | tuple[float, Sequence[float]]
_COLOURS: Final = ("ink", "muted", *(f"build-{number}" for number in range(6)))
"""The page's CSS variables that the plot uses, so that it is dark when the page is."""
_DASHES: Final[tuple[Dashes, ...]] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
WIDE: Final = (9.0, 6.4)
NARROW: Final = (5.0, 6.4)
"""For a page of less than 720 CSS pixels."""
_BINS: Final = 60
_LONGEST_LABEL: Final = 60
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_MOST_ROWS: Final = 12


def _drain_ends(run: Run) -> float | None:
    """When the drain's deadline is, on the clock of the run; None if it never drained."""
    return next((phase.start + run.deadline for phase in run.phases if phase.name == "drain"), None)


def _last(runs: Sequence[Run]) -> float:
    """The end of the time axis, which all runs share: that of the last run, or the first deadline if that is later."""
    ends = [phase.end for run in runs for phase in run.phases]
    ends += [time for run in runs for time, _ in run.gauge[-1:]]
    return max(*ends, min(_deadlines(runs), default=0), 1)


def _phases(runs: Sequence[Run]) -> dict[str, float]:
    """When each phase begins: its median over the runs, which differ by the time that a request takes to end."""
    starts: dict[str, list[float]] = {}
    for run in runs:
        for phase in run.phases:
            starts.setdefault(phase.name, []).append(phase.start)
    return {name: float(np.median(times)) for name, times in starts.items()}


def _deadlines(runs: Sequence[Run], until: float = math.inf) -> list[float]:
    """The deadlines of all drains that began, as far as the time axis shows them."""
    return [at for run in runs if (at := _drain_ends(run)) is not None and at <= until]


def _ends(runs: Sequence[Run]) -> str:
    """The gauge at the end of each run, in words."""
    return ", ".join(f"{run.gauge[-1][1]:g}" for run in runs if run.gauge) or "not known"


def _all(builds: Builds) -> list[Run]:
    return [run for runs in builds.values() for run in runs]


# --------------------------------------------------------------------------------------------------------------------
# SVG


def svg(builds: Builds, size: tuple[float, float] = WIDE) -> str:
    """An ``<svg>`` element: the gauge of every run, and aborts and completions per second, on one time axis.

    ``size`` is in inches of 72 CSS pixels. Its text is text, its colours are CSS variables, and the same runs always
    give the same bytes.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    output = io.StringIO()
    with style.context(["default", _rc(size)]), warnings.catch_warnings():
        # The fonts here need not have every character of a name: a browser chooses its own.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = Figure(size, layout="constrained", facecolor="none")
        _draw(figure, builds)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(output, format="svg", metadata=nothing)
    text = output.getvalue()
    text = re.sub(r"((?:fill|stroke): )#0000([0-9a-f]{2})", _variable, text[text.index("<svg ") :])
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # two plots on one page have no id in common
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(describe(builds))}" ', 1)


def describe(builds: Builds) -> str:
    """What the plot shows, for those who cannot see it."""
    sentences = ["Requests in the prefill inflight queue over time."]
    for name, runs in builds.items():
        most = max((value for run in runs for _, value in run.gauge), default=0)
        sentences.append(f"{name}: at most {most:g}, in the end {_ends(runs)}.")
    return " ".join(sentences)


def _colour(name: str) -> str:
    """A colour that stands for a CSS variable until the SVG is written."""
    return f"#0000{_COLOURS.index(name) + 1:02x}"


def _variable(match: re.Match[str]) -> str:
    return f"{match[1]}var(--{_COLOURS[int(match[2], 16) - 1]})"


def _rc(size: tuple[float, float]) -> dict[str, object]:
    ink, muted = _colour("ink"), _colour("muted")
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": f"kvlatch {size}",
        "text.parse_math": False,
        "font.size": 9,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": muted,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "legend.frameon": False,
    }


def _draw(figure: Figure, builds: Builds) -> None:
    from matplotlib.lines import Line2D

    gauge, aborts, completions = figure.subplots(3, sharex=True, height_ratios=(3, 1, 1))
    runs = _all(builds)
    end = _last(runs)
    handles = []
    for number, (name, several) in enumerate(builds.items()):
        colour = _colour(f"build-{number % 6}")
        dashes = _DASHES[number % len(_DASHES)]
        _draw_gauges(gauge, several, colour, dashes)
        for deadline in _deadlines(several, end):
            gauge.plot(deadline, 0.98, "v", color=colour, markersize=6, transform=gauge.get_xaxis_transform())
        _draw_rate(aborts, several, "aborted", end, colour, dashes)
        _draw_rate(completions, several, "completed", end, colour, dashes)
        label = f"{name[:_LONGEST_LABEL]} ({len(several)} repetition{'s' if len(several) > 1 else ''})"
        handles.append(Line2D([], [], color=colour, linestyle=dashes, label=label))
    for axes in (gauge, aborts, completions):
        _shade_storms(axes, runs)
        axes.set_xlim(0, end * 1.01)
        axes.set_ylim(bottom=0)
        axes.locator_params("y", integer=True, nbins=5)
    _name_phases(gauge, runs, end)
    gauge.set_ylabel("requests in the\nprefill inflight queue")
    aborts.set_ylabel("aborts / s")
    completions.set_ylabel("completions / s")
    completions.set_xlabel("seconds since the start of the run")
    ink = _colour("ink")
    for marker, label in (("o", "drained to 0"), ("X", "not drained"), ("v", "deadline of the drain")):
        handles.append(Line2D([], [], color=ink, marker=marker, linestyle="none", markersize=5, label=label))
    wide = figure.get_figwidth() >= WIDE[0]
    figure.legend(handles, [str(h.get_label()) for h in handles], loc="outside upper left", ncols=3 if wide else 1)


def _draw_gauges(axes: Axes, runs: Sequence[Run], colour: str, dashes: Dashes) -> None:
    for run in runs:
        if not run.gauge:
            continue
        times, values = np.array(run.gauge, float).T
        axes.step(times, values, where="post", color=colour, linestyle=dashes, linewidth=1.3, alpha=0.85)
        if run.drained is not None:
            axes.plot(run.drained, 0, "o", color=colour, markersize=5, clip_on=False, zorder=3)
        elif _drain_ends(run) is not None:
            axes.plot(times[-1], values[-1], "X", color=colour, markersize=6, clip_on=False, zorder=3)


def _draw_rate(axes: Axes, runs: Sequence[Run], outcome: Outcome, end: float, colour: str, dashes: Dashes) -> None:
    """How many requests had this outcome, per second and repetition."""
    times = [request.end for run in runs for request in run.requests if request.outcome == outcome]
    counts, edges = np.histogram(times, bins=_BINS, range=(0, end))
    rates = counts / (end / _BINS) / max(1, len(runs))
    axes.stairs(rates, edges, color=colour, linestyle=dashes, linewidth=1.3)


def _shade_storms(axes: Axes, runs: Sequence[Run]) -> None:
    """Shade the time of every storm: the shade is the deeper the more runs are in theirs."""
    storms = [phase for run in runs for phase in run.phases if phase.name == "storm"]
    for storm in storms:
        alpha = 0.2 / len(storms)
        axes.axvspan(storm.start, storm.end, color=_colour("muted"), alpha=alpha, linewidth=0, zorder=0)


def _name_phases(axes: Axes, runs: Sequence[Run], end: float) -> None:
    """Names above the axes, so placed that a short baseline or drain leaves them apart."""
    above, starts = axes.get_xaxis_transform(), _phases(runs)
    for name, start in starts.items():
        if name == "storm":
            axes.text((start + starts.get("drain", end)) / 2, 1.01, name, transform=above, ha="center", va="bottom")
        else:
            axes.text(start, 1.01, name, transform=above, ha="left", va="bottom")


# --------------------------------------------------------------------------------------------------------------------
# Block characters


def blocks(builds: Builds, width: int) -> Iterator[str]:
    """The gauge in lines of ``width`` columns: twelve, but at least two for each build, and two for the time axis.

    A column shows the greatest value in its time over all repetitions, rounded up: one request left behind is seen.
    """
    runs = _all(builds)
    end = _last(runs)
    top = max((value for run in runs for _, value in run.gauge), default=0) or 1
    columns = max(30, width - 8)
    rows = max(1, min(4, _MOST_ROWS // max(1, len(builds)) - 1))
    for name, several in builds.items():
        tail = f"; in the end {_ends(several)}"
        yield f"{name[: max(20, width - len(tail))]}{tail}"
        heights = [math.ceil(value / top * rows * 8) for value in _greatest(several, end, columns)]
        for row in reversed(range(rows)):
            label = f"{top:g}" if row == rows - 1 else ""
            cells = "".join(_BLOCKS[min(8, max(0, height - row * 8))] for height in heights)
            yield f"{label:>6} {cells}".rstrip()
    yield _axis(runs, end, columns)
    legend = "┤ deadline of a drain" if _deadlines(runs) else ""
    yield f"{'0 s':>7}{legend:^{columns - 10}}{f'{end:.1f} s':>10}"


def _greatest(runs: Sequence[Run], end: float, columns: int) -> list[float]:
    """The greatest value of the gauge in each column, which also has what it was when the column begins."""
    found = np.zeros(columns)
    for run in runs:
        if run.gauge:
            times, values = np.array(run.gauge, float).T
            places = np.clip((times / end * columns).astype(int), 0, columns - 1)
            np.maximum.at(found, places, values)
            starts = np.arange(places[0] + 1, places[-1] + 1)
            before = np.searchsorted(times, starts * end / columns, side="right") - 1
            found[starts] = np.maximum(found[starts], values[before])
    return [float(value) for value in found]


def _axis(runs: Sequence[Run], end: float, columns: int) -> str:
    """The time axis with the phases and the deadlines, each where it begins; a phase is named if there is room."""
    axis = ["─"] * columns
    places = {name: min(columns - 1, int(start / end * columns)) for name, start in _phases(runs).items()}
    for (name, at), following in zip(places.items(), [*places.values(), columns][1:], strict=True):
        mark = f"├{name}" if len(name) < following - at else "├"
        axis[at : at + len(mark)] = mark
    for deadline in _deadlines(runs, end):
        axis[min(columns - 1, int(deadline / end * columns))] = "┤"
    return " " * 7 + "".join(axis)
