"""Every setting once: frozen dataclasses by concern.

Command line, environment, TOML file, `LLM(...)` and the settings reference in the docs are all made from the fields
below. Precedence: option > environment > file > default. A new setting is one field.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from app.checkpoint import EMBEDDED
from app.errors import ConfigurationError

Kind = str  # one of "text", "integer", "seconds", "bytes", "flag", "list"

KIB, MIB, GIB = 2**10, 2**20, 2**30
MAX_SHOWN_CHARS = 200
MAX_INTEGER = 2**63 - 1  # where a setting names no maximum: what fits the integers of torch and of the file system
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?b?)?b?", re.IGNORECASE)
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def setting(
    default: object,
    help: str,
    *,
    kind: Kind = "text",
    choices: Sequence[object] = (),
    minimum: int | None = None,
    maximum: int | None = None,
) -> Any:
    """Declare one setting; `help` is one sentence for the command line and the docs, with the unit."""
    metadata = {"help": help, "kind": kind, "choices": tuple(choices), "minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how it is loaded."""

    model: str = setting(
        "guide", "Model to serve: `guide` (embedded), a checkpoint folder, or a Hugging Face hub name."
    )
    served_model_name: str | None = setting(
        None, "Name the API gives the model; default `guide` or the folder's last name."
    )
    dtype: str = setting(
        "auto",
        "Type of weights and KV cache; `auto` is the checkpoint's.",
        choices=("auto", "float32", "bfloat16", "float16"),
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
    num_kv_blocks: int | None = setting(
        None, "Number of KV blocks; overrides kv_cache_memory.", kind="integer", minimum=1
    )
    kv_cache_memory: int | None = setting(
        None,
        "Memory for the KV cache (such as `2GiB`); default a quarter of free RAM, at most 4 GiB.",
        kind="bytes",
        minimum=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How much is worked on at once."""

    max_num_seqs: int = setting(
        64, "Sequences that generate at the same time.", kind="integer", minimum=1, maximum=4096
    )
    max_num_batched_tokens: int = setting(
        512, "New tokens computed in one step at most.", kind="integer", minimum=8, maximum=65536
    )
    max_queue: int = setting(
        256, "Requests that may wait; one more is answered 503 `overloaded`.", kind="integer", minimum=0
    )


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
    drain_timeout: float = setting(
        30.0, "Seconds that running answers get to end after SIGTERM or SIGINT.", kind="seconds", minimum=0
    )
    strict: bool = setting(False, "Refuse unknown top-level request fields instead of ignoring them.", kind="flag")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one process."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    server: ServerConfig = ServerConfig()


class Setting(NamedTuple):
    """One setting as the command line and the docs see it."""

    section: str
    name: str
    default: object
    help: str
    kind: Kind
    choices: tuple[object, ...]
    minimum: int | None
    maximum: int | None

    @property
    def option(self) -> str:
        """The command line option, `--max-model-len` style."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable, `QUIRE_MAX_MODEL_LEN` style."""
        return "QUIRE_" + self.name.upper()

    def parse(self, text: str, source: str | None = None) -> object:
        """Turn the text of an option or variable into a value (not yet checked).

        `source` is what messages name: the option if it is None.

        Raises:
            ConfigurationError: the text is not of the setting's kind.
        """
        try:
            return _PARSERS[self.kind](text)
        except (ValueError, OverflowError):
            raise self._refusal(text, source or self.option) from None

    def check(self, value: object, source: str | None = None) -> object:
        """Return `value`, normalized, if it is of the right type and range.

        `source` is what messages name: the setting if it is None.

        Raises:
            ConfigurationError: it is not; says what was given and what is allowed.
        """
        source = source or self.name
        if value is None and self.default is None:
            return None
        if self.kind == "bytes" and isinstance(value, str):
            value = self.parse(value, source)
        if self.kind == "seconds" and type(value) is int and abs(value) <= MAX_INTEGER:
            value = float(value)
        if self.kind == "list" and isinstance(value, (list, tuple)):
            value = tuple(value)
        if not isinstance(value, _TYPES[self.kind]) or (isinstance(value, bool) and self.kind != "flag"):
            raise self._refusal(value, source)
        if isinstance(value, tuple) and not all(isinstance(item, str) for item in value):
            raise self._refusal(value, source)
        if self.choices and value not in self.choices:
            raise self._refusal(value, source)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            low = -MAX_INTEGER if self.minimum is None else self.minimum
            high = MAX_INTEGER if self.maximum is None else self.maximum
            if not low <= value <= high:  # NaN is not, either
                raise self._refusal(value, source)
        return value

    def allowed(self) -> str:
        """Say in words what values are allowed."""
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        words = _WORDS[self.kind]
        if self.minimum is not None and self.maximum is not None:
            return f"{words} between {self.minimum} and {self.maximum}"
        return words if self.minimum is None else f"{words}, at least {self.minimum}"

    def _refusal(self, value: object, source: str) -> ConfigurationError:
        try:
            given = repr(value)
        except ValueError:  # Python writes no integers of thousands of digits
            given = "too large"
        given = given if len(given) <= MAX_SHOWN_CHARS else f"{given[:MAX_SHOWN_CHARS]}..."
        return ConfigurationError(f"{source} is {given}; it must be {self.allowed()}.", param=self.name)


def settings() -> Iterator[Setting]:
    """Yield every setting in the order of the documentation."""
    for section in dataclasses.fields(Config):
        for field in dataclasses.fields(_SECTIONS[section.name]):
            meta = field.metadata
            yield Setting(
                section.name, field.name, field.default, meta["help"], meta["kind"], meta["choices"],
                meta["minimum"], meta["maximum"],
            )  # fmt: skip


def make_config(values: Mapping[str, object]) -> Config:
    """Build a checked configuration from `{setting name: value}`; what is absent gets its default.

    Raises:
        ConfigurationError: an unknown name (the nearest is named), a bad value, or values that do not go together.
    """
    known = {item.name: item for item in settings()}
    for name in values:
        if name not in known:
            raise ConfigurationError(f"Unknown setting {name!r}{nearest(name, known)}.", param=name)
    by_section: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for name, value in values.items():
        by_section[known[name].section][name] = known[name].check(value)
    config = Config(**{section: _SECTIONS[section](**fields) for section, fields in by_section.items()})
    _check_together(config)
    return config


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


def nearest(name: str, known: Mapping[str, object] | Sequence[str]) -> str:
    """Return `; did you mean '...'?`-style help for a misspelt name, or an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]!r}" if matches else ""


def is_loopback(host: str) -> bool:
    """Whether `host` can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _check_together(config: Config) -> None:
    server, scheduler = config.server, config.scheduler
    if any(not key.strip() for key in server.api_key):
        raise ConfigurationError("api_key must not be empty.", param="api_key")
    if not is_loopback(server.host) and not server.api_key and not server.insecure:
        raise ConfigurationError(
            f"host {server.host} can be reached from other machines: set --api-key (or QUIRE_API_KEY), "
            "or pass --insecure to serve without one.",
            param="host",
        )
    if scheduler.max_num_batched_tokens < scheduler.max_num_seqs:
        raise ConfigurationError(
            f"max_num_batched_tokens ({scheduler.max_num_batched_tokens}) is less than max_num_seqs "
            f"({scheduler.max_num_seqs}); every running sequence needs one token per step.",
            param="max_num_batched_tokens",
        )


def _read_toml(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"Cannot read the configuration file {file}: {error.strerror}.", param="config"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The configuration file {file} is not valid TOML: {error}.", param="config") from None


def _parse_bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    unit = (match[2] or " ")[0].lower()
    return int(float(match[1]) * {" ": 1, "k": KIB, "m": MIB, "g": GIB}[unit])


def _parse_flag(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def _parse_list(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:  # such as --api-key "$UNSET": the server would listen without a key and nobody would know
        raise ValueError(text)
    return parts


_PARSERS: dict[Kind, Callable[[str], object]] = {
    "text": str,
    "integer": int,
    "seconds": float,
    "bytes": _parse_bytes,
    "flag": _parse_flag,
    "list": _parse_list,
}
_TYPES: dict[Kind, type] = {"text": str, "integer": int, "seconds": float, "bytes": int, "flag": bool, "list": tuple}
_WORDS = {
    "text": "a text",
    "integer": "an integer",
    "seconds": "a number of seconds",
    "bytes": "a size in bytes (such as 4MiB)",
    "flag": "true or false",
    "list": "a list of texts",
}
_SECTIONS: dict[str, Any] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "server": ServerConfig,
}
