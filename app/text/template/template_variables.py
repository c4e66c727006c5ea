"""The names that variables of a request may have in a chat template."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from app.contract.errors import InvalidValue, UnsupportedParameter
from app.text.template.template_sandbox import TEMPLATE_NAMES
from app.text.tokens.tokenizer import Tokenizer

FIELD = "chat_template_kwargs"
# Variables that the renderer sets, and options of transformers' `apply_chat_template`.
RESERVED = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template",
        "tokenize", "return_dict", "return_tensors", "padding", "truncation", "max_length",
    }
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_names(names: Iterable[object], tokenizer: Tokenizer) -> None:
    """Reject variables whose names mean something else in templates. Any thread.

    Raises:
        UnsupportedParameter: a name has a meaning in all templates, or is one that the server sets.
        InvalidValue: a name is no identifier.
    """
    for name in names:
        if name in TEMPLATE_NAMES:
            raise UnsupportedParameter(
                f"{FIELD}.{name} has a meaning of its own in templates; give the variable another name.",
                param=f"{FIELD}.{name}",
            )
        if name in RESERVED or name in tokenizer.named_tokens:
            raise UnsupportedParameter(f"{FIELD}.{name} is set by the server; leave it out.", param=f"{FIELD}.{name}")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidValue(f"{FIELD} has the key {name!r:.100}; a variable needs a name such as a_b1.", param=FIELD)


def with_both_switches(variables: Mapping[str, object]) -> dict[str, object]:
    """Return variables in which `enable_thinking` also has the name that DeepSeek and Granite give it. Any thread.

    Raises:
        InvalidValue: it is neither true nor false.
    """
    given = variables.get("enable_thinking", False)
    if not isinstance(given, bool):
        raise InvalidValue(
            f"{FIELD}.enable_thinking is {given!r:.80}; it must be true or false.", param=f"{FIELD}.enable_thinking"
        )
    return {"thinking": given, **variables} if "enable_thinking" in variables else dict(variables)
