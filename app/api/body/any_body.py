"""The field that the bodies of all routes have."""

from __future__ import annotations

import msgspec


class AnyBody(msgspec.Struct, kw_only=True):
    """The field that all bodies have; null is the same as leaving a field out."""

    model: str | None = None
