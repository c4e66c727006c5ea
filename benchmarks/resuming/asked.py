"""The requests whose answers are checked: what can differ between a client that is cut and one that is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

SSE, NDJSON, WEBSOCKET = "SSE", "NDJSON", "quire.v1"
KINDS = (SSE, NDJSON, WEBSOCKET)

_SCHEMA = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 8, "maxItems": 12},
        "size": {"type": "integer"},
    },
    "required": ["names", "size"],
    "additionalProperties": False,
}
_CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"]}
_TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells the weather in a city.", "parameters": _CITY},
}
# The ends of words: text that may begin a stop string is held back, also when the server is killed.
_STOP = ["e~", "s~", "t~", "n~"]

CASES: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.5, "seed": 7},
    "two choices": {"temperature": 1.5, "seed": 11, "n": 2},
    "stop strings": {"temperature": 1, "seed": 3, "stop": _STOP},
    "characters of several tokens": {"temperature": 1, "seed": 5, "regex": "(猫|é|\U0001f642|ß){60}"},
    "log-probabilities": {"temperature": 1, "seed": 13, "logprobs": True, "top_logprobs": 3},
    "a schema": {
        "temperature": 1,
        "seed": 17,
        "response_format": {"type": "json_schema", "json_schema": {"name": "sizes", "schema": _SCHEMA}},
    },
    "two choices of a schema": {
        "temperature": 1,
        "seed": 19,
        "n": 2,
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": _CITY}},
    },
    "a call of a tool": {"temperature": 1, "seed": 23, "tools": [_TOOL], "tool_choice": "required"},
}
_ENDS_BY_ITSELF = ("regex", "response_format", "tools")
_QUESTIONS = ("What is Quire?", "How do I serve a model?", "Tell me a long story about a server.")


class Asked(NamedTuple):
    """A request, and over what its answer is read.

    Attributes:
        name: its case, and its number.
        kind: one of KINDS.
        body: of a chat, without what only one kind has.
    """

    name: str
    kind: str
    body: Mapping[str, Any]

    @property
    def num_choices(self) -> int:
        """How many choices the answer has."""
        return int(self.body.get("n", 1))

    def __str__(self) -> str:
        return f"{self.name} over {self.kind}"


def requests(count: int, max_tokens: int, cases: Mapping[str, Mapping[str, Any]] = CASES) -> Iterator[Asked]:
    """Yield requests of all cases and kinds in turn; no two are equal."""
    names = [*cases]
    for number in range(count):
        name = names[number % len(names)]
        case = cases[name]
        # Every round has another kind, another prompt and another seed.
        turn = number // len(names)
        content = _QUESTIONS[(number + turn) % len(_QUESTIONS)] + " Say more." * (7 * turn % 40)
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "ignore_eos": not any(field in case for field in _ENDS_BY_ITSELF),
            **case,
        }
        if "seed" in case:
            body["seed"] = case["seed"] + 100 * turn
        yield Asked(f"{name} {number}", KINDS[(number + turn) % len(KINDS)], body)
