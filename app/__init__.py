"""Quire: a streaming chat server with its own LLM engine. For offline use: `from app import LLM, SamplingParams`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.contract.errors import ConfigurationError as ConfigurationError
    from app.contract.errors import EngineFailed as EngineFailed
    from app.contract.errors import QueueTimeout as QueueTimeout
    from app.contract.errors import QuireError as QuireError
    from app.contract.errors import RequestError as RequestError
    from app.contract.grammar import StructuredOutputs as StructuredOutputs
    from app.contract.sampling_params import SamplingParams as SamplingParams
    from app.llm import LLM as LLM
    from app.llm_outputs import RequestOutput as RequestOutput

__all__ = [
    "LLM",
    "ConfigurationError",
    "EngineFailed",
    "QueueTimeout",
    "QuireError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
]
__version__ = "0.1.0"

# Loaded on access (PEP 562), because importing another part of the package must not load torch.
_HOMES = {
    **dict.fromkeys(
        ("ConfigurationError", "EngineFailed", "QueueTimeout", "QuireError", "RequestError"), "app.contract.errors"
    ),
    "LLM": "app.llm",
    "RequestOutput": "app.llm_outputs",
    "SamplingParams": "app.contract.sampling_params",
    "StructuredOutputs": "app.contract.grammar",
}

# Names of vLLM's, and ours for the same.
_OTHER_NAMES = {"StructuredOutputsParams": "StructuredOutputs", "GuidedDecodingParams": "StructuredOutputs"}


def __getattr__(name: str) -> object:
    if name in _OTHER_NAMES:
        raise ImportError(f"there is no {name} in Quire: {_OTHER_NAMES[name]} has the same fields; import that")
    if name not in _HOMES:
        raise AttributeError(f"module 'app' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
