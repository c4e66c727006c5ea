"""The prompts that the methods of `LLM` take, as text or token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index

from app.contract.errors import InvalidValue, RequestError
from app.contract.sampling_params import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, str | Sequence[int]]
Prompts = str | Mapping[str, str | Sequence[int]] | Sequence[Prompt]
"""One text or dict, or several prompts."""


def each_prompt(prompts: Prompts) -> list[Prompt]:
    """Return the prompts as a list.

    Raises:
        InvalidValue: they are neither a prompt nor several.
    """
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    try:
        return list(prompts)
    except TypeError:
        raise InvalidValue(
            f"prompts is {str(prompts)[:80]}; it must be a prompt, as a text, "
            '{"prompt": text} or {"prompt_token_ids": [...]}, or a list of prompts.',
            param="prompts",
        ) from None


@contextmanager
def naming(number: int, total: int) -> Iterator[None]:
    """Note in the errors of a block which of several prompts they are about."""
    try:
        yield
    except RequestError as error:
        if total > 1:
            error.add_note(f"This is prompt {number} of {total}.")
        raise


def text_of(prompt: Prompt) -> str | None:
    """Return the text of a prompt; None if it is token ids."""
    if isinstance(prompt, Mapping) and set(prompt) == {"prompt"}:
        prompt = prompt["prompt"]
    return prompt if isinstance(prompt, str) else None


def as_text_or_ids(prompt: Prompt) -> str | list[int]:
    """Return a prompt as a text or as token ids.

    Raises:
        InvalidValue: it is neither.
    """
    text = text_of(prompt)
    return _token_ids_of(prompt) if text is None else text


def _token_ids_of(prompt: Prompt) -> list[int]:
    if isinstance(prompt, Mapping):
        if not {"prompt_token_ids"} <= set(prompt) <= {"prompt_token_ids", "prompt"}:
            instead = "; messages of a chat are for LLM.chat" if "role" in prompt else ""
            raise InvalidValue(
                f"A prompt has the keys {sorted(prompt)}; it must have prompt or prompt_token_ids{instead}.",
                param="prompt",
            )
        prompt = prompt["prompt_token_ids"]
    try:
        return [index(token_id) for token_id in prompt]  # type: ignore[arg-type]  # which is a TypeError
    except TypeError:
        raise InvalidValue(
            f"A prompt is {str(prompt)[:80]}; it must be a text, a list of token ids, "
            '{"prompt": text} or {"prompt_token_ids": [...]}.',
            param="prompt",
        ) from None


def each_chat(messages: object) -> list[list[Mapping[str, object]]]:
    """Return the conversations: `messages` are those of one or of several.

    Raises:
        InvalidValue: they are neither.
    """
    if isinstance(messages, Sequence) and not isinstance(messages, str):
        chats = [messages] if any(isinstance(each, Mapping) for each in messages) else messages
        if all(isinstance(chat, Sequence) and all(isinstance(each, Mapping) for each in chat) for chat in chats):
            return [list(chat) for chat in chats]
    raise InvalidValue(
        f"messages is {messages!r:.80}; it must be a list of dicts with role and content, or a list of such lists.",
        param="messages",
    )


def check_continued(continue_final_message: bool, *, add_generation_prompt: bool) -> None:
    """Check that no answer is to begin behind a message that is continued.

    Raises:
        InvalidValue: it is.
    """
    if continue_final_message and add_generation_prompt:
        raise InvalidValue(
            "continue_final_message and add_generation_prompt are both true; set add_generation_prompt to False.",
            param="continue_final_message",
        )


def params_of_each(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> Sequence[SamplingParams]:
    """Return the parameters of each prompt.

    Raises:
        InvalidValue: there are others than one, or one for each prompt.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if not isinstance(params, Sequence) or not all(isinstance(each, SamplingParams) for each in params):
        raise InvalidValue(
            f"sampling_params is {params!r:.80}; it must be a SamplingParams, or a list with one for each prompt.",
            param="sampling_params",
        )
    if len(params) != num_prompts:
        raise InvalidValue(
            f"{len(params)} sampling_params were given for {num_prompts} prompts; give one, or one per prompt.",
            param="sampling_params",
        )
    return params
