"""Commands that lead from a storm on published code to its traces: they work as printed, and show what they promise."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvlatch.commands.main import cli
from kvlatch.reference.live.records import HELD, Rank
from kvlatch.reference.live.traces import traces
from kvlatch.reference.logs.write import LogWriter
from kvlatch.spec.status import KVPoll

OPS = ("create", "clear", "write", "conclude")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two engines: room 7 resurrects at prefill, 8 ends otherwise at decode, and 9 has a healthy life at both."""
    folder = tmp_path / "control 1"
    folder.mkdir()
    for node in ("prefill", "decode"):
        with LogWriter(folder / f"{node}-0.17.ndjson", OPS, node=node, rank=0) as log:
            for at, room in enumerate((7, 8, 9)):
                log.event("create", room, KVPoll.Bootstrapping, request=f"r{room}", time=at)
                fails = room == 8 and node == "decode"
                end = KVPoll.Failed if fails else KVPoll.Success
                if room == 7 and node == "prefill":
                    log.event("write", room, KVPoll.Failed, incoming=KVPoll.Failed, request="r7", time=at)
                    log.event("write", room, KVPoll.Transferring, incoming=KVPoll.Transferring, request="r7", time=at)
                for status in (KVPoll.WaitingForInput, KVPoll.Transferring, end)[(room == 7) * 2 :]:
                    log.event("write", room, status, incoming=status, request=f"r{room}", time=at)
                log.event("conclude", room, None, incoming=end, request=f"r{room}", time=at)
                log.event("clear", room, None, request=f"r{room}", time=at)
    return folder


def said(command: str) -> tuple[int, str]:
    """What a command that was printed says."""
    name, *arguments = shlex.split(command)
    assert name == "kvlatch"
    done = CliRunner().invoke(cli, arguments, env={"COLUMNS": "200"}, standalone_mode=False)
    return int(done.return_value), done.output


def test_every_command_leads_to_what_it_promises(folder: Path) -> None:
    """The check names all rooms; each show draws its room, in the log of the engine that the finding is about."""
    ranks = [Rank("prefill", {}, {}, {"failure_records": ("9",)}), Rank("decode", {}, {}, {HELD: ("8",)})]
    found = traces(folder, ranks)
    code, text = said(found.check)
    assert code == 1
    assert f"{folder}" in found.check
    laws = {room.law: room for room in found.shown}
    assert {"terminal-sticky", "one-outcome/both-ends", "leak in failure_records", "settlement/held"} <= set(laws)
    assert found.rooms == 2
    for law, nodes in {
        "terminal-sticky": ["prefill"],
        "one-outcome/both-ends": ["decode", "prefill"],
        "leak in failure_records": ["prefill"],
        "settlement/held": ["decode"],
    }.items():
        room = laws[law]
        assert [Path(shlex.split(show)[2]).name for show in room.show] == [f"{node}-0.17.ndjson" for node in nodes]
        for show in room.show:
            code, drawn = said(show)
            assert (code, f"room {room.room}" in drawn.lower()) == (0, True), drawn
        if not law.startswith(("leak", "settlement/held")):
            assert f"room {room.room}" in text
    assert "room 9" not in text


def test_a_run_without_a_fault_has_no_room_to_show(folder: Path) -> None:
    """Nothing stays, and the logs of what went well accuse nobody."""
    for log in folder.glob("*.ndjson"):
        head, *events = log.read_text("utf-8").splitlines()
        kept = [line for line in events if json.loads(line)["room"] == 9]
        log.write_text("\n".join([head, *kept, ""]), "utf-8")
    found = traces(folder, [Rank("prefill", {}, {}), Rank("decode", {}, {})])
    assert (found.rooms, found.shown) == (0, ())
    assert said(found.check)[0] == 0
