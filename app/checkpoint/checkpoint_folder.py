"""A Hugging Face checkpoint folder, read without torch: its location, JSON files and the headers of its tensors.

Unsafe and damaged files are rejected here, by name, before memory is allocated for weights. Only safetensors files are
read, because other formats can run code when they are opened.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.checkpoint.file_state import FileState
from app.checkpoint.stored_tensor import StoredTensor
from app.checkpoint.tensor_types import TensorType
from app.contract.errors import ModelRefused

EMBEDDED = "guide"
MAX_JSON_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 100 * 2**20
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
LFS_POINTER = b"version https://git-lfs"
LFS_ADVICE = "is only a pointer to the file in Git LFS; run `git lfs pull` in the checkout, or download the model again"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of a model folder; `tensors` is None if only random weights are needed.

    `states` are those of the files with tensors.
    """

    folder: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: dict[str, StoredTensor] | None
    revision: str
    states: dict[Path, FileState] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, *, with_weights: bool = True) -> Checkpoint:
        """Read config.json, generation_config.json and all safetensors headers of `folder`.

        Raises:
            ModelRefused: a file is missing, damaged or unsafe; the message names it.
        """
        if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
            raise rejected(f"{folder} is an adapter; merge it into its model's weights, and give that folder.")
        file = folder / "config.json"
        content = _read(file)
        config = _parse(file, content)
        generation = folder / "generation_config.json"
        states: dict[Path, FileState] = {}
        tensors = _read_headers(_weight_files(folder), states) if with_weights else None
        if tensors is not None and not tensors:
            raise rejected(f"The weight files of {folder} contain no tensors; download the model again.")
        generation_config = read_json(generation) if generation.exists() else {}
        return cls(folder, config, generation_config, tensors, _revision(folder, content), states)

    @property
    def created(self) -> int:
        """When config.json was last changed, in seconds since 1970."""
        return int((self.folder / "config.json").stat().st_mtime)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model: as config.json, the hub's cache and its folder have it, without its owner."""
        given = self.config.get("_name_or_path")
        in_hub = self.folder.parents[1].name if self.folder.parent.name == "snapshots" else ""
        found = (given if isinstance(given, str) else "", in_hub.replace("--", "/"), self.folder.name)
        return tuple(name.rstrip("/").rpartition("/")[2] for name in found if name)


def rejected(message: str) -> ModelRefused:
    """Return the error for the setting `model`, which names a model that cannot be served."""
    return ModelRefused(message, param="model")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Refuse the model at `path` if a file cannot be read in the block: no permission, or it has just been removed.

    Raises:
        ModelRefused: the message names the file.
    """
    try:
        yield
    except OSError as error:
        raise rejected(f"Cannot read {error.filename or path}: {error.strerror}.") from None


def check_no_pointer(file: Path, begin: bytes) -> None:
    """Check that a file, which begins with `begin`, is not what Git leaves in its place without Git LFS. Any thread.

    Raises:
        ModelRefused: it is.
    """
    if begin.startswith(LFS_POINTER):
        raise rejected(f"{file} {LFS_ADVICE}.")


def read_json(file: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        ModelRefused: the file is missing, too large, or not a JSON object.
    """
    return _parse(file, _read(file))


def _read(file: Path) -> bytes:
    """Return the bytes of a JSON file; raises as `read_json` does."""
    try:
        if not file.is_file() and file.exists():
            raise rejected(f"{file} is not a regular file.")
        if file.stat().st_size > MAX_JSON_BYTES:
            raise rejected(
                f"{file} is larger than {MAX_JSON_BYTES} bytes, the limit for JSON files; download the model again."
            )
        content = file.read_bytes()
    except FileNotFoundError:
        raise rejected(f"{file.parent} has no {file.name}; give a Hugging Face checkpoint folder.") from None
    except OSError as error:
        raise rejected(f"Cannot read {file}: {error.strerror}.") from None
    check_no_pointer(file, content)
    return content


