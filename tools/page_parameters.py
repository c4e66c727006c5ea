"""The page's copy of what the OpenAPI document says about the fields that it has settings for."""

from __future__ import annotations

import json
from typing import Any

from app.api.routes.openapi import document
from app.api.routes.operations import OPERATIONS
from app.contract.sampling_params import PARAMETERS

NAMES = (*(each.name for each in PARAMETERS if each.is_option), "stop")
_HEAD = """\
// What /openapi.json says about the fields of a chat that the page has settings for. Made by `make docs` from
// app/contract/sampling_params.py; do not edit.

/** @type {Record<string, import("./field_types.js").Parameter>} */
"""


def page_parameters() -> str:
    """Return the module as JavaScript."""
    schemas: Any = document(OPERATIONS, has_keys=False)["components"]
    fields = schemas["schemas"]["ChatBody"]["properties"]
    lines = [f"  {name}: {json.dumps(_described(fields[name]))},\n" for name in NAMES]
    return f"{_HEAD}export const PARAMETERS = {{\n{''.join(lines)}}};\n"


def _described(field: dict[str, Any]) -> dict[str, object]:
    """Return the description and the range of a field: of a list, that of its items, too."""
    *_, kind = (one for one in field["anyOf"] if one["type"] != "null")
    ranges = {name: kind[name] for name in ("minimum", "maximum", "maxItems", "maxLength") if name in kind}
    return {"description": field["description"], "type": kind["type"], **ranges}
