"""A deployment that is not ours, named by its user: only what HTTP tells is known of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import httpx

from kvlatch.reference.live.records import Build
from kvlatch.reference.live.settings import EngineRole, Settings
from kvlatch.reference.live.storm import NotAnswering, gauge_of
from kvlatch.reference.live.system import Part

_INFORMATION: Final = ("/server_info", "/get_server_info")
_OF_THE_BUILD: Final = ("version", "sglang_version", "fingerprint", "model_path", "disaggregation_transfer_backend")
"""What in a server's information says which build it is; the rest changes while it runs."""


@attrs.define(eq=False)
class Foreign:
    """A deployment: where requests go, and the metrics pages of its prefill engines.

    ``label`` is what its user calls the build. It is part of the fingerprint, since two builds of one version
    say the same of themselves.
    """

    url: str
    pages: tuple[str, ...]
    label: str
    http: httpx.AsyncClient
    build: Build = attrs.field(init=False)
    settings: Settings | None = None
    logs: tuple[Path, ...] = ()

    def __attrs_post_init__(self) -> None:
        self.build = Build(self.label or self.url, None, None, "")

    @property
    def log(self) -> Path | None:
        """It writes none that we could read."""
        return None

    async def fingerprint(self) -> str:
        """A hash over what every prefill engine says of its build; NotAnswering if one says nothing."""
        total = hashlib.sha256(self.label.encode())
        for page in self.pages:
            total.update(json.dumps(await self._information(page), sort_keys=True).encode())
        return total.hexdigest()[:24]

    async def _information(self, page: str) -> Mapping[str, Any]:
        """What the engine with this metrics page says of its build."""
        for path in _INFORMATION:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                said = (await self.http.get(str(httpx.URL(page).join(path)))).raise_for_status().json()
                return {name: said[name] for name in _OF_THE_BUILD if name in said}
        raise NotAnswering(f"{page}: neither {' nor '.join(_INFORMATION)} is there, so nobody knows which build runs")

    async def gauge(self) -> float:
        """The gauge, over all pages."""
        return await gauge_of(self.http, self.pages)

    async def ledger(self) -> dict[str, Any] | None:
        """It keeps none that we could read."""
        return None

    async def second_ledgers(self) -> tuple[tuple[EngineRole, dict[str, Any]], ...]:
        """Nothing is known of its ranks."""
        return ()

    async def decode_ledger(self) -> dict[str, Any] | None:
        """It keeps none that we could read."""
        return None

    def kill(self, part: Part) -> None:
        """Nothing of it is ours to kill."""
        raise NotAnswering(f"the {part} of a deployment that was not started here is not killed")

    def dead(self) -> bool:
        """Nobody knows: a page that does not answer may answer again."""
        return False
