"""What an abort storm has shown, as one HTML file that stands alone.

Names and details may come from a foreign server (``pages.py``); the page's content security policy forbids scripts too.
"""

from __future__ import annotations

import json
from typing import Final

from kvlatch.commands import pages
from kvlatch.commands.storm import laws
from kvlatch.commands.storm.report import (
    ROOMS_SHOWN,
    UNKNOWN,
    cautions,
    chance,
    check_command,
    counted,
    doubts,
    groups,
    harmed,
    held,
    remarks,
    window,
)
from kvlatch.reference.live.records import Conclusion, Storm

_TONES: Final[dict[Conclusion, str]] = {
    "treatment fixes it": "good",
    "treatment helps": "open",
    "drains": "good",
    "treatment is worse": "bad",
    "pins": "bad",
    "leaves": "bad",
    "no difference": "open",
    "inconclusive": "open",
    "refused": "open",
}


def html(storm: Storm) -> str:
    """The report as one HTML file, to be written in UTF-8; it needs nothing else and asks for nothing."""
    from markupsafe import Markup

    from kvlatch.commands.storm.plot import NARROW, WIDE, svg

    builds = groups(storm)
    return pages.render(
        __package__ or "",
        "report.html",
        _finalize,
        storm=storm,
        tone=_TONES[storm.conclusion],
        chance=chance(storm.p),
        window=window(storm),
        cautions=cautions(storm),
        groups=builds,
        counts=counted(groups(storm)),
        harmed=harmed(groups(storm)),
        remarks=remarks,
        plots={
            name: Markup(svg({group.label: group.runs for group in builds}, size))  # noqa: S704  # it escapes names
            for name, size in {"wide": WIDE, "narrow": NARROW}.items()
        },
        laws=laws.reports(storm),
        held=held(storm),
        doubts=doubts(storm),
        shown=ROOMS_SHOWN,
        check=check_command,
        any_broken=any(run.traces is not None and run.traces.shown for run in storm.runs),
        any_pinned=any(run.counts.pinned or run.pinned for run in storm.runs),
        any_fault=any(run.faults or run.left_behind for run in storm.runs),
        settings={
            name: value if isinstance(value, str) else json.dumps(value) for name, value in storm.settings.items()
        },
    )


def _finalize(value: object) -> object:
    """How the template shows what it is given."""
    return UNKNOWN if value is None else pages.shown(value)
