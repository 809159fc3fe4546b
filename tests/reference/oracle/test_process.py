"""Programs as managers: what they are told, what their answers mean, and how it is said that they do not play along."""

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.oracle.explore import replay
from kvlatch.reference.oracle.moves import Call, Script, Seen, Step
from kvlatch.reference.oracle.process import Process
from kvlatch.spec.status import KVPoll

READY = '{"fresh":true}'
CREATE = Step("scheduler", Call("create", 1))
POLL = Step("scheduler", Call("poll", 1))
START = Step("worker 0", Call("start", 1, 0, last=True))

Started = Callable[..., Process]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Starts Python programs, given their source, and ends them after the test."""
    running: list[Process] = []

    def start(source: str, patience: float = 10.0) -> Process:
        program = tmp_path / f"program{len(running)}.py"
        program.write_text("import sys, json\n" + textwrap.dedent(source), encoding="utf-8")
        running.append(Process([sys.executable, "-I", str(program)], patience))
        return running[-1]

    yield start
    for process in running:
        process.close()


def answering(answer: str) -> str:
    """A program that answers every call alike."""
    return f"""
        for line in sys.stdin:
            print({READY!r} if "fresh" in line else {answer!r}, flush=True)
    """


def test_a_program_is_told_what_the_protocol_says(started: Started, tmp_path: Path) -> None:
    """Each event comes as the documented line, byte by byte."""
    heard = tmp_path / "heard"
    process = started(f"""
        with open({str(heard)!r}, "w", buffering=1) as heard:
            for line in sys.stdin:
                heard.write(line)
                event = json.loads(line)["event"]
                answer = {{"start": True, "poll": "Failed"}}.get(event)
                print({READY!r} if event == "fresh" else json.dumps({{"status": None, "answer": answer}}), flush=True)
    """)
    worker, bootstrap = "worker 1", "bootstrap"
    process.play(
        [
            (
                CREATE,
                Step(bootstrap, Call("metadata", 1)),
                Step(bootstrap, Call("metadata", 1)),
                Step(bootstrap, Call("abort_notice", 2)),
                Step(bootstrap, Call("abort_notice", 1)),
                Step("scheduler", Call("abort", 1)),
                Step(worker, Call("start", 2, 1, last=False)),
                Step(worker, Call("finish", 2, 1, last=False)),
                Step(worker, Call("break", 1, 0, last=True)),
                POLL,
                Step("scheduler", Call("clear", 1)),
            )
        ]
    )
    assert heard.read_text(encoding="utf-8").splitlines() == [
        '{"event":"fresh"}',
        '{"event":"create","room":7,"request":1}',
        '{"event":"metadata","room":7,"request":1}',
        '{"event":"metadata","room":7,"request":1}',
        '{"event":"abort_notice","room":7,"request":2}',
        '{"event":"abort_notice","room":7,"request":1}',
        '{"event":"abort","room":7,"request":1}',
        '{"event":"start","room":7,"request":2,"chunk":1,"last":false}',
        '{"event":"finish","room":7,"request":2,"chunk":1,"last":false,"ok":true}',
        '{"event":"finish","room":7,"request":1,"chunk":0,"last":true,"ok":false}',
        '{"event":"poll","room":7,"request":1}',
        '{"event":"clear","room":7,"request":1}',
        '{"event":"fresh"}',
    ]


@pytest.mark.parametrize(
    ("step", "answer", "seen"),
    [
        (CREATE, '{"status":null}', Seen(None)),
        (CREATE, '{"status": "Failed", "answer": null, "released": [], "told": []}', Seen(KVPoll.Failed)),
        (POLL, '{"status":"Success","answer":"Transferring"}', Seen(KVPoll.Success, answer=KVPoll.Transferring)),
        (POLL, '{"status":null,"answer":null}', Seen(None)),
        (START, '{"status":"Transferring","answer":true}', Seen(KVPoll.Transferring, answer=True)),
        (START, '{"status":"Failed","answer":false}', Seen(KVPoll.Failed, answer=False)),
        (
            CREATE,
            '{"status":null,"released":[1,2],"told":[[1,"Failed"],[2,"Success"]]}',
            Seen(None, released=(1, 2), told=((1, KVPoll.Failed), (2, KVPoll.Success))),
        ),
    ],
)
def test_an_answer_says_what_is_seen(started: Started, step: Step, answer: str, seen: Seen) -> None:
    """Each member of an answer arrives as it is meant, and what is left out is nothing."""
    assert started(answering(answer)).play([(step,)]) == [seen]


@pytest.mark.parametrize(
    ("step", "answer", "why"),
    [
        (CREATE, "Segmentation fault", "'Segmentation fault': not JSON"),
        (CREATE, "", "'': not JSON"),
        (CREATE, "[" * 50_000, r"'\[{80}\.\.\.': not JSON"),
        (CREATE, '["Failed"]', "not a JSON object"),
        (CREATE, "{}", "the status is missing"),
        (CREATE, '{"status":"Aborted"}', '\'{"status":"Aborted"}\': the status is none of Failed, Boot'),
        (CREATE, '{"status":0}', "the status is none of"),
        (CREATE, '{"status":null,"relased":[1]}', "'relased' is no member of an answer"),
        (CREATE, '{"status":null,"answer":true}', "create has no answer"),
        (POLL, '{"status":"Failed"}', "the answer is missing"),
        (POLL, '{"status":"Failed","answer":"failed"}', "the answer is none of"),
        (START, '{"status":"Failed"}', "the answer is missing"),
        (START, '{"status":"Failed","answer":1}', "the answer to start is true or false"),
        (CREATE, '{"status":null,"released":1}', "'released' is not a list"),
        (CREATE, '{"status":null,"released":[0]}', "'released' speaks of a request that is not a number from 1"),
        (CREATE, '{"status":null,"released":[true]}', "'released' speaks of a request that is not a number from 1"),
        (CREATE, '{"status":null,"told":[1,"Failed"]}', "'told' has something else than pairs"),
        (CREATE, '{"status":null,"told":[[1,"Transferring"]]}', "decode is told Failed or Success"),
        (CREATE, '{"status":null,"told":[[1,null]]}', "decode is told Failed or Success"),
        (CREATE, '{"status":null}\n{"status":null}', "told .*fresh.*, answers '{\"status\":null}'"),
    ],
)
def test_what_is_no_answer_is_the_programs_fault(started: Started, step: Step, answer: str, why: str) -> None:
    """The fault names the program and the call, and shows in one line what came and what is wrong with it."""
    with pytest.raises(AdapterFault, match=why) as caught:
        started(answering(answer)).play([(step,)])
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000  # the answer is cut short, the path of the program is not


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", 'told {"event":"fresh"}, has ended with exit status 0$'),
        ("sys.exit('no room\\nfor this')", "has ended with exit status 1: 'for this'$"),
        ("sys.stdin.readline(); print('ready', flush=True)", "answers 'ready': not JSON$"),
        ("print('{}', flush=True); sys.stdin.read()", 'answers .{}., and that call is answered {"fresh": true}$'),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL$"),
        ("import os; os.close(1); sys.stdin.read()", "has closed its output$"),
        ("print('x' * 100_000, end='', flush=True); sys.stdin.read()", "a line that does not end$"),
    ],
)
def test_how_a_program_ended_is_said(started: Started, source: str, why: str) -> None:
    """A program that dies, or never speaks the protocol, is named with its last words."""
    with pytest.raises(AdapterFault, match=why.replace("{", r"\{")):
        started(source).play([(CREATE,)])


@pytest.mark.parametrize("source", ["sys.stdin.read()", "while True: pass"])
def test_silence_before_the_first_play_is_a_fault(started: Started, source: str) -> None:
    """A program that does not even answer ``fresh`` in time cannot be judged."""
    process = started(source, patience=0.2)
    for _ in range(2):
        with pytest.raises(AdapterFault, match=r'told {"event":"fresh"}, has been silent for 0\.2 s'):
            process.play([(CREATE,)] * 10_000)


METADATA = Step("bootstrap", Call("metadata", 1))


@pytest.mark.parametrize(
    ("does", "law", "says"),
    [
        ("sys.exit('enough')", "no-crash", "has ended with exit status 1: 'enough'"),
        ("while True: pass", "no-deadlock", "has been silent for 0.5 s"),
    ],
)
def test_a_call_that_ends_or_silences_the_program_breaks_a_law(
    started: Started, does: str, law: str, says: str
) -> None:
    """It is said of the call that was not answered, though more had been written by then; the next play begins anew."""
    process = started(
        f"""
        for line in sys.stdin:
            if "metadata" in line:
                {does}
            print('{{"fresh":true}}' if "fresh" in line else '{{"status":"Bootstrapping"}}', flush=True)
        """,
        patience=0.5,
    )
    create, dies, after = process.play([(CREATE,), (CREATE, METADATA), (CREATE,)])
    assert create == after == Seen(KVPoll.Bootstrapping)
    said = dies.faults[0].what if dies.faults else dies.held or ""
    assert said.startswith('the program, told {"event":"metadata"' if dies.hung else 'told {"event":"metadata"')
    assert says in said
    play = replay(process, "orderly-1-1-1 create metadata")
    assert play.broken() == [law]


def test_pages_that_never_go_back_are_seen_without_a_line_that_is_not_in_the_protocol(started: Started) -> None:
    """A tick is no call of a program: nothing is said, and what is due by then never comes."""
    answers = {"poll": "Failed", "create": "Bootstrapping", "metadata": "WaitingForInput", "abort": "Failed"}
    process = started(f"""
        answers = {answers!r}
        for line in sys.stdin:
            event = json.loads(line)["event"]
            status = {{"status": answers.get(event)}}
            if event == "poll":
                polls += 1
                status = {{"status": None, "answer": "WaitingForInput" if polls == 1 else "Failed"}}
            if event == "start":
                status["answer"] = False
            if event == "fresh":
                polls, status = 0, {{"fresh": True}}
            print(json.dumps(status), flush=True)
    """)
    play = replay(process, "orderly-1-1-1 create metadata poll send start/0 abort poll clear tick")
    assert play.broken() == ["settlement"]
    session = process.begin()
    assert session.step(CREATE).status == session.step(Step("scheduler", Call("tick", 1))).status


def test_what_a_program_has_started_ends_with_it(started: Started, tmp_path: Path) -> None:
    """Also where the program itself has ended before: its group is ended, so the pipe that is held is closed."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = started(f"""
        import subprocess
        subprocess.Popen(["sh", "-c", "exec 9>{fifo}; exec sleep 600"], stdout=subprocess.DEVNULL)
        sys.stdin.readline()
        print('{{"fresh":true}}', flush=True)
        sys.stdin.readline()
    """)
    with fifo.open("rb") as left:
        process.play([(CREATE,)])
        process.close()
        assert left.read() == b""  # would not return while somebody has the other end


@pytest.mark.parametrize(("name", "why"), [("nowhere", "No such file"), ("text", "Permission denied")])
def test_what_cannot_be_started_is_named(tmp_path: Path, name: str, why: str) -> None:
    """A program that is not there, or is none, is named with the system's reason."""
    (tmp_path / "text").write_text("not a program", encoding="utf-8")
    with pytest.raises(AdapterFault, match=f"cannot start .*{name}: {why}"):
        Process([str(tmp_path / name)])


