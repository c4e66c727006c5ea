"""All settings, as frozen dataclasses by concern.

Command line, environment, TOML file, `LLM(...)` and the settings reference in the docs are all generated from the
fields below. Precedence: option > environment > file > default. To add a setting, add one field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.config.cache_config import CacheConfig
from app.config.checks import check_together
from app.config.devices import CUDA, resolve_device
from app.config.nearest import nearest
from app.config.sampling_config import SamplingConfig
from app.config.setting import KIB, KIND_OF_TYPE, MIB, VARIABLE_PREFIX, Setting, setting
from app.config.toml_file import read_settings_file
from app.contract.errors import ConfigurationError

TOOL_PARSERS = (
    "mistral", "mistral_v3", "deepseek", "kimi", "minimax", "glm", "glm4_0414", "qwen3_coder", "functionary", "lfm2",
    "olmo3", "pythonic", "llama_json", "json_list", "hermes",
)  # fmt: skip
"""Names of the rows in `text/calls/formats.py`."""
REASONING_PARSERS = ("think", "mistral", "seed", "gemma")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Model."""

    model: str = setting(
        "guide",
        "Model to serve: `guide` (embedded), `smollm2` (93 MB, downloaded once), a checkpoint folder, a GGUF file, "
        "or a Hugging Face hub name: `owner/name`, `owner/name:QUANT` or `owner/name/file.gguf`.",
    )
    revision: str | None = setting(
        None,
        "Branch, tag or commit of a hub model. With it the hub is asked at every start; without it only for what was "
        "not downloaded yet, and then for `main`.",
    )
    served_model_name: str | None = setting(
        None, "Model name in the API; by default the last part of the path or hub name, without `.gguf`."
    )
    device: str = setting(
        "auto",
        "Device that runs the model; `auto` is an NVIDIA GPU (`cuda`) if torch can use one, else the CPU.",
        choices=("auto", "cpu", "cuda"),
    )
    dtype: str = setting(
        "auto",
        "Data type of the weights and the KV cache; `auto` is the checkpoint's.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str | None = setting(
        None,
        "Quantize the weights while they are loaded, in groups of 32 (CPU only); activations are rounded "
        "too. `int8` keeps the answers nearly as they are, `int4` takes the least memory. Not quantized by default.",
        choices=("int8", "int4"),
    )
    enforce_eager: bool = setting(
        False, "Run every operation from Python instead of replaying recorded native steps (CPU) or CUDA graphs (GPU)."
    )
    dependent_launches: bool = setting(
        True,
        "On a GPU of compute capability 9.0 or higher (Hopper): begin each kernel before the one before it ends.",
        negated="Disable dependent launches: on a GPU each kernel begins when the one before it has ended.",
    )
    deterministic: bool = setting(
        False,
        "On a GPU: make the result of a sequence independent, bit by bit, of the other sequences in the batch; this is "
        "somewhat slower. On a CPU it is always so.",
    )
    max_model_len: int | None = setting(
        None, "Maximum length of prompt and output together, in tokens; by default the model's own limit.", minimum=8
    )
    load_format: str = setting(
        "auto",
        "`auto` loads the weights; `dummy` creates random weights from config.json alone (the tokenizer is optional).",
        choices=("auto", "dummy"),
    )
    chat_template: str | None = setting(None, "File with a Jinja chat template to use instead of the model's own.")
    tool_parser: str = setting(
        "auto",
        "Syntax of calls of tools; `auto` tells it from the chat template, `none` leaves calls in the text.",
        choices=("auto", "none", *TOOL_PARSERS),
    )
    reasoning_parser: str = setting(
        "auto",
        "Marks of reasoning; `auto` tells them from the chat template, `none` leaves reasoning in the text.",
        choices=("auto", "none", *REASONING_PARSERS),
    )
    seed: int = setting(0, "Seed of the random weights with `--load-format dummy`.", minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Scheduling."""

    max_num_seqs: int = setting(
        64, "Maximum number of sequences that generate at the same time; 256 on a GPU.", minimum=1, maximum=4096
    )
    max_num_batched_tokens: int = setting(
        512, "Maximum number of new tokens computed in one step; 2048 on a GPU.", minimum=8, maximum=65536
    )
    max_queue: int = setting(
        256,
        "Maximum number of waiting requests; further ones are rejected with 503 `overloaded`. While several API keys "
        "(or, without keys, client addresses) have requests, each may hold half of the queue. Every prompt or input "
        "of a body is a request; all of them are admitted or none.",
        minimum=0,
    )
    scheduling_policy: str = setting(
        "fair",
        "Order of the requests: `fcfs` is by arrival, `priority` by the request's field of that name, `sjf` by the "
        "shortest predicted output, and `fair` gives equal shares of compute, running sequences and KV blocks to each "
        "API key (or, without keys, to each client address).",
        choices=("fcfs", "priority", "sjf", "fair"),
    )
    itl_target: float | None = setting(
        None,
        "Target time in seconds of a step while outputs are being generated: prefill chunks are sized to stay below "
        "it. 0 disables. Default 50ms for a server, 0 for `LLM`.",
        minimum=0,
        maximum=10,  # who means milliseconds is told
    )
    speculative_ngram: int = setting(
        0,
        "Maximum number of draft tokens of a sequence in one step, for speculative decoding with n-grams: outputs that "
        "repeat themselves or their prompt take fewer steps and stay the same. 0 disables.",
        minimum=0,
        maximum=64,
    )
    speculative_grammar: bool = setting(
        True,
        "Compute in one step the tokens that a grammar leaves no choice about, such as the keys of a JSON object: "
        "outputs take fewer steps and stay the same. By default not on a GPU.",
        negated="Disable forced tokens: what a grammar leaves no choice about is computed token by token, as on a GPU "
        "without `--speculative-grammar`.",
    )
    run_ahead: int | None = setting(
        None,
        "Maximum number of steps launched on a GPU before the tokens of the first one are read; by default chosen by "
        "the size of the model, and 0 with `speculative_ngram`.",
        minimum=0,
        maximum=4,
    )
    queue_timeout: float = setting(
        0.0,
        "Fail a request with 504 `queue_timeout` if it has waited this many seconds for its first step; 0 disables.",
        minimum=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Server."""

    host: str = setting(
        "127.0.0.1", "Address to listen on; other addresses than loopback need an API key or `--insecure`."
    )
    port: int = setting(8000, "Port to listen on; 0 picks a free one.", minimum=0, maximum=65535)
    api_key: tuple[str, ...] = setting((), "API key that clients must send; repeatable.", is_secret=True)
    insecure: bool = setting(False, "Allow listening on other addresses than loopback without an API key.")
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Host names that requests may name in their `Host` header; repeatable. Default: names of localhost and the "
        "address to listen on; any (`*`) if there is an API key.",
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        "Further origins, such as `https://app.example`, whose pages may use the server, over HTTP and WebSockets; "
        "repeatable. `*` allows all, and needs an API key.",
    )
    max_request_bytes: int = setting(
        4 * MIB,
        "Maximum size of a request body or a WebSocket message (for example `4MiB`).",
        kind="bytes",
        minimum=1024,
    )
    model_alias: tuple[str, ...] = setting(
        (),
        "Further name of the model that requests may send, as clients do that have names of their own; repeatable. `*` "
        "allows any. Responses have the model's own name.",
    )
    clamp_max_tokens: bool = setting(
        False,
        "Lower a `max_tokens` that is larger than what context, KV cache and limits leave, instead of rejecting it.",
    )
    max_connections_per_ip: int = setting(
        256,
        "Maximum number of open connections of one client address; further ones are rejected with 429. Loopback "
        "addresses are not limited.",
        minimum=1,
    )
    max_paused_per_connection: int = setting(
        32,
        "Reject new requests of a connection with 429 `rate_limit_exceeded` while this many of its streams are paused "
        "because the client does not read them.",
        minimum=1,
    )
    max_paused_per_account: int = setting(
        64, "The same limit for each API key or, without keys, for each client address (IPv6: each /64).", minimum=1
    )
    send_buffer: int = setting(
        16 * KIB,
        "Size of the kernel's send buffer of a connection (for example `16KiB`); more only helps on fast links with a "
        "long round-trip time.",
        kind="bytes",
        minimum=4096,
        maximum=16 * MIB,
    )
    stall_timeout: float = setting(
        30.0,
        "Disconnect a client that has read nothing for this many seconds while data is pending; 0 disables.",
        minimum=0,
    )
    max_pending_bytes: int = setting(
        256 * MIB,
        "Maximum amount of data that is pending for slow clients, of all streams (for example `256MiB`). Above it a "
        "new request is rejected with 503 `overloaded` if its API key (or client address) has at least an equal share "
        "of that data. The generation of a stream pauses when 192 tokens or 48 KiB are pending for it; with the slow "
        "reader `coalesce` at 96 KiB.",
        kind="bytes",
        minimum=MIB,
    )
    resume_memory: int = setting(
        64 * MIB,
        "Amount of memory for resumable answers, running and ended (for example `64MiB`). Above it the oldest ended "
        "one that nobody reads goes; if there is none, a new answer cannot be resumed.",
        kind="bytes",
        minimum=0,
    )
    response_ttl: float = setting(
        3600.0, "Time in seconds that a response of `/v1/responses` is kept when nobody reads it; 0: none.", minimum=0
    )
    journal: str | None = setting(
        None,
        "File in which resumable answers are recorded before they are told, so that they go on after a crash or a "
        "restart of the server. It holds prompts and answers, while answers are kept; nobody else may read it.",
    )
    kv_disk: str | None = setting(
        None,
        "Folder in which the prefix cache outlives the server: prompts that begin with what is there are read instead "
        "of computed, if that is faster. CPU only. It holds what prompts and answers say; nobody else may read it.",
    )
    kv_disk_space: int = setting(
        8 * 2**30,
        "Maximum size of the folder of `--kv-disk` (for example `8GiB`); what was used last stays.",
        kind="bytes",
        minimum=MIB,
    )
    drain_timeout: float = setting(
        30.0, "Time in seconds for open requests to finish after SIGTERM or SIGINT.", minimum=0
    )
    watchdog_timeout: float = setting(
        30.0, "Exit with code 70 after this many seconds without progress while there is work; 0 disables.", minimum=0
    )
    log_format: str = setting(
        "auto",
        "Format of the log on stderr: `text` for reading, `json` with one object per line; `auto` is `text` on a "
        "terminal (in colours unless NO_COLOR is set), else `json`.",
        choices=("auto", "json", "text"),
    )
    live_view: str = setting(
        "auto",
        "Whose KV blocks the live view shows: `own`, `all`, or `off` (no view); `auto` is `own` with keys, else `all`.",
        choices=("auto", "own", "all", "off"),
    )
    quiet: bool = setting(False, "Log only warnings and errors, and print nothing else.")
    strict: bool = setting(False, "Reject requests with unknown top-level fields instead of ignoring these fields.")
    keep_billing_line: bool = setting(
        False,
        "Keep the line `x-anthropic-billing-header: ...` in system prompts of `/v1/messages`. Claude Code sends it, "
        "another one in each conversation; by default it is left out, so that conversations share their prefix.",
    )
    reasoning_field: str = setting(
        "reasoning_content",
        "Field of chat answers with the model's reasoning; `both` adds vLLM's `reasoning` to `reasoning_content`.",
        choices=("reasoning_content", "both"),
    )
    timings: bool = setting(
        False, "Print the durations of the startup phases once the model is ready, and of the first token."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one process."""

    model: ModelConfig = ModelConfig()
    sampling: SamplingConfig = SamplingConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    server: ServerConfig = ServerConfig()


GPU_DEFAULTS = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "speculative_grammar": False}
"""Defaults on a GPU that differ from those on a CPU."""


def settings() -> Iterator[Setting]:
    """Yield every setting in the order of the documentation."""
    for section, fields in _SECTIONS.items():
        for field in dataclasses.fields(fields):
            kind = field.metadata["kind"] or KIND_OF_TYPE[str(field.type).removesuffix(" | None")]
            yield Setting(section, field.name, field.default, **{**field.metadata, "kind": kind})


def make_config(values: Mapping[str, object]) -> Config:
    """Build a checked configuration from `{setting name: value}`; absent settings get their defaults.

    Raises:
        ConfigurationError: an unknown name (with a suggestion), an invalid value, or incompatible values.
    """
    known = {item.name: item for item in settings()}
    if resolve_device(str(values.get("device", "auto"))) == CUDA:
        values = _with_gpu_defaults(values)
    for name in values:
        if name not in known:
            raise ConfigurationError(f"Unknown setting {name!r}{nearest(name, known)}.", param=name)
    by_section: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for name, value in values.items():
        by_section[known[name].section][name] = known[name].check(value)
    config = Config(**{section: _SECTIONS[section](**fields) for section, fields in by_section.items()})
    check_together(config)
    return config


def _with_gpu_defaults(values: Mapping[str, object]) -> dict[str, object]:
    """Add the defaults of a GPU; `max_num_seqs` is at most a given `max_num_batched_tokens`."""
    defaults, num_tokens = dict(GPU_DEFAULTS), values.get("max_num_batched_tokens")
    if isinstance(num_tokens, int):
        defaults["max_num_seqs"] = max(1, min(defaults["max_num_seqs"], num_tokens))
    return {**defaults, **values}


def load_config(options: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None) -> Config:
    """Merge parsed command-line `options` (setting names to values), environment and TOML `file` into one Config.

    Raises:
        ConfigurationError: see `make_config`; also an unreadable file.
    """
    values: dict[str, object] = {} if file is None else {**read_settings_file(file, settings())}
    for item in settings():
        if item.variable in environ:
            values[item.name] = item.check(item.parse(environ[item.variable], item.variable), item.variable)
        if item.name in options:
            item.check(options[item.name], item.option)
    values.update(options)
    return make_config(values)


def misspelt_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each variable whose name is nearly that of a setting, and which therefore does nothing."""
    known = {item.variable.removeprefix(VARIABLE_PREFIX) for item in settings()}
    given = [name.removeprefix(VARIABLE_PREFIX) for name in sorted(environ) if name.startswith(VARIABLE_PREFIX)]
    return [
        f"the variable {VARIABLE_PREFIX}{name} has no effect{advice} behind {VARIABLE_PREFIX}"
        for name in given
        if name not in known and (advice := nearest(name, known))
    ]


def tenants(server: ServerConfig) -> tuple[str | None, ...]:
    """Return the tenants, one for each API key in their order; without keys the only tenant is None.

    A tenant's name contains nothing of its key: `key-2` is the second.
    """
    return tuple(f"key-{number + 1}" for number in range(len(server.api_key))) or (None,)


_SECTIONS: dict[str, Any] = {field.name: type(field.default) for field in dataclasses.fields(Config)}
