"""The table that decides for every field of a body: it acts, or it is accepted, ignored or refused.

A field acts where the struct of the route's body has it, and the struct checks its values. All other fields that
OpenAI, vLLM, llama.cpp and some further servers know are rows of `FIELDS`:

- Accepted: it has nothing to change here, so any value is fine, and nobody needs to hear of it.
- Ignored: it asks for something that the server does not do and that leaves the answer as it is. The response names
  it; `--strict` rejects it.
- Refused: it would change the answer. Its harmless values, which ask for nothing, are accepted.

The bodies of another API have a table of their own, which is asked first (`AnyBody.own_rules`). A field that is in none
is unknown and ignored, because SDKs keep adding fields. `docs/reference/http.md` prints the
table, and a test goes through it field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from app.api.body.any_body import AnyBody

MAX_SHOWN_CHARS = 40


class Fate(StrEnum):
    """The treatment of a field of a body."""

    ACTS = "acts"
    ACCEPTED = "accepted"
    IGNORED = "ignored"
    REFUSED = "refused"


class Rule(NamedTuple):
    """A row: what happens to a field, unless its value is a harmless one.

    `note` says of a refused field what to do instead, and of the others why they have no effect.
    """

    fate: Fate
    note: str = ""
    harmless: tuple[object, ...] = ()

    def is_harmless(self, value: object) -> bool:
        """Return whether a value asks for nothing."""
        return is_one_of(value, self.harmless)

    def refusal(self, name: str, value: object) -> str:
        """Return the message for a client that sent a value which is refused."""
        neutral = [item for item in self.harmless if not is_one_of(item, OFF)]
        if not neutral or self.note.startswith("send ") or isinstance(value, (dict, list)):
            return f"{name} is not supported; {self.note}."
        return f"{name} is {_shown(value)}, and only {_shown(neutral[0])} is supported; {self.note}."


def is_one_of(value: object, items: tuple[object, ...]) -> bool:
    """Return whether a value of a body is one of `items`, of the same type: 0 is not False."""
    return any(value == item and type(value) is type(item) for item in items)


OFF: tuple[object, ...] = (None, False, "", [], {})
_ACTS, _UNKNOWN = Rule(Fate.ACTS), Rule(Fate.IGNORED)
LEAVE_OUT = "leave it out"


def rule_of(name: str, kind: type[AnyBody]) -> Rule:
    """Return the rule of a field in bodies of one kind, whose own table comes first. Any thread."""
    if name in kind.__struct_fields__:
        return _ACTS
    return kind.own_rules.get(name) or FIELDS.get(name, _UNKNOWN)


def accepted(note: str, *names: str) -> dict[str, Rule]:
    """Return the rows of fields that have nothing to change here; `note` says why."""
    return dict.fromkeys(names, Rule(Fate.ACCEPTED, note))


def ignored(note: str, *names: str, neutral: tuple[object, ...] = ()) -> dict[str, Rule]:
    """Return the rows of fields that are ignored; `note` says what to do instead, or why."""
    return dict.fromkeys(names, Rule(Fate.IGNORED, note, (*OFF, *neutral)))


def refused(*names: str, note: str = LEAVE_OUT) -> dict[str, Rule]:
    """Return the rows of fields that are refused unless they ask for nothing; `note` says what to do instead."""
    return dict.fromkeys(names, Rule(Fate.REFUSED, note, OFF))


def refused_but(*harmless: object, note: str = LEAVE_OUT) -> Rule:
    """Return the rule of a field with harmless values of its own; those of `OFF` ask for something."""
    both = [(item, float(item)) if type(item) is int else (item,) for item in harmless]
    return Rule(Fate.REFUSED, note, (None, *(each for items in both for each in items)))


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


_CHAT_TEMPLATE = "send it to /v1/chat/completions"
_IN_KWARGS = "send it in chat_template_kwargs"
_BUDGET = "send thinking_token_budget"

_OPENAI: Mapping[str, Rule] = {
    **accepted(
        "nothing is stored, billed or moderated here",
        "store", "metadata", "user", "service_tier", "safety_identifier",
    ),
    **accepted(
        "the prefix cache needs no advice",
        "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    ),
    **refused("audio", "prediction", "moderation", "suffix"),
    **refused("functions", note="send tools"),
    "function_call": refused_but("none", "auto", note="send tool_choice"),
    "modalities": refused_but(["text"]),
    "verbosity": refused_but("medium", note="leave it out, and ask for it in a message"),
    "web_search_options": refused_but(),
}  # fmt: skip

_OTHER_ROUTES: Mapping[str, Rule] = {  # fields that act on another route
    **refused("tools", "chat_template_kwargs", "continue_final_message", note=_CHAT_TEMPLATE),
    **accepted("it says something of `tools`", "parallel_tool_calls"),
    **accepted("it says something of reasoning in chats", "include_reasoning"),
    **accepted("nothing is read from the prefix cache", "cache_salt"),
    **refused("echo"),
    "add_generation_prompt": refused_but(True),
    "add_special_tokens": refused_but(False, note="leave it out: the template writes special tokens"),
    "max_completion_tokens": refused_but(-1, note="send max_tokens"),
    "priority": Rule(Fate.IGNORED, "the inputs of one body wait together", (None, 0)),
    "reasoning_effort": refused_but(note=_CHAT_TEMPLATE),
    "tool_choice": refused_but("none", "auto", note=_CHAT_TEMPLATE),
    "top_logprobs": refused_but(0, note="send logprobs"),
}

_VLLM: Mapping[str, Rule] = {
    **accepted("nothing is truncated", "truncation_side"),
    **accepted("images and sound are refused", "media_io_kwargs", "mm_processor_kwargs", "return_mm_kwargs"),
    **accepted("it belongs to vLLM's routes for prompts alone", "return_token_offsets"),
    **accepted("a session needs no name here", "session_id"),
    **ignored("send the header x-request-id", "request_id"),
    **ignored("a chunk has what a step has made", "stream_interval"),
    **ignored("no experts are reported", "routed_experts_prompt_start", neutral=(0,)),
    **refused(
        "chat_template", "documents", "prompt_embeds", "truncate_prompt_tokens", "bad_words", "allowed_token_ids",
        "include_stop_str_in_output", "watermarking", "logprob_token_ids", "kv_transfer_params",
        "ec_transfer_params", "vllm_xargs", "structural_tag", "logits_processors",
    ),
    **refused("return_tokens_as_token_ids", note="send return_token_ids"),
    **refused("repetition_detection", note="send repetition_stop"),
    **refused("return_prompt_text", note="send the body to /apply-template"),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), refused_but(True)),
    "embed_dtype": refused_but("float32"),
    "endianness": refused_but("native", "little"),
    "use_activation": refused_but(True, note="send normalize"),
}  # fmt: skip

_LLAMA_CPP: Mapping[str, Rule] = {
    **accepted(
        "the sampler that it belongs to is refused",
        "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "mirostat_tau",
        "mirostat_eta", "xtc_threshold", "dynatemp_exponent", "adaptive_decay",
    ),
    **accepted("the context is never shifted", "n_keep", "n_discard"),
    **accepted(
        "the limit that it belongs to is refused",
        "reasoning_budget_start_tag", "reasoning_budget_end_tag", "reasoning_budget_end_tags",
        "reasoning_budget_message",
    ),
    **accepted("grammar_lazy, which it belongs to, is refused", "grammar_triggers"),
    **ignored("the server chooses what to keep and where", "id_slot", "n_cache_reuse", neutral=(0, -1)),
    **ignored("the same tokens come with the cache or without", "cache_prompt", neutral=(True,)),
    **ignored("send timings", "timings_per_token", "return_progress", "verbose"),
    **ignored("the sampler chooses where it runs", "backend_sampling"),
    **ignored("heartbeats have an interval of the server", "sse_ping_interval", neutral=(0, -1)),
    **ignored("the end of reasoning cannot be requested later", "reasoning_control"),
    **refused(
        "samplers", "lora", "grammar_lazy", "preserved_tokens", "post_sampling_probs", "response_fields",
        "generation_prompt", "chat_parser", "penalize_nl", "image_data",
    ),
    **refused("stop_sequences", note="send stop"),
    **refused("return_tokens", note="send return_token_ids"),
    **refused("content", note="send messages, prompt or input"),
    **dict.fromkeys(("typical_p", "tfs_z"), refused_but(1)),
    **dict.fromkeys(
        ("xtc_probability", "dry_multiplier", "mirostat", "dynatemp_range", "min_keep", "n_indent", "top_a"),
        refused_but(0),
    ),
    **dict.fromkeys(("top_n_sigma", "adaptive_target"), refused_but(-1)),
    **dict.fromkeys(("n_predict", "num_predict"), refused_but(-1, note="send max_tokens")),
    **dict.fromkeys(("t_max_predict_ms", "t_max_prompt_ms"), refused_but(-1, 0, note="send timeout")),
    **dict.fromkeys(("reasoning_budget_tokens", "thinking_budget_tokens"), refused_but(-1, note=_BUDGET)),
    "chat_format": refused_but(0),
    "embd_normalize": refused_but(2, note="send normalize"),
    "grammar_type": refused_but("", "user"),
    "n_cmpl": refused_but(1, note="send n"),
    "n_probs": refused_but(0, note="send logprobs"),
    "parse_tool_calls": refused_but(True, note="start the server with --tool-parser none"),
    "reasoning_format": refused_but("auto", "deepseek", note="start the server with --reasoning-parser none"),
    "repeat_last_n": refused_but(-1, note="leave it out: penalties count all tokens"),
    "repeat_penalty": refused_but(1, note="send repetition_penalty"),
}  # fmt: skip

_IN_BODY = "send its fields in the body itself"

_OTHER_SERVERS: Mapping[str, Rule] = {  # SGLang, TGI, Mistral, Qwen, DeepSeek, OpenRouter, Ollama, KoboldAI, Jina
    **ignored("send the header x-request-id", "rid"),
    **ignored("usage has the cached tokens", "return_cached_tokens_details", "return_meta_info"),
    **ignored("reasoning is sent as it comes", "stream_reasoning", neutral=(True,)),
    **ignored("there is one engine", "data_parallel_rank"),
    **refused(
        "no_stop_trim", "stop_regex", "return_hidden_states", "return_routed_experts", "lora_path",
        "session_params", "custom_params", "custom_logit_processor", "bootstrap_host", "bootstrap_port",
        "bootstrap_room", "tool_prompt", "safe_prompt", "input_type", "prompt_name",
    ),
    **refused(
        "adapter_id", "banned_strings", "banned_tokens", "custom_token_bans", "decoder_input_details", "instruction",
        "late_chunking", "negative_prompt", "task", "watermark",
    ),
    **refused("extra_body", "options", note=_IN_BODY),
    **refused("stopping_strings", "until", note="send stop"),
    **refused("ban_eos_token", note="send ignore_eos"),
    **refused("format", note="send response_format"),
    **refused("output_dimension", note="send dimensions"),
    **refused("return_full_text", note="send echo to /v1/completions"),
    **dict.fromkeys(
        ("epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size", "penalty_alpha", "smoothing_factor"), refused_but(0)
    ),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale", "num_beams", "tfs", "typical"), refused_but(1)),
    **dict.fromkeys(("embedding_type", "output_dtype"), refused_but("float")),
    "do_sample": refused_but(True, note="send temperature 0"),
    "normalized": refused_but(True, note="send normalize"),
    "rep_pen": refused_but(1, note="send repetition_penalty"),
    "think": refused_but(note=_IN_KWARGS),
    **refused("input_ids", note="send token ids as prompt to /v1/completions"),
    **refused("extra_key", note="send cache_salt"),
    **dict.fromkeys(("sampling_seed", "random_seed"), refused_but(note="send seed")),
    **dict.fromkeys(("enable_thinking", "thinking"), refused_but(note=_IN_KWARGS)),
    "max_new_tokens": refused_but(note="send max_tokens"),
    "min_new_tokens": refused_but(0, note="send min_tokens"),
    "reasoning": refused_but(note=_CHAT_TEMPLATE),
    "separate_reasoning": refused_but(True, note="start the server with --reasoning-parser none"),
    "thinking_budget": refused_but(-1, note=_BUDGET),
    "truncate": refused_but(False, "NONE"),
}  # fmt: skip

FIELDS: Mapping[str, Rule] = {**_OPENAI, **_OTHER_ROUTES, **_VLLM, **_LLAMA_CPP, **_OTHER_SERVERS}