def test_thousands_of_plays_at_once_fill_no_pipe(started: Started) -> None:
    """A batch that is far larger than any pipe is played, each script's last answer in its place."""
    process = started("""
        for line in sys.stdin:
            call = json.loads(line)
            if call["event"] == "fresh":
                count, answer = 0, {"fresh": True}
            else:
                count += 1
                answer = {"status": ["Failed", "Bootstrapping", "WaitingForInput"][count % 3]}
            print(json.dumps(answer), " " * 200, flush=True)
    """)
    scripts: list[Script] = [(CREATE,) * (1 + number % 3) for number in range(5_000)]
    sights = process.play(scripts)
    assert [seen.status for seen in sights] == [KVPoll((1 + number % 3) % 3) for number in range(5_000)]


def test_a_script_that_lets_a_thread_go_on_is_refused(started: Started) -> None:
    """No thread of a program can be held, and so none can go on."""
    with pytest.raises(ValueError, match="worker 0 is not held anywhere"):
        started(answering("{}")).play([(CREATE, Step("worker 0"))])


def test_a_program_can_be_driven_by_hand(started: Started) -> None:
    """A play's text is played on a program as on any manager, up to what its answers make possible."""
    process = started(answering(json.dumps({"status": "Bootstrapping", "answer": "Bootstrapping"}).replace(" ", "")))
    with pytest.raises(AdapterFault, match="create has no answer"):
        replay(process, "orderly-1-1-1 create poll")
