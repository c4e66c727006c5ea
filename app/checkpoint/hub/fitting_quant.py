"""The quant of a GGUF model that fits into memory, where the one that is asked for does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from app.checkpoint.hub.hub_cache import HubName, name_of, snapshot_at, snapshots
from app.checkpoint.hub.repo_files import RepoFile, Variant, variants
from app.checkpoint.model_files import GGUF, ModelFiles
from app.checkpoint.names import hub_name
from app.checkpoint.tensor_types import SUPPORTED
from app.config.settings import ModelConfig
from app.observe.download_progress import size_text

BITS = {"Q8_0": 8.5, "Q6_K": 6.57, "Q5_K_M": 5.7, "Q4_K_M": 4.9}
"""About how many bits a weight takes in files of these quants."""
_WEIGHTS_SHARE = 0.95  # of the memory: the rest is for keys and values
_KEPT_SHARE = 1.03  # of the bytes of a file: kernels keep the factors of Q4_K and Q5_K as bytes


class FittingQuant(NamedTuple):
    """The largest quant that fits: a name to serve, or only its label where no repository is known."""

    name: str
    num_bytes: int
    is_listed: bool

    def __str__(self) -> str:
        size = size_text(self.num_bytes)
        return f"{self.name} ({size})" if self.is_listed else f"the same model as {self.name} (about {size})"


def known_files(name: HubName, revision: str | None) -> list[RepoFile]:
    """Return the files that a repository has, as far as the cache tells; it does not ask the hub."""
    latest = snapshot_at(name.repo, revision or "main")
    found = [latest] if latest is not None else snapshots(name.repo)
    return next((snapshot.listed() or snapshot.present() for snapshot in found), [])


def fitting_quant(
    num_parameters: int, room: int, name: HubName | None = None, files: Sequence[RepoFile] = ()
) -> FittingQuant | None:
    """Return the largest quant whose weights take at most `room` bytes in memory, None if none that can be served does.

    `files` are those of the repository of `name`; without a name it is told by the number of weights.
    """
    if name is None:
        sizes = {quant: round(num_parameters * bits / 8) for quant, bits in BITS.items()}
        smaller = (FittingQuant(quant, size, is_listed=False) for quant, size in sizes.items() if _fits(size, room))
        return next(smaller, None)
    known = variants(files)
    fitting = [each for each in known if _is_served(each) and _fits(each.num_bytes, room)]
    if not fitting:
        return None
    largest = fitting[-1]
    return FittingQuant(str(name_of(name.repo, largest, known)), largest.num_bytes, is_listed=True)


def quant_adviser(settings: ModelConfig, files: ModelFiles, *, keeps_types: bool) -> Callable[[int], str] | None:
    """Return `quant_advice` of a model, by the bytes that are free; None if another quant would not be smaller.

    `keeps_types` says whether weights stay in memory as the files store them.
    """
    if files.format != GGUF or not keeps_types:
        return None
    return partial(quant_advice, settings, files.spec.num_parameters())


def quant_advice(settings: ModelConfig, num_parameters: int, free_bytes: int) -> str:
    """Return a sentence about the quant of a model in GGUF files whose weights fit, and leave room for a KV cache."""
    name = hub_name(settings.model)
    files = known_files(name, settings.revision) if name is not None else []
    quant = fitting_quant(num_parameters, round(free_bytes * _WEIGHTS_SHARE), name, files)
    return f"What fits: {quant}." if quant else "No smaller quant that can be served fits; use a smaller model."


def _is_served(variant: Variant) -> bool:
    """Return whether a label is a supported type, or one with letters: Q4_K_M, but not Q4_0_8_8, which is another."""
    if variant.format != GGUF or variant.missing_parts():
        return False
    endings = (variant.quant.removeprefix(kind) for kind in SUPPORTED if variant.quant.startswith(kind))
    return any(not ending or (ending[0] == "_" and ending[1:].isalpha()) for ending in endings)


def _fits(num_bytes: int, room: int) -> bool:
    return num_bytes * _KEPT_SHARE <= room
