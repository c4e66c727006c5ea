"""The options that users of vLLM type, and what becomes of each: the one table for `quire serve` and `LLM(...)`.

docs/reference/vllm.md is made of it, and tests/config/test_vllm_options.py has a case for each row. Programs and
command lines for vLLM run as they are written, say in one line what is different, or are refused with what to do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from app.config.setting import GIB, MIB
from app.config.settings import settings
from app.config.vllm_option import VllmOption
from app.contract.errors import ConfigurationError

OFF = ("false", "none", "")
_THINK = (
    "deepseek_r1", "deepseek_v3", "qwen3", "glm45", "kimi_k2", "minimax_m2", "minimax_m2_append_think", "olmo3",
    "holo2", "ernie45", "nemotron_v3", "step3p5",
)  # fmt: skip
_OTHER_MARKS = ("granite", "hunyuan_a13b", "openai_gptoss", "gptoss", "step3", "internlm", "cohere_command3")
_OTHER_CALLS = (
    "granite", "granite-20b-fc", "granite4", "internlm", "jamba", "phi4_mini_json", "xlam", "hunyuan_a13b",
    "openai", "step3", "step3p5", "ernie45", "gemma4", "functiongemma", "gigachat3", "longcat", "deepseek_v32",
)  # fmt: skip
_ONE_DEVICE = (
    "a model runs on one device; start one server for each GPU (CUDA_VISIBLE_DEVICES) behind a load balancer, or "
    "choose a model that fits one: `quire plan MODEL` tells"
)
_LORA = "adapters are not built; merge the adapter into the model's weights (`merge_and_unload` of peft) and serve that"
_TLS = "the server speaks plain HTTP; let a proxy such as nginx or Caddy end TLS in front of it"
_TEXT_ONLY = "no effect; models read text only"
_FIXED_SCHEDULE = "no effect; the scheduler has no such choice"
_FIXED_KERNELS = "no effect; kernels and recorded steps are chosen by the engine. --enforce-eager turns recording off"
_ONE_PROCESS = "no effect; server and engine are one process for one device"
_DRAFT = (
    "there are no draft models; speculative_ngram (for example 8) predicts tokens from the text so far, without a model"
)
_ROPE = "the position encoding is read from the model; change its config.json instead"
_REQUEST_LOG = "no effect; the log has one line for each request, and never the texts"


def _gib(value: object) -> object:
    """Read a small number as GiB, as vLLM does; nobody means so few bytes."""
    if isinstance(value, (int, float)) and 0 < value < MIB:
        return int(value * GIB)
    return int(value) if isinstance(value, float) else value


def _origins(value: object) -> object:
    """Read the JSON list that vLLM's command line takes; commas have cut it already."""
    if not isinstance(value, tuple) or not value[:1] or not value[0].startswith("["):
        return value
    return tuple(map(str, json.loads(",".join(value))))


def _ngram(value: object) -> object:
    """Read a `speculative_config` without a model: `{"method": "ngram", "num_speculative_tokens": 5}`."""
    fields = json.loads(value) if isinstance(value, str) else value
    if not isinstance(fields, Mapping) or fields["method"] not in ("ngram", "[ngram]"):
        raise ValueError(value)
    return int(fields["num_speculative_tokens"])


def _json_text(value: object) -> object:
    return value if isinstance(value, str) else json.dumps(value)


