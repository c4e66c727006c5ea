"""Reads a client's frames of quire.v1 on the loop, at a cost that a hostile one cannot raise.

The known fields are cut out of the JSON, the rest is skipped and makes no objects. `request`, which may be megabytes,
is left as it stands: it is parsed elsewhere, exactly like a body that comes over HTTP.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

MAX_FIELD_BYTES = 8 * 2**10  # of every field but `request`; the longest right `upto` has a quarter
_TOO_LONG = object()  # what a longer one becomes: a value of a type that no field has


class _Fields(msgspec.Struct):
    """The known fields, empty where a frame has none."""

    t: msgspec.Raw = msgspec.Raw()
    id: msgspec.Raw = msgspec.Raw()
    protocol: msgspec.Raw = msgspec.Raw()
    key: msgspec.Raw = msgspec.Raw()
    request: msgspec.Raw = msgspec.Raw()
    credit: msgspec.Raw = msgspec.Raw()
    upto: msgspec.Raw = msgspec.Raw()
    ts: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Fields)


def read_frame(text: str) -> dict[str, Any]:
    """Return a frame's known fields as Python objects, `request` as the bytes of its JSON.

    Raises:
        ValueError: the frame is not one JSON object, or nested too deeply.
    """
    try:
        fields = _DECODER.decode(text)
        raws = {name: bytes(raw) for name in _Fields.__struct_fields__ if (raw := getattr(fields, name))}
        return {name: raw if name == "request" else _read_field(raw) for name, raw in raws.items()}
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _read_field(raw: bytes) -> object:
    return orjson.loads(raw) if len(raw) <= MAX_FIELD_BYTES else _TOO_LONG
