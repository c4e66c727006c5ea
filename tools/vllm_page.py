"""The page of vLLM's options and methods, made of the table that acts on them."""

from __future__ import annotations

from collections.abc import Iterable

from app.config.vllm_option import VllmOption
from app.config.vllm_options import OFF, SECTIONS
from app.contract.vllm_params import VLLM_PARAMS

_HEAD = """# Coming from vLLM

`quire serve` accepts the options of `vllm serve` in these tables, and `LLM(...)` the same names as keywords. Each one
acts here as it does there, or is accepted with one line in the log that says what is different, or is refused with what
to do instead (exit code 2, `ConfigurationError`). Short forms are `-tp`, `-pp`, `-dp` and `-O`; a flag may have `--no-`
in front, and underscores are read as hyphens. `--served-model-name` has one name, and `--api-key` one key each time it
is given. Other options of vLLM are unknown.

"""


def _list(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _sampling_params() -> str:
    """Describe the fate of keywords that are not built."""
    free = _list(name for name, param in VLLM_PARAMS.items() if param.same is None)
    bound = "; ".join(f"`{name}` ({param.instead})" for name, param in VLLM_PARAMS.items() if param.same is not None)
    return f"the same; {free} change nothing; these are accepted with vLLM's default and refused with others: {bound}"


_METHODS = {
    "`generate(prompts, sampling_params, use_tqdm)`": (
        'the same; prompts are texts, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`'
    ),
    "`chat(messages, sampling_params, use_tqdm, add_generation_prompt, continue_final_message, tools, "
    "chat_template_kwargs)`": (
        "the same, also `tool_choice` and `parallel_tool_calls`; another template is the setting `chat_template`"
    ),
    "`embed(prompts, use_tqdm)`": "the same, on CPUs; `pooling`, `dimensions` and `normalize` are keywords",
    "`beam_search(prompts, params)`": "the parameters are keywords, such as `beam_width=4`",
    "`get_tokenizer()`": "`encode` and `decode`, and none of transformers' other methods",
    "`get_default_sampling_params()`": "the same, but parameters do not change: use `dataclasses.replace`",
    "`score`, `classify`, `encode`, `reward`": "not built; `score_prompt` has the probabilities of a text's tokens",
    "`SamplingParams`": _sampling_params(),
    "`StructuredOutputsParams`, `GuidedDecodingParams`": "`StructuredOutputs`, with the same fields",
    "`RequestOutput`": (
        "`request_id`, `prompt`, `prompt_token_ids`, `prompt_logprobs`, `outputs`, `finished`, `num_cached_tokens`; "
        "`usage` instead of `metrics`"
    ),
    "`CompletionOutput`": (
        "`index`, `text`, `token_ids`, `logprobs`, `cumulative_logprob` (with `logprobs`), `finish_reason`, "
        "`stop_reason`"
    ),
}


def vllm_page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for title, rows in SECTIONS.items():
        lines = [f"| `{row.option}` | {_what(row)} |\n" for row in rows]
        parts.append(f"## {title}\n\n| option | here |\n|---|---|\n{''.join(lines)}\n")
    methods = "".join(f"| {name} | {text} |\n" for name, text in _METHODS.items())
    return "".join([*parts, "## LLM\n\n| vLLM | here |\n|---|---|\n", methods])


def _what(row: VllmOption) -> str:
    """Describe the fate of an option's values."""
    words = [f"sets `{row.setting}`" if row.setting != row.name else "the same"] if row.setting else []
    words += [f"{_list(names)} means `{value}`" for value, names in _by_meaning(row).items()]
    if row.near:
        words.append(f"{_list(row.near)}: {row.note}")
    elif row.note:
        words.append(
            row.note if row.setting or not _shown(row) else f"{_list(_shown(row))} is so here; else {row.note}"
        )
    if row.refusal:
        accepted = f"{_list(_shown(row))} is accepted, others are " if _shown(row) else "others are " if words else ""
        words.append(f"{accepted}refused: {row.refusal}")
    return "; ".join(words).replace("|", "\\|") + "."


def _by_meaning(row: VllmOption) -> dict[str, list[str]]:
    """Return the values that have another name here, by that name."""
    found: dict[str, list[str]] = {}
    for word, value in row.equal.items():
        if word != "none":
            found.setdefault(str(value).lower(), []).append(word)
    return found


def _shown(row: VllmOption) -> list[str]:
    """Return the values that ask for what is so; a flag that is off, and an empty value, need no word."""
    return [word for word in row.same if word not in OFF and word not in ("{}", "[]")]
