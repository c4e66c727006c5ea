"""A model as GGUF files: one, or the parts `P-00001-of-0000N.gguf` of one model. Opened without torch."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.file_parts import MAX_PARTS, parts_of
from app.checkpoint.file_state import FileState
from app.checkpoint.gguf.gguf_header import GgufHeader, read_header
from app.checkpoint.gguf.gguf_metadata import GgufMetadata
from app.checkpoint.stored_tensor import StoredTensor
from app.checkpoint.tensor_types import TensorType

# By general.type or general.architecture: files that are no language models.
_NOT_MODELS = {
    "mmproj": "the image or audio part (mmproj) of a model; give the file of the language model",
    "clip": "the image or audio part (mmproj) of a model; give the file of the language model",
    "adapter": "a LoRA adapter; give a complete model, or merge the adapter into one",
    "controlvector": "a control vector; give a complete model",
    "imatrix": "an importance matrix, with which models are quantized; give the model's file",
}


@dataclass(frozen=True, slots=True)
class GgufFiles:
    """The contents of a model's GGUF files, by the names that tensors have in them, and the state of each file."""

    metadata: GgufMetadata
    tensors: dict[str, StoredTensor]
    revision: str
    created: int
    states: dict[Path, FileState]

    @classmethod
    def open(cls, file: Path) -> GgufFiles:
        """Read the headers of `file` and of the other parts of its model; any part may be given. Blocks.

        Raises:
            ModelRefused: a part is missing or damaged, or the file is no language model; the message names it.
        """
        headers = _read_parts(read_header(file))
        first = headers[0]
        _check_contents(first)
        tensors: dict[str, StoredTensor] = {}
        for header in headers:
            for name, tensor in header.tensors.items():
                if tensors.setdefault(name, tensor) is not tensor:
                    raise rejected(f"{header.file} contains {name} a second time; download the model again.")
        if not tensors:
            raise rejected(f"{file} contains no tensors, only a vocabulary; give the file with the weights.")
        announced = first.fields.get("split.tensors.count", len(tensors))
        if announced != len(tensors):
            raise rejected(
                f"The parts of {first.file} contain {len(tensors)} tensors instead of {announced!r:.40}; download the "
                "model again."
            )
        states = {header.file: header.state for header in headers if header.state is not None}
        created = states[first.file].changed_ns // 10**9
        return cls(GgufMetadata(first.file, first.fields), tensors, _revision(headers), created, states)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model: by its metadata, also by parts (`Qwen2.5 7B Instruct`), and by its file."""
        fields = self.metadata.fields
        name, *parts = (fields.get(f"general.{key}") for key in ("name", "basename", "size_label", "finetune"))
        whole = " ".join(part for part in parts if isinstance(part, str))
        found = dict.fromkeys([name, parts[0], whole, self.metadata.file.name])
        return tuple(each for each in found if isinstance(each, str) and each)

    @property
    def matrix_types(self) -> list[TensorType]:
        """The types of the matrices, the one of most weights first."""
        counts: Counter[TensorType] = Counter()
        for tensor in self.tensors.values():
            if len(tensor.shape) > 1:
                counts[tensor.type] += tensor.num_weights
        return [kind for kind, _ in counts.most_common()]


def _read_parts(given: GgufHeader) -> list[GgufHeader]:
    """Return the headers of all parts of the model, in their order."""
    count = given.fields.get("split.count", 1)
    if type(count) is not int or not 0 <= count <= MAX_PARTS:
        raise rejected(f"{given.file}: split.count is {count!r:.40}; it must be between 0 and {MAX_PARTS}.")
    if count <= 1:
        return [given]
    names = parts_of(given.file.name)
    if len(names) != count or given.file.name not in names:
        raise rejected(
            f"{given.file} is one of {count} parts, but its name does not end in -00001-of-{count:05}.gguf; give the "
            "parts their names back."
        )
    headers = []
    for number, name in enumerate(names, 1):
        file = given.file.with_name(name)
        if not file.exists():
            raise rejected(f"{file} is missing, a part of {given.file.name}; download all {count} parts.")
        header = given if file == given.file else read_header(file)
        if header.fields.get("split.no") != number - 1 or header.fields.get("split.count") != count:
            raise rejected(f"{file} is not part {number} of {count}, as its name says; download the model again.")
        headers.append(header)
    return headers


def _check_contents(header: GgufHeader) -> None:
    """Refuse files that have the format, but hold something else than a language model."""
    for key in ("general.type", "general.architecture"):
        value = header.fields.get(key)
        if isinstance(value, str) and value in _NOT_MODELS:
            raise rejected(f"{header.file} is {_NOT_MODELS[value]}.")


def _revision(headers: list[GgufHeader]) -> str:
    """Return a hash of the headers, sizes and times of the files."""
    digest = hashlib.blake2b(digest_size=16)
    for header in headers:
        assert header.state is not None  # its file is on this machine
        digest.update(header.digest + f"{header.state.num_bytes}:{header.state.changed_ns}".encode())
    return digest.hexdigest()
