"""The prompts of a completion, and the inputs of embeddings: one or several."""

from __future__ import annotations

from app.api.body.invalid_field import is_large_integer
from app.contract.errors import InvalidValue
from app.contract.sampling_params import SamplingParams

MAX_PROMPT_SEQUENCES = 128
Prompt = str | list[int]


def read_prompts(prompt: object, name: str = "prompt") -> list[Prompt]:
    """Return the prompts in the field `name` of a body: a text, token ids, or a list of either kind.

    Raises:
        InvalidValue: it is anything else, or a prompt is empty.
    """
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        return [_check(item, f"{name}[{index}]" if len(prompt) > 1 else name) for index, item in enumerate(prompt)]
    return [_check(prompt, name)]


def check_num_prompts(num_prompts: int, params: SamplingParams) -> None:
    """Reject a request with too many sequences; those of a single prompt are checked with its other parameters.

    Raises:
        InvalidValue: there are more than `MAX_PROMPT_SEQUENCES`.
    """
    if num_prompts > 1 and num_prompts * params.num_sequences > MAX_PROMPT_SEQUENCES:
        raise InvalidValue(
            f"{num_prompts} prompts x {params.num_sequences_param} {params.num_sequences} is "
            f"{num_prompts * params.num_sequences}; one request may have at most {MAX_PROMPT_SEQUENCES} sequences; "
            "send several requests.",
            param="prompt",
        )


def _check(prompt: object, param: str) -> Prompt:
    if isinstance(prompt, str) and prompt:
        return prompt
    ids = prompt if isinstance(prompt, list) else []
    if ids and all(type(token_id) is int for token_id in ids):
        return ids
    large = next(filter(is_large_integer, ids), None)
    if large is not None:
        raise InvalidValue(
            f"{param} contains the token id {large:g}, which is out of range; it must be in the vocabulary.",
            param=param,
        )
    raise InvalidValue(f"{param} must be a text or a list of token ids, and not empty.", param=param)
