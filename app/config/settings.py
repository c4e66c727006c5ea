"""Every setting once: frozen dataclasses by concern.

Command line, environment, TOML file, `LLM(...)` and the settings reference in the docs are all made from the fields
below. Precedence: option > environment > file > default. A new setting is one field.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.checkpoint.folder import EMBEDDED
from app.config.checks import check_together
from app.config.devices import CUDA, resolve_device
from app.config.setting import KIB, MIB, Setting, setting
from app.contract.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how it is loaded."""

    model: str = setting(
        "guide", "Model to serve: `guide` (embedded), a checkpoint folder, or a Hugging Face hub name."
    )
    served_model_name: str | None = setting(
        None, "Name the API gives the model; default `guide` or the folder's last name."
    )
    device: str = setting(
        "auto",
        "Where the model runs; `auto` is an NVIDIA GPU (`cuda`) if torch can use one.",
        choices=("auto", "cpu", "cuda"),
    )
    dtype: str = setting(
        "auto",
        "Type of weights and KV cache; `auto` is the checkpoint's.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str | None = setting(
        None,
        "Quantize the weights while they are loaded, on a CPU: `int8` (activations too), or `int4` in groups of 32, "
        "the smallest but slow for long prompts where there is AMX; default not at all.",
        choices=("int8", "int4"),
    )
    enforce_eager: bool = setting(
        False,
        "Call every operation from Python instead of replaying recorded native steps (CPU) or CUDA graphs (GPU).",
        kind="flag",
    )
    deterministic: bool = setting(
        False,
        "On a GPU: compute each sequence with the same bits whatever shares the batch, somewhat slower; a CPU always "
        "does.",
        kind="flag",
    )
    max_model_len: int | None = setting(
        None, "Longest prompt + answer in tokens; default the model's own limit.", kind="integer", minimum=8
    )
    load_format: str = setting(
        "auto",
        "`auto` reads safetensors; `dummy` makes random weights from config.json alone (a tokenizer is optional).",
        choices=("auto", "dummy"),
    )
    chat_template: str | None = setting(None, "File with a Jinja chat template to use instead of the model's own.")
    seed: int = setting(0, "Seed of the random weights of `--load-format dummy`.", kind="integer", minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = setting(16, "Tokens per KV block.", kind="integer", choices=(8, 16, 32, 64))
    kv_cache_dtype: str = setting(
        "auto",
        "Type of the KV cache: the model's, or with half the bytes `int8` with a scale for each head of a token (CPU), "
        "or `fp8` (e4m3; GPU of compute capability 8.9 or more).",
        choices=("auto", "int8", "fp8"),
    )
    num_kv_blocks: int | None = setting(
        None, "Number of KV blocks; overrides kv_cache_memory.", kind="integer", minimum=1
    )
    kv_cache_memory: int | None = setting(
        None,
        "Memory for the KV cache (such as `2GiB`); default on a CPU a quarter of free RAM, at most 4 GiB and what "
        "max_num_seqs contexts can use, on a GPU what gpu_memory_utilization leaves.",
        kind="bytes",
        minimum=1,
    )
    gpu_memory_utilization: float = setting(
        0.92,
        "Share of a GPU's memory that may be in use when the KV cache has taken its place.",
        kind="share",
        minimum=0,
        maximum=1,
    )
    enable_prefix_caching: bool = setting(
        True,
        "Keep the KV blocks of past prompts and answers, and use them again for equal beginnings.",
        kind="flag",
        negated="Compute every prompt from its beginning: do not use the KV blocks of past prompts and answers again.",
    )
    swap_space: int = setting(
        0,
        "Host memory for preempted sequences and for cached blocks that lost their place (such as `4GiB`); 0 is none.",
        kind="bytes",
        minimum=0,
    )
    pin_prefix: tuple[str, ...] = setting(
        (),
        "File with a system prompt (blanks around it do not count) whose KV blocks are computed at start and kept for "
        "ever; repeatable.",
        kind="list",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Scheduling."""

    max_num_seqs: int = setting(
        64,
        "Sequences that generate at the same time; default 256 on a GPU.",
        kind="integer",
        minimum=1,
        maximum=4096,
    )
    max_num_batched_tokens: int = setting(
        512,
        "New tokens computed in one step at most; default 2048 on a GPU.",
        kind="integer",
        minimum=8,
        maximum=65536,
    )
    max_queue: int = setting(
        256,
        "Requests that may wait; one more is answered 503 `overloaded`. While others have requests too, one API key "
        "(or client address) may have half of them.",
        kind="integer",
        minimum=0,
    )
    scheduling_policy: str = setting(
        "fair",
        "Who comes first: by arrival, by the request's `priority`, by the shortest predicted answer, or fair shares "
        "of work, seats and KV blocks for each API key, and where there are none for each client address.",
        choices=("fcfs", "priority", "sjf", "fair"),
    )
    itl_target: float | None = setting(
        None,
        "Seconds that a step may take while answers are being written: prefill chunks are sized by prediction to stay "
        "under it; 0 is no limit. Default 50ms for a server, none for `LLM`.",
        kind="seconds",
        minimum=0,
    )
    speculative_ngram: int = setting(
        0,
        "Most tokens that an answer which repeats itself, or its prompt, may guess and check in one step; the answer "
        "is the same, sooner. 0 is no guesses.",
        kind="integer",
        minimum=0,
        maximum=64,
    )
    run_ahead: int | None = setting(
        None,
        "Steps that a GPU may be given before the tokens of the first are read; default by the size of the model, and "
        "0 with speculative_ngram.",
        kind="integer",
        minimum=0,
        maximum=4,
    )
    queue_timeout: float = setting(
        0.0,
        "Seconds a request may wait for its first step before it is answered 504 `queue_timeout`; 0 is no limit.",
        kind="seconds",
        minimum=0,
    )

    @property
    def max_logit_rows(self) -> int:
        """The most tokens that a step draws: one for each sequence that runs, and a whole guess."""
        return min(self.max_num_seqs + self.speculative_ngram, self.max_num_batched_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The network side."""

    host: str = setting("127.0.0.1", "Address to listen on; beyond loopback an API key or `--insecure` is needed.")
    port: int = setting(8000, "Port to listen on; 0 picks a free one.", kind="integer", minimum=0, maximum=65535)
    api_key: tuple[str, ...] = setting((), "Key that clients must send; repeatable.", kind="list")
    insecure: bool = setting(False, "Allow listening beyond loopback without an API key.", kind="flag")
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Host names to answer for; default localhost names and the bind address, with an API key any (`*`).",
        kind="list",
    )
    allowed_origins: tuple[str, ...] = setting((), "Further origins that may open WebSockets.", kind="list")
    max_request_bytes: int = setting(
        4 * MIB, "Largest request body or WebSocket frame (such as `4MiB`).", kind="bytes", minimum=1024
    )
    max_connections_per_ip: int = setting(
        256,
        "Open connections of one client address, but for those of this machine; one more is answered 429.",
        kind="integer",
        minimum=1,
    )
    max_paused_per_connection: int = setting(
        32,
        "Streams of one connection that may be paused because nobody reads them; while so many are, one more request "
        "is answered 429 `rate_limit_exceeded`.",
        kind="integer",
        minimum=1,
    )
    max_paused_per_account: int = setting(
        64,
        "The same for one API key, and where there are no keys for one client address (an IPv6 /64).",
        kind="integer",
        minimum=1,
    )
    send_buffer: int = setting(
        16 * KIB,
        "What the kernel may hold of a stream that its client has not taken yet (such as `16KiB`); more only helps on "
        "links that are fast and far.",
        kind="bytes",
        minimum=4096,
        maximum=16 * MIB,
    )
    stall_timeout: float = setting(
        30.0,
        "Seconds that a client may take nothing of what waits for it before it is cut; 0 is for ever.",
        kind="seconds",
        minimum=0,
    )
    max_pending_bytes: int = setting(
        256 * MIB,
        "What may wait of all answers for clients that do not read them (such as `256MiB`); above it a new request is "
        "answered 503 `overloaded` if at least an equal share of that waits for its API key (or client address). Of "
        "one stream at most 96 KiB wait: then its generation does, too.",
        kind="bytes",
        minimum=MIB,
    )
    drain_timeout: float = setting(
        30.0, "Seconds that running answers get to end after SIGTERM or SIGINT.", kind="seconds", minimum=0
    )
    watchdog_timeout: float = setting(
        30.0,
        "Seconds without progress, while there is work, after which the process ends with exit code 70; 0 is never.",
        kind="seconds",
        minimum=0,
    )
    log_format: str = setting(
        "auto",
        "Form of the log on stderr: lines for people (`text`), an object for each line (`json`); `auto` is `text` on a "
        "terminal, in colours unless NO_COLOR is set, else `json`.",
        choices=("auto", "json", "text"),
    )
    quiet: bool = setting(False, "Log warnings and errors only, and say nothing else.", kind="flag")
    strict: bool = setting(False, "Refuse unknown top-level request fields instead of ignoring them.", kind="flag")
    timings: bool = setting(
        False, "Print where the time of the start went, once the model is ready, and the first token's.", kind="flag"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one process."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    server: ServerConfig = ServerConfig()


GPU_DEFAULTS = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
"""What is the default on a GPU, where it is another one than on a CPU."""


def settings() -> Iterator[Setting]:
    """Yield every setting in the order of the documentation."""
    for section in dataclasses.fields(Config):
        for field in dataclasses.fields(_SECTIONS[section.name]):
            meta = field.metadata
            yield Setting(
                section.name, field.name, field.default, meta["help"], meta["kind"], meta["choices"],
                meta["minimum"], meta["maximum"], meta["negated"],
            )  # fmt: skip


def make_config(values: Mapping[str, object]) -> Config:
    """Build a checked configuration from `{setting name: value}`; what is absent gets its default.

    Raises:
        ConfigurationError: an unknown name (the nearest is named), a bad value, or values that do not go together.
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
    """Add the defaults of a GPU; there are no more sequences than a step has tokens."""
    defaults, num_tokens = dict(GPU_DEFAULTS), values.get("max_num_batched_tokens")
    if isinstance(num_tokens, int):
        defaults["max_num_seqs"] = max(1, min(defaults["max_num_seqs"], num_tokens))
    return {**defaults, **values}


def load_config(options: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None) -> Config:
    """Merge parsed command-line `options` (setting names to values), environment and TOML `file` into one Config.

    Raises:
        ConfigurationError: see `make_config`; also an unreadable file.
    """
    values: dict[str, object] = {}
    if file is not None:
        values.update(_read_toml(file))
    for item in settings():
        if item.variable in environ:
            values[item.name] = item.check(item.parse(environ[item.variable], item.variable), item.variable)
        if item.name in options:
            item.check(options[item.name], item.option)
    values.update(options)
    return make_config(values)


def served_name(settings: ModelConfig) -> str:
    """Return the name the API gives the model: as set, else `guide` or the last name of the folder or hub name.

    A folder counts as it was given: a link `latest` is served as `latest`, whatever it leads to.
    """
    if settings.served_model_name is not None:
        return settings.served_model_name
    if settings.model == EMBEDDED:
        return EMBEDDED
    return Path(os.path.abspath(os.path.expanduser(settings.model))).name or settings.model


def tenants(server: ServerConfig) -> tuple[str | None, ...]:
    """Return the names that requests are told apart by, one for each API key in their order; None while there is none.

    A name says nothing of the key: `key-2` is the second.
    """
    return tuple(f"key-{number + 1}" for number in range(len(server.api_key))) or (None,)


def nearest(name: str, known: Mapping[str, object] | Sequence[str]) -> str:
    """Return `; did you mean '...'?`-style help for a misspelt name, or an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]!r}" if matches else ""


def _read_toml(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"Cannot read the configuration file {file}: {error.strerror}.", param="config"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The configuration file {file} is not valid TOML: {error}.", param="config") from None


_SECTIONS: dict[str, Any] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "server": ServerConfig,
}
