"""Checks of settings that depend on each other."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from app.config.chosen_defaults import read_settings
from app.config.devices import CUDA, resolve_device
from app.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from app.config.settings import Config


_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@]+/?")


def is_loopback(host: str) -> bool:
    """Return whether `host` can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_together(config: Config) -> None:
    """Check the combination of all settings.

    Raises:
        ConfigurationError: values are incompatible.
    """
    server, scheduler = config.server, config.scheduler
    if any(not key.strip() for key in server.api_key):
        raise ConfigurationError("api_key must not be empty.", param="api_key")
    if not is_loopback(server.host) and not server.api_key and not server.insecure:
        raise ConfigurationError(
            f"host {server.host} can be reached from other machines: set --api-key (or QUIRE_API_KEY), "
            "or pass --insecure to serve without one.",
            param="host",
        )
    if "*" in server.allowed_origins and not server.api_key:
        raise ConfigurationError(
            "allowed_origins `*` lets any web page that somebody opens use this server: set --api-key (or "
            "QUIRE_API_KEY), or name the origins, such as https://app.example.",
            param="allowed_origins",
        )
    for origin in server.allowed_origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigurationError(
                f"allowed_origins has {origin[:100]!r}; an origin is a scheme and a host, such as https://app.example "
                "or http://localhost:5173.",
                param="allowed_origins",
            )
    if server.kv_disk is not None and not config.cache.enable_prefix_caching:
        raise ConfigurationError("kv_disk needs prefix caching; leave out --no-enable-prefix-caching.", param="kv_disk")
    read_settings(config.sampling)
    check_device(config, resolve_device(config.model.device))
    if scheduler.max_num_batched_tokens < scheduler.max_num_seqs:
        raise ConfigurationError(
            f"max_num_batched_tokens ({scheduler.max_num_batched_tokens}) is less than max_num_seqs "
            f"({scheduler.max_num_seqs}); every running sequence needs one token per step.",
            param="max_num_batched_tokens",
        )


def check_device(config: Config, device: str) -> None:
    """Check that `device` (`cpu` or `cuda`) supports all settings.

    Raises:
        ConfigurationError: it does not support one.
    """
    model, cache, scheduler = config.model, config.cache, config.scheduler
    if device == CUDA:
        if model.quantization is not None:
            raise ConfigurationError(
                f"quantization {model.quantization} is supported on a CPU only; leave it out, or use --device cpu.",
                param="quantization",
            )
        if config.server.kv_disk is not None:
            raise ConfigurationError(
                "kv_disk is supported on a CPU only; leave it out, or use --device cpu.", param="kv_disk"
            )
        if cache.kv_cache_dtype == "int8":
            raise ConfigurationError(
                "kv_cache_dtype int8 is supported on a CPU only; on a GPU use fp8 or auto.", param="kv_cache_dtype"
            )
        return
    if cache.kv_cache_dtype == "fp8":
        raise ConfigurationError(
            "kv_cache_dtype fp8 is supported on a GPU only; on a CPU use int8 or auto.", param="kv_cache_dtype"
        )
    if model.enforce_eager and cache.kv_cache_dtype != "auto":
        raise ConfigurationError(
            f"kv_cache_dtype {cache.kv_cache_dtype} needs the native kernels, which enforce_eager turns off; "
            "leave out one of the two settings.",
            param="kv_cache_dtype",
        )
    if scheduler.run_ahead:
        raise ConfigurationError(
            f"run_ahead is {scheduler.run_ahead}; a CPU supports only 0. Leave the setting out, or set it to 0.",
            param="run_ahead",
        )