def _parse(file: Path, content: bytes) -> dict[str, Any]:
    """Return the object in the bytes of a JSON file; raises as `read_json` does."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise rejected(f"{file} is not valid JSON; download the model again.") from None
    if not isinstance(value, dict):
        raise rejected(f"{file} does not contain a JSON object; download the model again.")
    return value


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise rejected(f"{index} has no weight_map; download the model again.")
        names = sorted(set(weight_map.values()))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise rejected(
                    f"{index} points outside its folder ({name!r}), which is unsafe; download the model again."
                )
            if not (folder / name).exists():
                raise rejected(f"{folder} lacks the shard {name!r} of its index; download the model again.")
        return [folder / name for name in names]
    files = sorted(folder.glob("*.safetensors"))
    if files:
        return files
    pickled = [file.name for pattern in _PICKLED for file in sorted(folder.glob(pattern))]
    if pickled:
        raise rejected(
            f"{folder} contains only pickled weights ({pickled[0]}), which can run code when they are opened; "
            "convert them to safetensors (transformers: save_pretrained)."
        )
    raise rejected(f"{folder} has no *.safetensors; download the weights, or use --load-format dummy.")


def _read_headers(files: Iterable[Path], states: dict[Path, FileState]) -> dict[str, StoredTensor]:
    """Return the tensors of all files; fills `states`."""
    entries: dict[str, StoredTensor] = {}
    for file in files:
        found, states[file] = _read_header(file)
        for name, entry in found.items():
            if entries.setdefault(name, entry) is not entry:
                raise rejected(f"{file} contains {name} a second time; download the model again.")
    return entries


def _read_header(file: Path) -> tuple[dict[str, StoredTensor], FileState]:
    """Check one safetensors file (8 bytes header length, JSON header, data) without reading its data."""
    try:
        if not file.is_file():
            raise rejected(f"{file} is not a regular file.")
        with file.open("rb") as stream:
            state = FileState.of(stream)
            size = state.num_bytes
            begin = stream.read(len(LFS_POINTER))
            check_no_pointer(file, begin)
            length = int.from_bytes(begin[:8], "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise _damaged(file, "it is truncated, or not a safetensors file")
            stream.seek(8)
            header = stream.read(length)
    except OSError as error:
        raise rejected(f"Cannot read {file}: {error.strerror}.") from None
    try:
        values = {name: value for name, value in json.loads(header).items() if name != "__metadata__"}
        entries = {name: _entry(file, name, value, 8 + length) for name, value in values.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _damaged(file, "its header is damaged") from None
    _check_ranges(file, entries, size, 8 + length)
    return entries, state


def _entry(file: Path, name: str, value: dict[str, Any], data_begin: int) -> StoredTensor:
    """Return where a tensor is, whose header has its place behind `data_begin`."""
    if not name.isprintable():  # names are shown in messages
        raise ValueError(name)
    begin, end = value["data_offsets"]
    shape = tuple(value["shape"])
    if not all(isinstance(number, int) and number >= 0 for number in (begin, end, *shape)):
        raise ValueError(shape)
    kind = TensorType(value["dtype"], 1, ITEM_BYTES.get(value["dtype"], 0))  # types that are not known have any size
    if kind.block_bytes and end - begin != kind.num_bytes(math.prod(shape)):
        raise ValueError(shape)
    return StoredTensor(file, kind, shape, data_begin + begin, data_begin + end)


def _check_ranges(file: Path, entries: dict[str, StoredTensor], size: int, data_begin: int) -> None:
    """Check that the tensors fill the file from `data_begin` to its end without gaps, as the format requires."""
    position = data_begin
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin < position or entry.end < entry.begin:
            raise _damaged(file, f"the data of {name} overlaps other data")
        if entry.begin > position:
            raise _damaged(file, f"{entry.begin - position} bytes before {name} belong to no tensor")
        position = entry.end
    if position > size:
        raise _damaged(file, f"it ends {position - size} bytes too early")
    if position < size:
        raise _damaged(file, f"its last {size - position} bytes belong to no tensor")


def _damaged(file: Path, what: str) -> ModelRefused:
    return rejected(f"{file} cannot be loaded: {what}; download the model again.")


def _revision(folder: Path, config: bytes) -> str:
    """Return the folder's revision: a hash of config.json, and of names, sizes and times of the weight files."""
    digest = hashlib.blake2b(config, digest_size=16)
    for file in sorted(folder.glob("*.safetensors")):
        stat = file.stat()
        digest.update(f"{file.name}:{stat.st_size}:{stat.st_mtime_ns}".encode())
    return digest.hexdigest()
