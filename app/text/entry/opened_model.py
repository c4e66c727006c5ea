"""A model that was opened: what is read of it before its weights, once for all who need it. Without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.checkpoint.inspection import inspect_at, inspect_headers
from app.checkpoint.model_files import ModelFiles
from app.checkpoint.names import resolve
from app.checkpoint.spec import ModelSpec
from app.config.devices import check_wanted_gpu
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from app.observe.console import Console
from app.runtime.torch_needs import check_torch_can_load
from app.text.entry.frontend import TextFrontend


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """The files of a model, as far as they say its shape, and its tokenizer and chat template. Any thread."""

    files: ModelFiles
    text: TextFrontend

    def __post_init__(self) -> None:
        if any(token_id >= self.spec.vocab_size for token_id in self.eos_token_ids):
            raise ModelRefused(
                f"eos_token_id {self.eos_token_ids} is outside the vocabulary of {self.spec.vocab_size}.", param="model"
            )

    @property
    def spec(self) -> ModelSpec:
        """The shape of the model."""
        return self.files.spec

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The EOS ids of config, generation_config and tokenizer, united."""
        own = self.text.tokenizer.eos_token_id
        return tuple(sorted({*self.spec.eos_token_ids, *(() if own is None else (own,))}))

    @classmethod
    def open(
        cls, settings: ModelConfig, console: Console | None = None, on_inspected: Callable[[], None] = lambda: None
    ) -> OpenedModel:
        """Open the configured model. Blocks, and downloads what is not there; messages go to `console`, else stderr.

        `on_inspected` is called when its headers are read and not refused, before the tokenizer, which takes longer.

        Raises:
            ModelRefused: the model cannot be served; the message says why and what to do.
            CannotStart: the model must be downloaded, and cannot be now; or this process or machine lacks what files
                already tell that torch and the wanted device need.
            ConfigurationError: the template file of `settings` cannot be used, or the model has no revisions.
        """
        check_torch_can_load()  # before all that takes long: each way to an engine begins here
        check_wanted_gpu(settings.device)
        path = resolve(settings.model, settings.revision, console, partial(check_headers, settings))
        files = inspect_at(path, settings)
        on_inspected()
        return cls.of(settings, files)

    @classmethod
    def of(cls, settings: ModelConfig, files: ModelFiles) -> OpenedModel:
        """Read tokenizer and chat template of inspected files, and check that they fit the spec. Blocks.

        Raises:
            ModelRefused, ConfigurationError: see `open`.
        """
        return cls(files, TextFrontend.load(settings, files.text))


def check_headers(settings: ModelConfig, path: Path) -> ModelFiles:
    """Inspect the configured model at `path`, where weights may be missing; and its tokenizer, unless they do. Blocks.

    Raises:
        ModelRefused, ConfigurationError: see `OpenedModel.open`.
    """
    files = inspect_headers(settings, path)
    if files.tensors is not None:
        OpenedModel.of(settings, files)
    return files
