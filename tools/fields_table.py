"""The table of all fields of bodies in docs/reference/http.md, made from the structs and the table of fields."""

from __future__ import annotations

import json

from app.api.body.field_table import FIELDS, OFF, Fate, is_one_of, rule_of
from app.api.body.parse_embeddings import EmbeddingsBody
from app.api.body.schemas import ChatBody, CompletionBody
from app.contract.sampling_params import MAX_TOKENS, PARAMETERS

BEGIN = "<!-- Made by `make docs` from app/api/body/field_table.py; do not edit. -->\n"
_PARAMETERS = {each.name: each for each in PARAMETERS}
KINDS = {"chat": ChatBody, "completions": CompletionBody, "embeddings": EmbeddingsBody}


def all_names() -> list[str]:
    """Return the names of all fields that act on a route or have a row in the table."""
    return sorted({*FIELDS, *(name for kind in KINDS.values() for name in kind.__struct_fields__)})


def fields_table() -> str:
    """Return the table as Markdown."""
    lines = [f"| field | {' | '.join(KINDS)} | |", f"|---|{'---|' * len(KINDS)}---|"]
    for name in all_names():
        fates = [rule_of(name, kind).fate for kind in KINDS.values()]
        lines.append(f"| `{name}` | {' | '.join(fates)} | {_what(name, set(fates))} |")
    return "\n".join(lines) + "\n"


def _what(name: str, fates: set[Fate]) -> str:
    """Describe a sampling parameter and its range, or the fate of a field that does not act everywhere."""
    parts = [] if fates == {Fate.ACTS} else [_remark(name)]
    if (parameter := _PARAMETERS.get(name)) is not None:
        parts.insert(0, parameter.help)
        if (bounds := parameter.bounds) is not None and bounds.low >= -MAX_TOKENS:
            parts.insert(
                1, f"{bounds.low:g} to {bounds.high:g}." if bounds.high < MAX_TOKENS else f"At least {bounds.low:g}."
            )
    return " ".join(filter(None, parts))


def _remark(name: str) -> str:
    rule = FIELDS.get(name)
    if rule is None:
        return ""
    neutral = [item for item in rule.harmless if not is_one_of(item, OFF) and type(item) is not float]
    if rule.fate is not Fate.REFUSED or not neutral:
        return rule.note
    return f"{' or '.join(f'`{json.dumps(item)}`' for item in neutral)} is accepted; {rule.note}"