_MODEL = (
    VllmOption(name="model", setting="model"),
    VllmOption(name="served_model_name", setting="served_model_name"),
    VllmOption(name="revision", setting="revision"),
    VllmOption(name="trust_remote_code", kind="flag", same=OFF,
               note="no effect; code of a model is never run, and supported models need none"),
    VllmOption(name="tokenizer", same=OFF, note="no effect; the tokenizer is that of the model's folder or GGUF file"),
    VllmOption(name="tokenizer_mode", same=("auto", "hf"), note="no effect; there is one kind of tokenizer"),
    VllmOption(name="skip_tokenizer_init", kind="flag", same=OFF,
               refusal="the engine needs the tokenizer; leave it out. Prompts may be token ids all the same"),
    VllmOption(name="tokenizer_revision", same=OFF, note="no effect; the tokenizer is of the model's revision"),
    VllmOption(name="code_revision", same=OFF, note="no effect; code of a model is never run"),
    VllmOption(name="hf_config_path", same=OFF, refusal="config.json is read from the model's folder; put it there"),
    VllmOption(name="config_format", same=("auto", "hf"), refusal="models are read in Hugging Face's format, or GGUF"),
    VllmOption(name="hf_token", same=(*OFF, "true"), is_secret=True,
               refusal="the hub's token is read from HF_TOKEN or from the hub's login; set it there"),
    VllmOption(name="download_dir", same=OFF, refusal="models are stored in the hub's cache; set HF_HUB_CACHE"),
    VllmOption(name="dtype", setting="dtype", equal={"half": "float16", "float": "float32"}),
    VllmOption(name="load_format", setting="load_format",
               equal={"safetensors": "auto", "gguf": "auto", "hf": "auto", "fastsafetensors": "auto"},
               near={"pt": "auto", "npcache": "auto", "mistral": "auto", "runai_streamer": "auto"},
               note="safetensors and GGUF files are loaded, whichever are there, and never pickles"),
    VllmOption(name="model_loader_extra_config", same=(*OFF, "{}"), note="no effect; files are mapped into memory"),
    VllmOption(name="use_tqdm_on_load", kind="flag", note="no effect; a bar is shown on terminals"),
    VllmOption(name="quantization", setting="quantization", equal={"int8": "int8", "int4": "int4"}, near={"gguf": None},
               note="no effect; a GGUF file says itself how it is quantized",
               refusal="such weights are not read; serve a GGUF file, or the unquantized model with int8 or int4 here"),
    VllmOption(name="max_model_len", setting="max_model_len", same=("-1", "auto")),
    VllmOption(name="hf_overrides", same=(*OFF, "{}"), refusal="change the model's config.json instead"),
    VllmOption(name="rope_scaling", same=OFF, refusal=_ROPE),
    VllmOption(name="rope_theta", same=OFF, refusal=_ROPE),
    VllmOption(name="seed", setting="seed", same=("0",),
               note="for random weights (load_format dummy) only; for repeatable answers give requests a seed"),
    VllmOption(name="task", same=("auto", "generate"), near={"embed": None, "embedding": None},
               note="no effect; every model generates, and makes embeddings on a CPU",
               refusal="models generate text and make embeddings; leave it out"),
    VllmOption(name="runner", same=("auto", "generate"), near={"pooling": None},
               note="no effect; every model generates, and makes embeddings on a CPU",
               refusal="models generate text and make embeddings; leave it out"),
    VllmOption(name="convert", same=("auto", *OFF), near={"embed": None},
               note="no effect; every model generates, and makes embeddings on a CPU",
               refusal="models generate text and make embeddings; leave it out"),
    VllmOption(name="override_pooler_config", same=OFF, refusal="send `pooling` with requests, or give it to `embed`"),
    VllmOption(name="model_impl", same=("auto", "vllm"), note="no effect; every model runs on Quire's own engine"),
    VllmOption(name="disable_sliding_window", kind="flag", same=OFF,
               refusal="sliding windows are part of the model; set max_model_len to the window's length instead"),
    VllmOption(name="generation_config", setting="generation_config"),
    VllmOption(name="override_generation_config", setting="override_generation_config", same=(*OFF, "{}"),
               read=_json_text),
    VllmOption(name="logits_processors", same=OFF,
               refusal="own code in the sampler is not supported; use logit_bias or structured outputs"),
    VllmOption(name="logits_processor_pattern", same=OFF, refusal="logits processors are not supported; leave it out"),
    VllmOption(name="max_logprobs", note="no effect; a request may ask for the log-probabilities of 20 tokens"),
    VllmOption(name="limit_mm_per_prompt", same=OFF, note=_TEXT_ONLY),
    VllmOption(name="mm_processor_kwargs", same=OFF, note=_TEXT_ONLY),
    VllmOption(name="allowed_local_media_path", same=OFF, note=_TEXT_ONLY),
    VllmOption(name="enable_lora", kind="flag", same=OFF, refusal=_LORA),
    VllmOption(name="lora_modules", kind="values", same=OFF, refusal=_LORA),
    VllmOption(name="max_loras", note="no effect without adapters, which are not built"),
    VllmOption(name="max_lora_rank", note="no effect without adapters, which are not built"),
)  # fmt: skip
_DEVICES = (
    VllmOption(name="tensor_parallel_size", short="-tp", same=("1",), refusal=_ONE_DEVICE),
    VllmOption(name="pipeline_parallel_size", short="-pp", same=("1",), refusal=_ONE_DEVICE),
    VllmOption(name="data_parallel_size", short="-dp", same=("1",), refusal=_ONE_DEVICE),
    VllmOption(name="enable_expert_parallel", kind="flag", same=OFF, note=_ONE_PROCESS),
    VllmOption(name="distributed_executor_backend", same=(*OFF, "uni"), note=_ONE_PROCESS),
    VllmOption(name="worker_use_ray", kind="flag", same=OFF, note=_ONE_PROCESS),
    VllmOption(name="max_parallel_loading_workers", same=OFF, note=_ONE_PROCESS),
    VllmOption(name="disable_custom_all_reduce", kind="flag", same=OFF, note=_ONE_PROCESS),
    VllmOption(name="api_server_count", same=("1",), note=_ONE_PROCESS),
    VllmOption(name="disable_frontend_multiprocessing", kind="flag", same=OFF, note=_ONE_PROCESS),
    VllmOption(name="cpu_offload_gb", same=("0",),
               refusal="weights are not moved between GPU and RAM; use a smaller GGUF file, or --device cpu"),
    VllmOption(name="enable_sleep_mode", kind="flag", same=OFF, refusal="end the server instead, and start it again"),
    VllmOption(name="kv_transfer_config", same=OFF,
               refusal="KV caches are not sent between servers; swap_space keeps prefixes in host memory"),
)  # fmt: skip
_CACHE_AND_STEPS = (
    VllmOption(name="block_size", setting="block_size"),
    VllmOption(name="gpu_memory_utilization", setting="gpu_memory_utilization"),
    VllmOption(name="scheduling_policy", setting="scheduling_policy"),
    VllmOption(name="kv_cache_dtype", setting="kv_cache_dtype", equal={"fp8_e4m3": "fp8"},
               near={"fp16": "auto", "half": "auto", "float16": "auto", "bf16": "auto", "bfloat16": "auto"},
               note="the KV cache has the type of the model; set that with dtype"),
    VllmOption(name="calculate_kv_scales", kind="flag", same=OFF,
               note="no effect; the scales are those of the checkpoint, or 1"),
    VllmOption(name="num_gpu_blocks_override", setting="num_kv_blocks"),
    VllmOption(name="kv_cache_memory_bytes", setting="kv_cache_memory"),
    VllmOption(name="swap_space", setting="swap_space", read=_gib, note="read as GiB, as vLLM does"),
    VllmOption(name="enable_prefix_caching", kind="flag", setting="enable_prefix_caching"),
    VllmOption(name="prefix_caching_hash_algo", note="no effect; token ids are compared, not only hashes"),
    VllmOption(name="enforce_eager", kind="flag", setting="enforce_eager"),
    VllmOption(name="enable_chunked_prefill", kind="flag", same=("true", "none"),
               note="no effect; long prompts are always cut into chunks. max_num_batched_tokens is their longest"),
    VllmOption(name="max_num_batched_tokens", setting="max_num_batched_tokens"),
    VllmOption(name="max_num_seqs", setting="max_num_seqs"),
    VllmOption(name="num_scheduler_steps", same=("1",), note=_FIXED_SCHEDULE),
    VllmOption(name="multi_step_stream_outputs", kind="flag", note=_FIXED_SCHEDULE),
    VllmOption(name="max_num_partial_prefills", note=_FIXED_SCHEDULE),
    VllmOption(name="max_long_partial_prefills", note=_FIXED_SCHEDULE),
    VllmOption(name="long_prefill_token_threshold", note=_FIXED_SCHEDULE),
    VllmOption(name="scheduler_delay_factor", same=("0",), note=_FIXED_SCHEDULE),
    VllmOption(name="preemption_mode", same=OFF,
               note="no effect; preempted sequences go to swap_space if there is one, else they are computed again"),
    VllmOption(name="async_scheduling", kind="flag",
               note="no effect; on a GPU steps are always launched ahead. run_ahead says how many"),
    VllmOption(name="disable_async_output_proc", kind="flag", same=OFF, note=_FIXED_SCHEDULE),
    VllmOption(name="use_v2_block_manager", kind="flag", note=_FIXED_SCHEDULE),
    VllmOption(name="compilation_config", short="-O", same=OFF, note=_FIXED_KERNELS),
    VllmOption(name="max_seq_len_to_capture", note=_FIXED_KERNELS),
    VllmOption(name="cuda_graph_sizes", kind="values", same=OFF, note=_FIXED_KERNELS),
    VllmOption(name="attention_backend", same=("auto", *OFF), note=_FIXED_KERNELS),
    VllmOption(name="speculative_config", setting="speculative_ngram", read=_ngram, refusal=_DRAFT),
    VllmOption(name="speculative_model", same=(*OFF, "[ngram]"), refusal=_DRAFT),
    VllmOption(name="num_speculative_tokens", setting="speculative_ngram"),
    VllmOption(name="ngram_prompt_lookup_max", same=OFF, note="no effect; the engine chooses the length of n-grams"),
)  # fmt: skip
_ANSWERS = (
    VllmOption(name="chat_template", setting="chat_template"),
    VllmOption(name="enable_auto_tool_choice", kind="flag", same=("true",),
               note="no effect; tools act where a request has them. `tool_choice: none` leaves calls out"),
    VllmOption(name="tool_call_parser", setting="tool_parser",
               equal={"llama3_json": "llama_json", "llama4_json": "llama_json", "llama4_pythonic": "pythonic",
                      "deepseek_v3": "deepseek", "deepseek_v31": "deepseek", "kimi_k2": "kimi", "glm45": "glm",
                      "glm47": "glm", "minimax_m2": "minimax", "qwen3_xml": "qwen3_coder", "seed_oss": "qwen3_coder",
                      "olmo3": "olmo3"},
               near=dict.fromkeys(_OTHER_CALLS, "auto"),
               note="no parser of its own; the syntax of calls is told from the chat template"),
    VllmOption(name="tool_parser_plugin", same=OFF,
               refusal="plugins are not loaded; the syntax of calls is told from the chat template"),
    VllmOption(name="reasoning_parser", setting="reasoning_parser",
               equal={**dict.fromkeys(_THINK, "think"), "seed_oss": "seed", "gemma4": "gemma"},
               near=dict.fromkeys(_OTHER_MARKS, "auto"),
               note="no parser of its own; the marks of reasoning are told from the chat template"),
    VllmOption(name="enable_reasoning", kind="flag", same=("true",),
               note="no effect; --reasoning-parser none leaves reasoning in the text"),
    VllmOption(name="chat_template_content_format", same=("auto",),
               note="no effect; the template gets the texts of messages"),
    VllmOption(name="default_chat_template_kwargs", same=(*OFF, "{}"),
               refusal="send chat_template_kwargs with the requests"),
    VllmOption(name="response_role", same=("assistant",), refusal="answers have the role assistant; leave it out"),
    VllmOption(name="return_tokens_as_token_ids", kind="flag", same=OFF,
               refusal="send `return_token_ids: true` with the requests; answers then have the ids"),
    VllmOption(name="guided_decoding_backend", same=("auto", "guidance", *OFF),
               note="no effect; structured output is made with llguidance"),
    VllmOption(name="structured_outputs_config", same=OFF, note="no effect; structured output is made with llguidance"),
)  # fmt: skip
_SERVER = (
    VllmOption(name="host", setting="host"),
    VllmOption(name="port", setting="port"),
    VllmOption(name="api_key", setting="api_key"),
    VllmOption(name="allowed_origins", setting="allowed_origins", read=_origins,
               refusal='it must be a list, such as ["https://app.example"]'),
    VllmOption(name="allow_credentials", kind="flag", same=OFF, note="no effect; keys are headers, not cookies"),
    VllmOption(name="allowed_methods", same=('["*"]', "*"), note="no effect; an allowed origin may use every route"),
    VllmOption(name="allowed_headers", same=('["*"]', "*"), note="no effect; an allowed origin may send any header"),
    VllmOption(name="root_path", same=OFF,
               note="no effect; the proxy must remove it. The chat page works only at the root of a host"),
    VllmOption(name="uds", same=OFF, refusal="the server listens on a port; leave it out, or let a proxy listen there"),
    VllmOption(name="ssl_keyfile", same=OFF, refusal=_TLS),
    VllmOption(name="ssl_certfile", same=OFF, refusal=_TLS),
    VllmOption(name="ssl_ca_certs", same=OFF, refusal=_TLS),
    VllmOption(name="ssl_cert_reqs", same=("0",), refusal=_TLS),
    VllmOption(name="middleware", same=(*OFF, "[]"), refusal="own code in the server is not supported; use a proxy"),
    VllmOption(name="uvicorn_log_level", setting="quiet", equal={"info": False, "warning": True},
               near={"error": True, "critical": True, "debug": False, "trace": False},
               note="the log has either everything that there is, or with --quiet warnings and errors",
               refusal="it must be one of critical, error, warning, info, debug and trace"),
    VllmOption(name="log_config_file", same=OFF, refusal="the log goes to stderr; see --log-format and --quiet"),
    VllmOption(name="disable_log_requests", kind="flag", same=("true",), note=_REQUEST_LOG),
    VllmOption(name="enable_log_requests", kind="flag", same=OFF, note=_REQUEST_LOG),
    VllmOption(name="max_log_len", same=OFF, note=_REQUEST_LOG),
    VllmOption(name="disable_uvicorn_access_log", kind="flag", same=OFF,
               note="no effect; --quiet leaves out the lines of requests"),
    VllmOption(name="disable_log_stats", kind="flag", same=("true",),
               note="no effect; the figures are in /metrics, not in the log"),
    VllmOption(name="enable_request_id_headers", kind="flag", same=("true",),
               note="no effect; every answer has an x-request-id"),
    VllmOption(name="enable_prompt_tokens_details", kind="flag", same=("true",),
               note="no effect; `usage` always has the cached tokens"),
    VllmOption(name="enable_force_include_usage", kind="flag", same=OFF,
               refusal="send `stream_options: {include_usage: true}` with the requests"),
    VllmOption(name="enable_server_load_tracking", kind="flag", same=OFF, note="no effect; the load is in /metrics"),
    VllmOption(name="disable_fastapi_docs", kind="flag", same=OFF,
               note="no effect; /openapi.json describes the routes and nothing of this server"),
    VllmOption(name="otlp_traces_endpoint", same=OFF, refusal="traces are not sent; see /metrics and the log"),
)  # fmt: skip
SECTIONS = {
    "Model": _MODEL,
    "Devices and processes": _DEVICES,
    "KV cache and scheduling": _CACHE_AND_STEPS,
    "Answers": _ANSWERS,
    "Server": _SERVER,
}
"""The rows by the section of the page."""


