"""Wheel and source distribution are complete, and the source keeps the rules that no linter knows."""

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Container, Iterator
from fnmatch import filter as matching
from graphlib import TopologicalSorter
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvlatch.reference.oracle.checks import laws_of
from tests.conftest import LONGEST

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("spec", "reference", "proofs")
"""What `kvlatch/` has links to; the rest of it is its own."""

FOLDERS = ("bench", "docs", "examples", "tests")
"""What a source distribution holds beside the packages."""
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION: str = PROJECT["version"]

# Runs inside the fresh environment: imports the modules named in argv, prints where each lies.
IMPORT_ALL = """
import importlib, json, sys
print(json.dumps({name: importlib.import_module(name).__file__ for name in sys.argv[1:]}))
"""


def package_files() -> list[Path]:
    """Every file of the package, as it is installed: ``kvlatch/spec/merges.py``, ``kvlatch/__init__.py``."""
    found = [Path("kvlatch", path) for package in PACKAGES for path in files_in(ROOT / package, ROOT)]
    return sorted(found + [path for path in files_in(ROOT / "kvlatch", ROOT) if path.parts[1] not in PACKAGES])


def files_in(folder: Path, root: Path) -> list[Path]:
    """Every file below a folder, relative to ``root``; a link is not followed."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [path.relative_to(root) for path in found]


def sources(*folders: str) -> list[str]:
    """The Python files of some folders, as ``spec/merges.py``."""
    found = (path for folder in folders for path in files_in(ROOT / folder, ROOT) if path.suffix == ".py")
    return sorted(path.as_posix() for path in found)


def module_name(path: Path) -> str:
    """``kvlatch/spec/merges.py`` -> ``kvlatch.spec.merges``."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def run(folder: Path, *command: str | Path) -> str:
    """The output of a command that must succeed, run outside the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


OUTPUTS = shutil.ignore_patterns("__pycache__", ".git", ".venv", ".*_cache", ".thorough", "build", "dist", "*.egg-info")
"""What a checkout may hold and no distribution does."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source distribution and the wheel that is built from it, so that each has what the other needs.

    They are built from a copy: the checkout stays clean, and old outputs stay out.
    """
    source = tmp_path_factory.mktemp("source") / "copy"
    shutil.copytree(ROOT, source, ignore=OUTPUTS, symlinks=True)
    run(source, sys.executable, "-m", "build", "--no-isolation")
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def unpacked(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    (archive,) = built.glob("*.tar.gz")
    home = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as opened:
        opened.extractall(home, filter="data")
    (folder,) = home.iterdir()
    return folder


def pip(home: Path, *arguments: str | Path) -> str:
    """Run this environment's pip for another one."""
    return run(home, sys.executable, "-m", "pip", "--python", home / "bin" / "python", *arguments)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; its dependencies are those of the environment under test."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False)
    pip(home, "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    # A .pth file adds a folder without running the .pth files in it, so that an editable install
    # of kvlatch over there stays out of sight.
    (site_packages,) = home.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(f"{Path(attrs.__file__).parents[1]}\n")
    return home


def test_wheel_holds_every_file(wheel: Path) -> None:
    """A nested package or a kind of data file that pyproject.toml forgot would be missing."""
    expected = {path.as_posix() for path in package_files()}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "reference/published/*/wheels.txt",
        "reference/published/sglang/verdicts.txt",
        "reference/arrays/*.cu",
        "proofs/traces/*.json",
        "proofs/*verdicts*",
        "commands/storm/*.html",
    ],
)
def test_wheel_holds_data(wheel: Path, pattern: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert matching(archive.namelist(), f"kvlatch/{pattern}")


def test_every_module_imports_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """Also those of the live system, if what they import is installed."""
    modules = [module_name(path) for path in package_files() if path.suffix == ".py" and path.stem != "__main__"]
    if importlib.util.find_spec("sglang_router") is None:
        modules = [name for name in modules if not lies_in(name, "kvlatch.reference.live")]
    overlays = "kvlatch.reference.published.sglang.overlays."  # loaded beside an sglang wheel, and nowhere else
    modules = [name for name in modules if not name.startswith(overlays)]
    assert {f"kvlatch.{package}" for package in PACKAGES} <= set(modules)
    output = run(tmp_path, installed / "bin" / "python", "-I", "-c", IMPORT_ALL, *modules)
    files: dict[str, str] = json.loads(output)
    assert sorted(files) == sorted(modules)
    assert all(Path(file).is_relative_to(installed) for file in files.values())


def test_command_line_starts_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert "prove" in run(tmp_path, installed / "bin" / "kvlatch", "--help")


FACE = "from kvlatch import KVPoll, check_manager, conforms, DESIGNS, __version__; print(__version__)"


@pytest.mark.network
@pytest.mark.parametrize(
    "version",
    [pytest.param("3.11", marks=pytest.mark.thorough), pytest.param("3.12", marks=pytest.mark.thorough), "3.13"],
)
def test_the_face_imports_on_every_python(version: str, wheel: Path, tmp_path: Path) -> None:
    """What most users need, on every Python that is supported; the oracle takes neither a solver nor NumPy."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    light = [name for name in PROJECT["dependencies"] if not name.startswith(("cvc5", "numpy", "z3-solver"))]
    home = tmp_path / "clean"
    run(tmp_path, python, "-m", "venv", "--without-pip", home)
    pip(home, "install", "--no-deps", "--no-index", wheel)
    try:
        pip(home, "install", "--constraint", ROOT / "constraints.txt", *light)
    except AssertionError as error:
        pytest.skip(f"its dependencies cannot be fetched: {str(error).splitlines()[-1]}")
    assert run(tmp_path, home / "bin" / "python", "-I", "-c", FACE) == f"{VERSION}\n"


def interpreter(version: str) -> Path | None:
    """A Python of this version: the one that runs, one on the path, or one that pyenv has."""
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for found in (sys.executable, shutil.which(f"python{version}"), *pyenv):
        if found is not None and version in answer_of(found, "import sys; print('%d.%d' % sys.version_info[:2])"):
            return Path(found)
    return None


def answer_of(python: str | Path, question: str) -> str:
    """What an interpreter prints; nothing if it does not start."""
    done = subprocess.run([python, "-I", "-c", question], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


# --- The source distribution ------------------------------------------------------------------------------------------


def test_the_source_distribution_holds_every_file(unpacked: Path) -> None:
    """All that is in the checkout, but for the three links and what git itself uses."""
    expected = {path.as_posix() for folder in (*PACKAGES, *FOLDERS) for path in files_in(ROOT / folder, ROOT)}
    expected |= {path.name for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")}
    expected |= {path.as_posix() for path in files_in(ROOT / "kvlatch", ROOT) if path.parts[1] not in PACKAGES}
    expected |= {".ci/run", ".ci/thorough", ".gitignore"}
    held = {path.as_posix() for path in files_in(unpacked, unpacked)}
    made = {name for name in held if name.partition("/")[0] in {"PKG-INFO", "setup.cfg", "kvlatch.egg-info"}}
    assert held - made == expected


def test_its_tests_run(unpacked: Path) -> None:
    """A cheap sample of them, from the folder that it unpacks to: among them that no link of a page is dead."""
    run(unpacked, "make", "links")
    tests = ("tests/spec/test_merges.py", "tests/test_docs.py", "-k", "merges or links or paths or make")
    done = run(unpacked, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert re.search(r"\b\d{2,} passed", done)
    assert "failed" not in done
    place = run(unpacked, sys.executable, "-c", "import kvlatch.spec as it; print(it.__file__)")
    assert Path(place.strip()).is_relative_to(unpacked)


def test_the_page_of_the_package(wheel: Path) -> None:
    """What a package index shows has no link into a checkout that its reader does not have."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        _, _, page = archive.read(name).decode().partition("\n\n")
    assert page.startswith("# kvlatch\n")
    assert [link for link in re.findall(r"\]\(([^)]*)\)", page) if not link.startswith("https://")] == []


def test_versions_agree() -> None:
    """Package, citation and changelog speak of one version."""
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[(Unreleased|" + re.escape(VERSION) + r")\]", changes, re.MULTILINE)


FAULTS = {
    "success-complete": "LastChunkConcludes",
    "settlement": "KeepsPages",
    "released-once": "ReleasesTwice",
    "one-outcome": "TellsItsOwn",
}
"""Four laws, and for each a manager of tests/reference/oracle/managers.py that breaks it."""

WRONG = """
import managers
from kvlatch import conforms
"""


def test_foreign_project(installed: Path, tmp_path: Path) -> None:
    """Another project uses the oracle from the wheel: a right manager passes every check, a wrong one fails its own."""
    for path in (ROOT / "examples" / "python").glob("*.py"):
        shutil.copy(path, tmp_path)
    shutil.copy(ROOT / "tests" / "reference" / "oracle" / "managers.py", tmp_path)
    tests = (f"@conforms(managers.{fault})\ndef test_{fault}(check):\n    check()\n" for fault in FAULTS.values())
    (tmp_path / "test_wrong.py").write_text(WRONG + "\n".join(tests))
    python = installed / "bin" / "python"
    right = run(tmp_path, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_manager.py")
    (passed, skipped) = (sum(map(int, re.findall(rf"(\d+) {word}", right))) for word in ("passed", "skipped"))
    assert passed + skipped == len(laws_of("first terminal wins"))
    assert skipped <= 1  # under one lock there may be nothing that could deadlock
    wanted = [f"test_wrong.py::test_{fault}[{law}]" for law, fault in FAULTS.items()]
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *wanted]
    wrong = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert wrong.returncode == 1
    for law, fault in FAULTS.items():
        assert f"FAILED test_wrong.py::test_{fault}[{law}]" in wrong.stdout
        assert f"kvlatch conform managers:{fault} --play '" in wrong.stdout


def imports(path: str) -> Iterator[str]:
    """What a file imports, in full names: ``from kvlatch import spec`` is ``kvlatch.spec``."""
    for node in ast.walk(ast.parse((ROOT / path).read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def lies_in(name: str, *modules: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


@pytest.mark.parametrize("path", sources("spec"))
def test_spec_imports_attrs_alone(path: str) -> None:
    allowed = (*sys.stdlib_module_names, "attrs", "kvlatch.spec")
    assert [name for name in imports(path) if not lies_in(name, *allowed)] == []


@pytest.mark.parametrize("path", sources(*PACKAGES))
def test_imports_run_one_way(path: str) -> None:
    """``spec <- reference <- proofs <- kvlatch.commands``."""
    layers = [f"kvlatch.{package}" for package in (*PACKAGES, "commands")]
    above = layers[layers.index(f"kvlatch.{Path(path).parts[0]}") + 1 :]
    assert [name for name in imports(path) if lies_in(name, *above)] == []


def test_the_folders_of_the_reference_import_no_circle() -> None:
    """Its folders, and its own modules, can be put in an order in which each imports what comes before it."""
    homes = {module_name(Path("kvlatch", path)): room(path) for path in sources("reference")}
    graph: dict[str, set[str]] = {home: set() for home in homes.values()}
    for path in sources("reference"):
        graph[room(path)] |= {homes[name] for name in imported_modules(path, homes)} - {room(path)}
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph) > 5


def imported_modules(path: str, known: Container[str]) -> Iterator[str]:
    """The known modules that a file imports, be it as ``from module import name``."""
    for name in imports(path):
        parts = name.split(".")
        candidates = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        yield from (module for module in islice(candidates, 2) if module in known)


def room(path: str) -> str:
    """The folder of the reference that a file is in, or the file itself: ``reference/logs``, ``reference/story.py``."""
    return "/".join(Path(path).parts[:2])


def test_the_longest_test_files_are_there() -> None:
    """Those that the order of the tests names."""
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []


def test_a_long_file_says_why() -> None:
    """No source file has more than 400 lines without the reason at its top."""
    long = [
        path for path in sources(*PACKAGES, "kvlatch", "bench") if len((ROOT / path).read_text().splitlines()) > 400
    ]
    tops = {path: ast.get_docstring(ast.parse((ROOT / path).read_text())) or "" for path in long}
    assert [path for path, top in tops.items() if "Longer than 400 lines because" not in top] == []


@pytest.mark.parametrize("path", sources(*PACKAGES, "kvlatch", "tests"))
def test_no_file_runs_data_as_code(path: str) -> None:
    """No pickle, no eval, no exec, also where a linter's exception would allow it."""
    unpicklers = ("pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve")
    found = [name for name in imports(path) if lies_in(name, *unpicklers)]
    for node in ast.walk(ast.parse((ROOT / path).read_bytes())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.removeprefix("builtins.") in {"eval", "exec"}:
                found.append(f"{called}, line {node.lineno}")
    assert found == []
