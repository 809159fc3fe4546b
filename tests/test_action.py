"""`action.yml`: held to the form of a composite action, and its steps run as plain shell in a foreign repository.

The steps that use other actions are looked at, not run; pip is heard, not obeyed, since the tests of the packages
install the wheel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

yaml = pytest.importorskip("yaml", reason="action.yml is read with PyYAML, of the extra `dev`")
ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
BASH = shutil.which("bash") or "bash"


# --- The form ---------------------------------------------------------------------------------------------------------


class Strict(BaseModel):
    """What has no other members than these."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Input(Strict):
    """An input: a default, or it is required."""

    description: str
    required: bool = False
    default: str | None = None


class Output(Strict):
    """An output of a composite action has a value."""

    description: str
    value: str


class Step(Strict):
    """A step runs a command in a shell that it names, or uses another action."""

    id: str | None = None
    name: str | None = None
    condition: str | None = Field(None, alias="if")
    uses: str | None = Field(None, pattern=r"^[\w-]+/[\w/-]+@v\d+$")
    with_: dict[str, str] | None = Field(None, alias="with")
    run: str | None = None
    shell: Literal["bash"] | None = None
    env: dict[str, str] | None = None
    directory: str | None = Field(None, alias="working-directory")

    def model_post_init(self, _: object) -> None:
        """Either ``uses``, or ``run`` with ``shell``."""
        if (self.uses is None) == (self.run is None) or (self.run is None) != (self.shell is None):
            raise ValueError("a step uses an action, or runs a command in a shell")


class Runs(Strict):
    """A composite action."""

    using: Literal["composite"]
    steps: list[Step] = Field(min_length=1)


class Branding(Strict):
    """How the marketplace shows it."""

    icon: str
    color: Literal["white", "black", "yellow", "blue", "green", "orange", "red", "purple", "gray-dark"]


class Action(Strict):
    """The whole file."""

    name: str
    description: str
    author: str
    branding: Branding
    inputs: dict[str, Input]
    outputs: dict[str, Output]
    runs: Runs


def test_it_is_a_composite_action() -> None:
    Action.model_validate(ACTION)


@pytest.mark.parametrize("change", ["shell", "using", "uses"])
def test_the_form_would_notice(change: str) -> None:
    wrong = json.loads(json.dumps(ACTION))
    steps = wrong["runs"]["steps"]
    if change == "shell":
        del next(step for step in steps if "run" in step)["shell"]
    elif change == "using":
        wrong["runs"]["using"] = "node20"
    else:
        steps[0]["uses"] = "actions/checkout"  # of no version
    with pytest.raises(ValidationError):
        Action.model_validate(wrong)


def test_every_expression_is_about_something() -> None:
    """An input or a step that is named exists; and no input stands in a script, where it would be run as code."""
    text = json.dumps(ACTION)
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    assert set(re.findall(r"steps\.(\w+)\.", text)) <= {step.get("id") for step in ACTION["runs"]["steps"]}
    assert not [step for step in ACTION["runs"]["steps"] if "${{" in step.get("run", "")]


# --- Its steps in a foreign repository --------------------------------------------------------------------------------

PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m pip" ]; then echo "$@" >> "$PIP_LOG"; exit 0; fi
exec {python} "$@"
"""
DESIGN = """
import attrs
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.merges import KEEP
from kvlatch.spec.status import KVPoll


def overwrites(current, incoming):
    return KEEP if current == KVPoll.Failed else incoming


DESIGN = attrs.evolve(DESIGNS["latch"], name="mine", merge=overwrites)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Somebody's repository: a manager whose abort handler raises, a design that overwrites Success, a log."""
    source = tmp_path / "repository" / "src"
    source.mkdir(parents=True)
    for name in ("manager.py", "test_manager.py"):
        shutil.copy(ROOT / "examples" / "python" / name, source)
    manager = (source / "manager.py").read_text()
    place = "        with self.lock:\n            if room in self.request_status"
    assert place in manager
    (source / "manager.py").write_text(manager.replace(place, "        raise KeyError(room)\n" + place))
    (source / "mine.py").write_text(DESIGN)
    shutil.copy(ROOT / "tests" / "logs" / "seed.ndjson", source / "a log.ndjson")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(PYTHON.format(python=sys.executable))
    (tmp_path / "bin" / "python").chmod(0o755)
    return source.parent