def variables_note(environ: Mapping[str, str]) -> str:
    """Return a line for the variables of vLLM that are set; empty if there are none."""
    names = sorted(name for name in environ if name.startswith("VLLM_"))
    listed = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
    return f"no effect: {listed}; settings are read from variables QUIRE_..., such as QUIRE_API_KEY." if names else ""


class Translated(NamedTuple):
    """Settings, and one line for each option that acts otherwise than in vLLM."""

    values: dict[str, object]
    notes: list[str]


def vllm_options() -> dict[str, VllmOption]:
    """Return the rows by their names."""
    return {row.name: row for row in chain.from_iterable(SECTIONS.values())}


def translate(given: Mapping[str, object]) -> Translated:
    """Turn values by the names of settings and of vLLM's options into values of settings; others stay as they are.

    Raises:
        ConfigurationError: an option is refused, or sets what is set already.
    """
    rows, known = vllm_options(), {item.name: item for item in settings()}
    values: dict[str, object] = {}
    notes = []
    for name, value in given.items():
        row = rows.get(name)
        if row is None:
            values[name] = value
            continue
        meant, note = row.reading(value)
        notes += [note] if note else []
        target = row.setting
        if not target or meant is None:
            continue
        if name != target and target in given:
            raise ConfigurationError(f"{name} and {target} are the same setting; leave one out.", param=name)
        is_text = isinstance(meant, str) and name != target
        values[target] = known[target].parse(str(meant), name) if is_text else meant
    return Translated(values, notes)
