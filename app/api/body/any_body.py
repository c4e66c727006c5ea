"""The field that the bodies of all routes have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec


class AnyBody(msgspec.Struct, kw_only=True):
    """The field that all bodies have; null is the same as leaving a field out.

    Attributes:
        own_rules: the rows of the table of fields that bodies of this kind alone have (see `field_table.Rule`).
        options: the fields that are objects whose unknown fields are ignored, and named.
    """

    own_rules: ClassVar[Mapping[str, Any]] = {}
    options: ClassVar[tuple[str, ...]] = ()

    model: str | None = None
