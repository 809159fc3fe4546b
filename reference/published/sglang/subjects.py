"""What code to run: a published version, a folder, a wheel; and the overlays that are laid over it.

``0.5.23`` is a published version, ``0.5.23+latch-local`` the same with an overlay that ships (`overlays/`),
``0.5.23+my_fix.py`` with one of the user's, ``0.5.23+my.diff`` with a patch; they stack. A folder or a wheel takes the
place of the version: ``./sglang+my_fix.py``.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import attrs

from kvlatch.reference.published.sglang import wheels
from kvlatch.reference.published.wheels import PublishedError

OVERLAYS: Final = Path(__file__).with_name("overlays")
_CODE: Final = "sglang/srt/disaggregation"
_LOADED: Final = (f"{_CODE}/", "sglang/srt/environ.py")
_DIFFS: Final = (".diff", ".patch")


class Unfit(PublishedError):
    """A folder, a wheel or an overlay that cannot be used; the message is one line and says why."""

    exit_code = 2


@attrs.frozen
class Subject:
    """Code that can be run: ``code`` is a wheel or a folder with ``sglang`` in it, ``overlays`` are Python files.

    ``target`` is what ``kvlatch conform`` takes for it. ``warning`` says what the user should know of where it comes
    from; ``original`` is the code without any overlay.
    """

    name: str
    target: str
    code: Path
    overlays: tuple[Path, ...] = ()
    warning: str = ""
    original: Subject | None = None


def shipped() -> tuple[str, ...]:
    """The overlays that ship."""
    return tuple(sorted(path.stem.replace("_", "-") for path in OVERLAYS.glob("[a-z]*.py")))


def resolve(code: str | Subject) -> Subject:
    """The subject that a text names. Raises Unfit, or what fetching a wheel raises."""
    return code if isinstance(code, Subject) else _resolved(code)


def _resolved(text: str) -> Subject:
    base, *overlays = text.split("+")
    if _is_path(base):
        subject = _of_path(Path(base))
    else:
        wheel, warning = wheels.PACKAGE.fetch_any(base)
        subject = Subject(f"sglang {base}", f"sglang=={base}", wheel, warning=warning)
    original = subject
    for overlay in overlays:
        subject = _laid_over(subject, overlay)
    name = "+".join([subject.name, *(Path(overlay).name for overlay in overlays)])
    target = "+".join([subject.target, *overlays])
    return attrs.evolve(subject, name=name, target=target, original=original if overlays else None)


def _is_path(text: str) -> bool:
    return "/" in text or text.endswith(".whl") or text == "."


def _of_path(path: Path) -> Subject:
    """A checkout, an unpacked wheel, or a wheel."""
    if path.suffix == ".whl":
        if not zipfile.is_zipfile(path):
            raise Unfit(f"{path}: {'not a wheel' if path.exists() else 'there is no such file'}")
        with zipfile.ZipFile(path) as archive:
            if not any(name.startswith(f"{_CODE}/") for name in archive.namelist()):
                raise Unfit(f"{path}: there is no {_CODE} in it, so it is no wheel of sglang")
        return Subject(path.name, _as_typed(path), path)
    for folder in (path, path / "python", path.parent):
        if (folder / _CODE).is_dir():
            return Subject(str(path), _as_typed(path), folder.resolve())
    there = "there is no sglang/srt/disaggregation in it" if path.is_dir() else "there is no such folder"
    raise Unfit(f"{path}: {there}")


def _as_typed(path: Path) -> str:
    """A path that the command line takes for one."""
    return str(path) if path.is_absolute() else f"./{path}"


def _laid_over(subject: Subject, overlay: str) -> Subject:
    if overlay.endswith(_DIFFS):
        return attrs.evolve(subject, code=_patched(subject, Path(overlay)))
    file = Path(overlay) if overlay.endswith(".py") else OVERLAYS / f"{overlay.replace('-', '_')}.py"
    if not file.is_file():
        raise Unfit(f"{overlay}: no overlay is called that: they are {', '.join(shipped())}, or FILE.py, or FILE.diff")
    return attrs.evolve(subject, overlays=(*subject.overlays, file.resolve()))


def _patched(subject: Subject, diff: Path) -> Path:
    """A temporary copy of the code, with a diff applied by git."""
    if not diff.is_file():
        raise Unfit(f"{diff}: there is no such file")
    folder = Path(tempfile.mkdtemp(prefix="kvlatch-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy_code(subject.code, folder)
    levels = (1, 2) if "python/sglang" in diff.read_text(encoding="utf-8", errors="replace") else (1, 0)
    said = ""
    for level in levels:
        command = ["git", "apply", f"-p{level}", "--include=sglang/*", str(diff.resolve())]
        try:
            git = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unfit(f"{diff}: git, which applies it, cannot be run: {error}") from error
        if git.returncode == 0 and _differs(subject.code, folder):
            return folder
        said = said or (git.stderr.strip().splitlines() or ["it changes nothing in sglang/srt/disaggregation"])[0]
    raise Unfit(f"{diff}: it does not apply to {subject.name}: {said.removeprefix('error: ')}")


def copy_code(code: Path, folder: Path) -> None:
    """Copies what is loaded of a wheel or a folder."""
    if code.is_dir():
        shutil.copytree(code / _CODE, folder / _CODE, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(code / _LOADED[1], folder / _LOADED[1])
        return
    with zipfile.ZipFile(code) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(_LOADED)])


def _differs(code: Path, folder: Path) -> bool:
    """Whether the copy differs from what it was made from."""
    with tempfile.TemporaryDirectory() as original:
        copy_code(code, Path(original))
        files = [path.relative_to(folder) for path in folder.rglob("*.py")]
        return any(
            not (Path(original) / file).exists() or (Path(original) / file).read_bytes() != (folder / file).read_bytes()
            for file in files
        )
