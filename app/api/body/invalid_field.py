"""Turns the validator's complaint about a body into an error with the field's path, and what the field may be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from app.config.nearest import nearest
from app.contract.errors import InvalidValue
from app.contract.sampling_params import check_bias

MAX_DIGITS = 20
MAX_VALUE_CHARS = 100
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
# The complaint may quote the client, and so look like another one.
_AT = re.compile(r"(?P<what>.*) - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`", re.DOTALL)
_VALUE = re.compile(r"Invalid (?:enum )?value (?P<value>.*)", re.DOTALL)
_INDEX = re.compile(r"\[[^][]*\]")


def invalid_field(text: str, fields: Mapping[str, object], kind: type[msgspec.Struct]) -> InvalidValue:
    """Turn msgspec's ``Expected `int`, got `str` - at `$.a[0]` `` about a body into an error with the field's path.

    Any thread.
    """
    match = _AT.fullmatch(text)
    missing = _MISSING.fullmatch(text if match is None else match["what"])
    if missing is not None:
        path = missing[1] if match is None else f"{match['path']}.{missing[1]}"
        allowed = allowed_values(kind, path)
        return InvalidValue(f"{path} is missing; {_one_of(allowed) if allowed else 'it is required'}.", param=path)
    if match is None:
        return InvalidValue(f"{text}.")
    path = match["path"]
    unknown = _UNKNOWN.fullmatch(match["what"])
    if unknown is not None:
        guess = nearest(unknown[1][:MAX_VALUE_CHARS], _known_fields(kind, path))
        path = f"{path}.{_shortened(unknown[1])}"
        return InvalidValue(
            f"{path} is unknown{guess}; leave it out. Fields here are never ignored, as they say what the answer is.",
            param=path,
        )
    if allowed := allowed_values(kind, path):
        value = _VALUE.fullmatch(match["what"])
        what = f": {match['what']}" if value is None else f" is {_shortened(value['value'])}"
        return InvalidValue(f"{path}{what}; {_one_of(allowed)}.", param=path)
    name, _, index = path.removesuffix("]").partition("[")
    given = fields.get(name)
    if name == "logit_bias" and isinstance(given, dict):
        check_bias({_token_id(key): bias for key, bias in given.items()})  # its error names the token and the limit
    if isinstance(given, list) and index.isdecimal():
        given = given[int(index)]
    if "`int" in match["what"] and is_large_integer(given):
        return InvalidValue(f"{path} has more than 64 bits; it must be an integer of at most 64 bits.", param=path)
    return InvalidValue(f"{path}: {match['what']}.", param=path)


def is_large_integer(value: object) -> bool:
    """Return whether a value of a body was an integer of more than 64 bits: the JSON parser returns a float for it."""
    return isinstance(value, float) and abs(value) >= 2**63


def allowed_values(kind: type[msgspec.Struct], path: str) -> tuple[str, ...]:
    """Return the values that the field at `path` of a body may have; empty if they are not a few strings."""
    *outer, name = _INDEX.sub("", path).split(".")
    structs = _structs_at(kind, outer)
    tags = [str(one.__struct_config__.tag) for one in structs if one.__struct_config__.tag_field == name]
    literals = [one for one in _types_of(structs, name) if get_origin(one) is Literal]
    return (*tags, *(str(value) for one in literals for value in get_args(one)))


def _known_fields(kind: type[msgspec.Struct], path: str) -> tuple[str, ...]:
    """Return the fields that the object at `path` of a body may have."""
    structs = _structs_at(kind, _INDEX.sub("", path).split("."))
    return tuple(dict.fromkeys(name for struct in structs for name in struct.__struct_fields__))


def _structs_at(kind: type[msgspec.Struct], path: Iterable[str]) -> list[type[msgspec.Struct]]:
    structs: list[type[msgspec.Struct]] = [kind]
    for each in path:
        structs = [one for one in _types_of(structs, each) if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    return structs


def _types_of(structs: Iterable[type[msgspec.Struct]], name: str) -> Iterator[Any]:
    """Yield the types that a field of several structs may have, and its items."""
    for struct in structs:
        for field in msgspec.structs.fields(struct):
            if field.encode_name == name:
                yield from _alternatives(field.type)


def _alternatives(kind: Any) -> Iterator[Any]:
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif origin in (Union, UnionType, list):
        for each in get_args(kind):
            yield from _alternatives(each)
    else:
        yield kind


def _shortened(value: str) -> str:
    return value if len(value) <= MAX_VALUE_CHARS else f"{value[:MAX_VALUE_CHARS]}..."


def _one_of(allowed: tuple[str, ...]) -> str:
    return f"it must be one of {', '.join(allowed)}" if len(allowed) > 1 else f"it must be {allowed[0]}"


def _token_id(key: str) -> int | str:
    """Return a key of logit_bias as a number if possible."""
    return int(key) if key.removeprefix("-").isdecimal() and len(key) <= MAX_DIGITS else key
