"""The fields of a body that say how its messages become a prompt, and their checks.

`chat_template_kwargs` are free variables of the template. Their text stays text, as that of messages does: values are
marked by the template's renderer, names and keys may not contain the text of a special token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import orjson

from app.api.body.schemas import ChatBody
from app.contract.errors import InvalidValue
from app.text.template.chat_template import RenderOptions
from app.text.template.template_variables import FIELD, check_names, with_both_switches
from app.text.tokens.tokenizer import Tokenizer

MAX_KWARGS_BYTES = 16 * 2**10  # as JSON
MAX_KWARGS_KEYS = 128  # of all objects together
MAX_KEY_LENGTH = 64
NO_THINKING = frozenset({"none", "minimal"})


def render_options(body: ChatBody, tokenizer: Tokenizer) -> RenderOptions:
    """Return how the messages of `body` are rendered. Any thread.

    Raises:
        InvalidValue: a variable has a name that is reserved or no identifier, the variables are too large, two fields
            contradict each other.
    """
    continue_final = bool(body.continue_final_message)
    if continue_final and body.add_generation_prompt:
        raise InvalidValue(
            "continue_final_message and add_generation_prompt are both true; send one of them.",
            param="continue_final_message",
        )
    begins_answer = body.add_generation_prompt is not False and not continue_final
    return RenderOptions(begins_answer, continue_final, _variables(body, tokenizer))


def _variables(body: ChatBody, tokenizer: Tokenizer) -> Mapping[str, object]:
    given = body.chat_template_kwargs or {}
    _check_size(given)
    check_names(given, tokenizer)
    _check_keys(_keys(given), tokenizer.special_tokens)
    effort = body.reasoning_effort
    ours: dict[str, object] = {} if effort is None else {"reasoning_effort": effort}
    if effort in NO_THINKING:
        ours["enable_thinking"] = False
    for name, value in ours.items():
        if given.get(name, value) != value:
            raise InvalidValue(
                f"reasoning_effort {effort!r} and {FIELD}.{name} contradict each other; send one of them.",
                param="reasoning_effort",
            )
    return with_both_switches(given | ours)


def _check_size(given: Mapping[str, object]) -> None:
    size, num_keys = len(orjson.dumps(given)), sum(1 for _ in _keys(given))
    if size > MAX_KWARGS_BYTES:
        raise InvalidValue(f"{FIELD} has {size} bytes as JSON; at most {MAX_KWARGS_BYTES} are allowed.", param=FIELD)
    if num_keys > MAX_KWARGS_KEYS:
        raise InvalidValue(f"{FIELD} has {num_keys} keys; at most {MAX_KWARGS_KEYS} are allowed.", param=FIELD)


def _check_keys(keys: Iterator[str], special_tokens: Iterable[str]) -> None:
    """Reject keys that a template could write into the prompt as a special token."""
    for key in keys:
        if len(key) > MAX_KEY_LENGTH:
            raise InvalidValue(
                f"{FIELD} has a key of {len(key)} characters; at most {MAX_KEY_LENGTH} are allowed.", param=FIELD
            )
        if any(token in key for token in special_tokens if token):
            raise InvalidValue(
                f"{FIELD} has the key {key!r}, which contains a special token; use another key.", param=FIELD
            )


def _keys(value: object) -> Iterator[str]:
    """Yield the keys of all objects in a value of parsed JSON."""
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(item)
