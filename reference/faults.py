"""What keeps foreign code from being judged at all."""

from __future__ import annotations

from typing import ClassVar


class AdapterFault(Exception):
    """The code cannot be driven: it does not answer, or its answer is not one. That says nothing about any law."""

    exit_code: ClassVar[int] = 3
