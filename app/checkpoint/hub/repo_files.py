"""Which files of a model's repository are needed: the weights of one variant, and the small files beside them.

A variant is the safetensors files together, or one GGUF file, or the parts of a split one. Safetensors come first; of
GGUF variants the one that is asked for, else the first of DEFAULT_QUANTS that is there, else the only one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.file_parts import parts_of, without_part
from app.checkpoint.model_files import GGUF, SAFETENSORS
from app.observe.download_progress import size_text

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
# Labels such as Q4_K_M, IQ4_XS, UD-Q4_K_XL, BF16 or MXFP4_MOE, between separators.
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d|TQ\d|MXFP\d|NVFP\d)(?:_[0-9A-Z]+)*|BF16|F?P?16|FP?32)(?=[-._/]|$)", re.IGNORECASE
)
_NO_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)  # of vision towers; of the making of quants
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_SMALL = (".json", ".jinja")


class RepoFile(NamedTuple):
    """A file by its path in the repository."""

    path: str
    num_bytes: int


class Variant(NamedTuple):
    """Files that are one model; `quant` is empty for safetensors and for a GGUF file without a label in its name."""

    format: str
    quant: str
    files: tuple[RepoFile, ...]

    @property
    def num_bytes(self) -> int:
        """The size of the weights."""
        return sum(file.num_bytes for file in self.files)

    @property
    def summary(self) -> str:
        """The format and the quant, for people."""
        return self.format if self.format == SAFETENSORS else f"{self.format.upper()} {self.quant}".rstrip()

    def label_among(self, known: Iterable[Variant]) -> str:
        """Return a label that no other of its repository has: the format, the quant, or its file if that is needed."""
        if self.format == SAFETENSORS:
            return self.format
        is_unique = sum(other.quant == self.quant for other in known) <= 1
        return self.quant if self.quant and is_unique else self.files[0].path

    def missing_parts(self) -> list[str]:
        """Return the names of parts that the names of the other parts announce."""
        paths = {file.path for file in self.files}
        return sorted({part for path in paths for part in parts_of(path)} - paths)


def quant_of(path: str) -> str:
    """Return the quant that a GGUF file's name, or else its folder, is labelled with; empty without a label."""
    stem = without_part(path)
    found = [match[1] for match in _QUANT.finditer(stem[: -len(".gguf")])]
    return found[-1].upper() if found else ""


def variants(files: Iterable[RepoFile]) -> list[Variant]:
    """Return the variants of a repository: safetensors first, then GGUF by size."""
    files = sorted(files)
    top = [file for file in files if "/" not in file.path and file.path.endswith(".safetensors")]
    # Some repositories have the same weights once more, as consolidated.safetensors.
    chosen = [file for file in top if file.path.startswith("model")] or top
    groups: dict[str, list[RepoFile]] = {}
    for file in files:
        if file.path.lower().endswith(".gguf") and not _NO_MODEL.search(file.path):
            groups.setdefault(without_part(file.path), []).append(file)
    gguf = [Variant(GGUF, quant_of(path), tuple(parts)) for path, parts in groups.items()]
    gguf.sort(key=lambda variant: variant.num_bytes)
    return [Variant(SAFETENSORS, "", tuple(chosen)), *gguf] if chosen else gguf


def choose(name: str, files: Sequence[RepoFile], *, quant: str = "", file: str = "") -> Variant:
    """Return the variant of the repository `name` that is asked for by `quant` or `file`, or by neither.

    Raises:
        ModelRefused: none fits, or several do; the message lists the variants with their sizes.
    """
    known = variants(files)
    gguf = [variant for variant in known if variant.format == GGUF]
    if file or quant:
        fitting = matching(gguf, quant, file)
    else:
        fitting = known[:1] if known and known[0].format == SAFETENSORS else _by_default(gguf)
    if len(fitting) == 1:
        return fitting[0]
    if not known:
        raise rejected(_no_weights(name, files))
    wanted = f"{name}:{quant}" if quant else f"{name}/{file}" if file else name
    if fitting:
        listed = ", ".join(f"{name}/{variant.files[0].path} ({size_text(variant.num_bytes)})" for variant in fitting)
        raise rejected(f"{wanted} is not one model but {len(fitting)}; give the file: {listed}.")
    if not gguf:
        raise rejected(f"{name} has no GGUF files; give {name} for its safetensors.")
    labels = [variant.label_among(gguf) for variant in gguf]
    listed = ", ".join(f"{label} ({size_text(variant.num_bytes)})" for label, variant in zip(labels, gguf, strict=True))
    what = f"There is no {wanted}" if quant or file else f"{name} has several GGUF variants"
    separator = ":" if labels[0] == gguf[0].quant else "/"
    raise rejected(f"{what}; give one of these, as {name}{separator}{labels[0]}: {listed}.")


def matching(known: Iterable[Variant], quant: str, file: str) -> list[Variant]:
    """Return the GGUF variants that are asked for by a file, any part of a split one, or else by a quant."""
    gguf = [variant for variant in known if variant.format == GGUF]
    if file:
        return [variant for variant in gguf if file in {part.path for part in variant.files}]
    # Exact labels first; then those with a prefix such as `UD-`, which makers of quants add.
    exact = [variant for variant in gguf if variant.quant == quant.upper()]
    return exact or [variant for variant in gguf if variant.quant.endswith("-" + quant.upper())]


def needed(files: Iterable[RepoFile], variant: Variant) -> list[RepoFile]:
    """Return the files that a variant needs: the small ones beside it first, then its weights."""
    small = [file for file in files if "/" not in file.path and PurePosixPath(file.path).suffix in _SMALL]
    if variant.format == GGUF:  # an index of safetensors would announce shards that are not taken
        small = [file for file in small if not file.path.endswith(".index.json")]
    return [*sorted(small), *variant.files]


def _by_default(gguf: list[Variant]) -> list[Variant]:
    for quant in DEFAULT_QUANTS:
        if fitting := [variant for variant in gguf if variant.quant == quant]:
            return fitting
    return gguf if len(gguf) == 1 else []


def _no_weights(name: str, files: Iterable[RepoFile]) -> str:
    pickled = next((file.path for file in files if file.path.endswith(_PICKLED)), None)
    if pickled:
        return (
            f"{name} has only pickled weights ({pickled}), which can run code when they are opened; take a version "
            "with safetensors or GGUF."
        )
    return f"{name} has neither safetensors nor GGUF files, so it is no model that can be served."
