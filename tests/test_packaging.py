"""The wheel is complete, and the source keeps the rules that no linter knows."""

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from fnmatch import filter as matching
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("spec", "reference", "proofs")

# Runs inside the fresh environment: imports the modules named in argv, prints where each lies.
IMPORT_ALL = """
import importlib, json, sys
print(json.dumps({name: importlib.import_module(name).__file__ for name in sys.argv[1:]}))
"""


def package_files() -> list[Path]:
    """Every file of the three packages, relative to the repository root."""
    return sorted(
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def sources(*folders: str) -> list[str]:
    """The Python files of some folders, as ``spec/merges.py``."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def module_name(path: Path) -> str:
    """``spec/merges.py`` -> ``kvlatch.spec.merges``."""
    parts = path.with_suffix("").parts
    return ".".join(("kvlatch", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def run(folder: Path, *command: str | Path) -> str:
    """The output of a command that must succeed, run outside the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: the checkout stays clean, and old build outputs stay out."""
    source = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, source / package, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(source, sys.executable, "-m", "build", "--wheel", "--no-isolation")
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; its dependencies are those of the environment under test."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False)
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python")
    run(home, *pip, "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel)
    # A .pth file adds a folder without running the .pth files in it, so that an editable install
    # of kvlatch over there stays out of sight.
    (site_packages,) = home.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def test_wheel_holds_every_file(wheel: Path) -> None:
    """A nested package or a kind of data file that pyproject.toml forgot would be missing."""
    expected = {f"kvlatch/{path.as_posix()}" for path in package_files()}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "reference/*_wheels.txt",
        "reference/sglang_verdicts.txt",
        "reference/*.cu",
        "proofs/traces/*.json",
        "proofs/*verdicts*",
    ],
)
def test_wheel_holds_data(wheel: Path, pattern: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert matching(archive.namelist(), f"kvlatch/{pattern}")


def test_every_module_imports_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """Also those of the live system, if what they import is installed."""
    modules = [module_name(path) for path in package_files() if path.suffix == ".py"]
    if importlib.util.find_spec("sglang_router") is None:
        modules = [name for name in modules if not lies_in(name, "kvlatch.reference.live")]
    assert {f"kvlatch.{package}" for package in PACKAGES} <= set(modules)
    output = run(tmp_path, installed / "bin" / "python", "-I", "-c", IMPORT_ALL, *modules)
    files: dict[str, str] = json.loads(output)
    assert sorted(files) == sorted(modules)
    assert all(Path(file).is_relative_to(installed) for file in files.values())


def test_command_line_starts_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert "prove" in run(tmp_path, installed / "bin" / "kvlatch", "--help")


FAULTS = {
    "success-complete": "LastChunkConcludes",
    "settlement": "KeepsPages",
    "no-ghost": "NoTombstone",
    "released-once": "ReleasesTwice",
    "one-outcome": "TellsItsOwn",
}
"""Five laws, and for each a manager of tests/reference/managers.py that breaks it."""

WRONG = """
import managers
from kvlatch.reference.oracle import conforms
"""


def test_foreign_project(installed: Path, tmp_path: Path) -> None:
    """Another project uses the oracle from the wheel: a right manager passes every check, a wrong one fails its own."""
    for path in (ROOT / "examples" / "python").glob("*.py"):
        shutil.copy(path, tmp_path)
    shutil.copy(ROOT / "tests" / "reference" / "managers.py", tmp_path)
    tests = (f"@conforms(managers.{fault})\ndef test_{fault}(check):\n    check()\n" for fault in FAULTS.values())
    (tmp_path / "test_wrong.py").write_text(WRONG + "\n".join(tests))
    python = installed / "bin" / "python"
    right = run(tmp_path, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_manager.py")
    assert "13 passed" in right
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_wrong.py"]
    wrong = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert wrong.returncode == 1
    for law, fault in FAULTS.items():
        assert f"FAILED test_wrong.py::test_{fault}[{law}]" in wrong.stdout
        assert f"kvlatch conform managers:{fault} --play '" in wrong.stdout
    assert "skipped" not in right + wrong.stdout


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


@pytest.mark.parametrize("path", sources("reference"))
def test_reference_does_not_import_proofs(path: str) -> None:
    assert [name for name in imports(path) if lies_in(name, "kvlatch.proofs")] == []


@pytest.mark.parametrize("path", sources(*PACKAGES, "tests"))
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
