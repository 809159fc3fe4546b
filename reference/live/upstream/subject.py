"""A build of published SGLang, as a storm runs it: the code, what is laid over it, and its fingerprint."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs

from kvlatch.reference.live.settings import code_hash
from kvlatch.reference.published.sglang.subjects import Subject, resolve

_JUDGED: Final = "sglang/srt/disaggregation/"


@attrs.frozen
class Published:
    """Code that `conform` judges too: a version, a folder or a wheel, with overlays. It follows no design of ours."""

    subject: Subject
    module: ClassVar[str] = "kvlatch.reference.live.upstream.engine"

    @classmethod
    def of(cls, text: str) -> Published:
        """The build that ``sglang==V``, a folder or a wheel names, with ``+overlay``; PublishedError if none does."""
        return cls(resolve(text.removeprefix("sglang==")))

    @property
    def name(self) -> str:
        """What it is called."""
        return self.subject.name

    @property
    def fingerprint(self) -> str:
        """Twelve digits of the hash of our code, and of the hash of the code that is run."""
        total = hashlib.sha256()
        for name, content in sorted(_files(self.subject.code)):
            total.update(name.encode() + b"\0" + content)
        for overlay in self.subject.overlays:
            total.update(overlay.read_bytes())
        return f"{code_hash()[:12]}-{total.hexdigest()[:12]}"

    def configuration(self) -> dict[str, Any]:
        """What an engine is told of it."""
        overlays = [str(overlay) for overlay in self.subject.overlays]
        said = {"name": self.name, "fingerprint": self.fingerprint}
        return {**said, "code": str(self.subject.code.resolve()), "overlays": overlays}


def _files(code: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a wheel or a folder that are about the transfer."""
    if code.is_dir():
        for path in (code / _JUDGED).rglob("*.py"):
            yield str(path.relative_to(code)), path.read_bytes()
        return
    with zipfile.ZipFile(code) as archive:
        for name in archive.namelist():
            if name.startswith(_JUDGED) and name.endswith(".py"):
                yield name, archive.read(name)