def act(repository: Path, **inputs: str) -> dict[str, Any]:
    """Run the steps that have a command up to one that fails, as a runner would: what they wrote, and the last code."""
    away = repository.parent
    given = {name: found.get("default", "") for name, found in ACTION["inputs"].items()}
    given |= {name.replace("_", "-"): value for name, value in inputs.items()}
    known = {f"inputs.{name}": value for name, value in given.items()}
    known |= {"github.action_path": str(ROOT), "runner.temp": str(away / "temp")}
    files = {name: str(away / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "PIP_LOG")}
    runner = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(repository), **files}
    path = {"PATH": f"{away / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: known[found[1]], text)

    code, said = -1, ""
    for step in [step for step in ACTION["runs"]["steps"] if "run" in step]:
        environment = os.environ | runner | path | {name: filled(value) for name, value in step["env"].items()}
        done = subprocess.run(
            [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=repository / filled(step["working-directory"]),
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        code, said = done.returncode, done.stdout + done.stderr
        if code:
            break
    folder = away / "temp" / given["name"]
    texts = {name: Path(file).read_text() if Path(file).exists() else "" for name, file in files.items()}
    found = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    return texts | {"code": code, "said": said, "folder": folder, "files": found}


def line_of(file: Path, words: str) -> int:
    return next(number for number, line in enumerate(file.read_text().splitlines(), 1) if words in line)


def test_conform(repository: Path) -> None:
    """The page, JUnit, SARIF and a trace are left; the annotation and the result are at the line that raises."""
    done = act(
        repository, command="conform", arguments="test_manager:Adapter --only no-crash", working_directory="src",
        requirements="needs.txt",
    )  # fmt: skip
    assert done["code"] == 1, done["said"]
    assert done["files"] >= {"kvlatch.html", "kvlatch.xml", "kvlatch.sarif", "traces/no-crash.itf.json"}
    line = line_of(repository / "src" / "manager.py", "raise KeyError")
    assert f"::error file=src/manager.py,line={line}," in done["said"]
    (run,) = json.loads((done["folder"] / "kvlatch.sarif").read_text())["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]) == ("src/manager.py", {"startLine": line})
    assert f"src/manager.py, line {line}" in (done["folder"] / "kvlatch.html").read_text()
    assert "no-crash" in done["GITHUB_STEP_SUMMARY"]
    assert done["GITHUB_OUTPUT"].splitlines() == [
        f"report={done['folder']}", f"sarif={done['folder'] / 'kvlatch.sarif'}"
    ]  # fmt: skip
    installed = done["PIP_LOG"].splitlines()
    assert [line.split()[-1] for line in installed] == [str(ROOT), "needs.txt"]


def test_prove(repository: Path) -> None:
    arguments = "--design mine:DESIGN --property success-not-overwritten --workers 1 --atomicity locked"
    done = act(repository, command="prove", arguments=arguments, working_directory="src", name="of mine")
    assert done["code"] == 1, done["said"]
    assert {"kvlatch.html", "kvlatch.xml"} < done["files"]
    assert [name for name in done["files"] if name.endswith(".itf.json")]
    line = line_of(repository / "src" / "mine.py", "def overwrites")
    assert f"::error file=src/mine.py,line={line}," in done["said"]
    assert "sarif" not in done["GITHUB_OUTPUT"]


def test_check(repository: Path) -> None:
    """An argument with a blank in quotes is one word, as in a shell; a right log is green, with its page."""
    done = act(repository, command="check", arguments="'a log.ndjson'", working_directory="src")
    assert done["code"] == 1, done["said"]
    assert done["files"] == {"kvlatch.html", "kvlatch.xml", "kvlatch.sarif"}
    right = act(repository, command="check", arguments="'a log.ndjson' --only no-ghost", working_directory="src")
    assert (right["code"], "::error" in right["said"]) == (0, False)


@pytest.mark.parametrize(
    "arguments", ["$(touch pwned) `touch pwned` ; touch pwned", "'a log.ndjson' --only no-such-law"]
)
def test_arguments_are_no_code(repository: Path, arguments: str) -> None:
    """What is written in a workflow is split into words, never run."""
    done = act(repository, command="check", arguments=arguments, working_directory="src")
    assert done["code"] == 2, done["said"]
    assert not list(repository.rglob("pwned"))


def test_any_other_command_is_refused(repository: Path) -> None:
    done = act(repository, command="storm", arguments="")
    assert (done["code"], "::error title=kvlatch::" in done["said"]) == (2, True)
