"""Keywords of vLLM's `SamplingParams` that are not built: which of their values ask for what is so here anyway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from app.contract.errors import UnsupportedParameter

Kind = TypeVar("Kind")
_MAX_SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True)
class VllmParam:
    """One keyword: the values that are accepted (None: any, since no answer depends on it), and what else to do."""

    same: tuple[object, ...] | None
    instead: str = ""

    def check(self, name: str, value: object) -> None:
        """Reject a value that would change the answer. Any thread.

        Raises:
            UnsupportedParameter: `param` names the keyword.
        """
        if self.same is None or any(value == same and type(value) is type(same) for same in self.same):
            return
        shown = repr(value)
        shown = shown if len(shown) <= _MAX_SHOWN_CHARS else f"{shown[:_MAX_SHOWN_CHARS]}..."
        raise UnsupportedParameter(
            f"{name} is {shown}, which is not supported; leave it out: {self.instead}.",
            param=name,
        )


_NONE: tuple[object, ...] = (None, (), [])

VLLM_PARAMS: Mapping[str, VllmParam] = {
    "skip_special_tokens": VllmParam((True,), "decode `token_ids` for the special tokens"),
    "spaces_between_special_tokens": VllmParam((True,), "decode `token_ids` for the special tokens"),
    "detokenize": VllmParam(None),
    "include_stop_str_in_output": VllmParam((False,), "add the stop string to the text"),
    "bad_words": VllmParam(_NONE, "give their tokens a logit_bias of -100"),
    "allowed_token_ids": VllmParam(_NONE, "say with structured_outputs what the answer may be"),
    "logits_processors": VllmParam(_NONE, "use logit_bias or structured_outputs"),
    "truncate_prompt_tokens": VllmParam((None,), "give the last token ids of the prompt"),
    "guided_decoding": VllmParam((None,), "give StructuredOutputs as structured_outputs"),
    "output_kind": VllmParam(None),
    "flat_logprobs": VllmParam((False,), "log-probabilities are dicts"),
    "skip_reading_prefix_cache": VllmParam(None),
    "extra_args": VllmParam((None, {}), "nothing reads it"),
}


def takes_vllm_params(kind: type[Kind]) -> type[Kind]:
    """Let the constructor of a class take these keywords, too: they are checked and not kept.

    They are no fields: what is not kept need not be sent to another process or compared.
    """
    make = kind.__init__

    @wraps(make)
    def init(self: Kind, *values: Any, **fields: Any) -> None:
        for name in [name for name in fields if name in VLLM_PARAMS]:
            VLLM_PARAMS[name].check(name, fields.pop(name))
        make(self, *values, **fields)

    setattr(kind, "__init__", init)  # noqa: B010  # mypy knows that it is a method
    return kind
