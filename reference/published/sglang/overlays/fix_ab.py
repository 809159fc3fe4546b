"""Fix A and Fix B of the incident."""

from __future__ import annotations

from kvlatch.reference.published.sglang.overlays import fix_a, fix_b


class Manager(fix_a.Manager, fix_b.Manager):
    """Both."""
