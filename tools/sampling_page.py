"""The page of sampling defaults: who says them, and the recommendations of publishers, made from the tables."""

from __future__ import annotations

from collections.abc import Mapping

from app.config.chosen_defaults import LLAMA_CPP, OPENAI
from app.config.recommendations import RECOMMENDATIONS, Recommendation
from app.contract.sampling_defaults import DefaultSource, SamplingDefaults

_HEAD = """# Sampling defaults

A request that names `temperature`, `top_p`, `top_k`, `min_p` or `repetition_penalty` gets what it names, over HTTP, on
quire.v1, in Python and in the terminal. For what it does not name, these are asked in turn:

{sources}

Settings replace single values. Of the others each adds what is not said yet, and the first that says a temperature is
the last one: filters that it does not name were off when its temperature was chosen, so they are off. What nobody says
is off, too.

- `--default-temperature`, `--default-top-p`, `--default-top-k`, `--default-min-p`, `--default-repetition-penalty` and
  `--default-max-tokens` are settings, and so are the keys of `--override-generation-config`, which takes vLLM's
  spelling. Two settings that say different values of one parameter are an error.
- `--generation-config vllm` asks nobody but settings: temperature 1 without a filter, as OpenAI's and vLLM's defaults.
- `max_tokens` has no default but `--default-max-tokens`. Without it an answer may be as long as fits, and a completion
  over HTTP has 16 tokens. It is lowered to what fits; a request may name more, or -1 for as much as fits. In Python it
  acts on `LLM.generate` and `LLM.chat` without `sampling_params`, and on `max_tokens=None`: `SamplingParams` that say
  nothing have 16, as vLLM's do.
- `do_sample: false` in generation_config.json is temperature 0. Its `max_new_tokens` is no
  default: it lets an answer with [`context_share`](http.md#bodies) be longer than that share.
- Beam search samples nothing, so no default acts on it.

`quire serve` prints them when it is ready (`sampling defaults: temperature 0.2, top-p 0.9 (recommended by its
publisher)`). `GET /v1/models` has them in `default_sampling_params`, and who says them in `default_sampling_sources`;
the page shows both among the settings of a conversation.

For Qwen3 a publisher recommends other values for answers without thinking. They act on chats whose template is told so
(`enable_thinking: false` in `chat_template_kwargs`, `reasoning_effort: none`, "Thinking: off" on the page), also where
the model's files repeat the publisher's values for thinking; files that say anything else are followed in both. The
start and `/v1/models` (`default_sampling_without_thinking`) say them, too. A `/no_think` in the text of a question is
not seen.

## Recommendations of publishers

A model belongs to a row if its architecture and its name do: `general.name` of a GGUF file, its `general.basename` with
`size_label` and `finetune`, or its file name; `_name_or_path` of config.json, the name on the hub, or a folder's name.
Models without a chat template and base models belong to none: those that are called base, and of SmolLM2, Qwen2.5 and
Llama 3 those that are not called Instruct. A publisher without a row recommends nothing that we have found.

| models | values | source |
|---|---|---|
"""
_NOTES = {
    DefaultSource.SETTING: "the settings below",
    DefaultSource.FILE: "`generation_config.json`, or the keys `general.sampling.*` of a GGUF file",
    DefaultSource.PUBLISHER: "the table below",
}


def sampling_page() -> str:
    """Return the page."""
    notes = _NOTES | {
        DefaultSource.LLAMA_CPP: f"for GGUF files: {_shown(LLAMA_CPP)}",
        DefaultSource.OPENAI: _shown(OPENAI),
    }
    sources = "\n".join(f"{number}. {source}: {notes[source]}" for number, source in enumerate(DefaultSource, 1))
    return _HEAD.format(sources=sources) + "".join(map(_row, RECOMMENDATIONS))


def _row(row: Recommendation) -> str:
    values = _shown(row.values)
    if row.without_thinking is not None:
        values += f"; without thinking: {_shown(row.without_thinking)}"
    return f"| {row.family} | {values} | <{row.url}> |\n"


def _shown(values: Mapping[str, float]) -> str:
    said = SamplingDefaults(**values, sources=dict.fromkeys(values, DefaultSource.SETTING))  # type: ignore[arg-type]
    return str(said).partition(" (")[0]
