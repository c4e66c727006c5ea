"""Damaged checkpoints are rejected before any weight is read: one line names the file, and torch is not imported."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from app.checkpoint import checkpoint_folder as module
from app.checkpoint.checkpoint_folder import Checkpoint, read_json
from app.checkpoint.inspection import inspect
from app.config.settings import ModelConfig
from app.contract.errors import ModelRefused
from tests.checkpoints import damaged_copy, tiny

ROOT = Path(__file__).parents[2]


def header_of(file: Path) -> tuple[dict[str, Any], bytes]:
    """A safetensors file's JSON header and its data."""
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write(file: Path, header: object, body: bytes) -> None:
    """Write a safetensors file with any header, a JSON value or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + body)


def change(**fields: Any) -> Callable[[Path], None]:
    """A way to damage a file: change the first tensor's entry in the header."""

    def damage(folder: Path) -> None:
        header, body = header_of(folder / "model.safetensors")
        name = min(name for name in header if name != "__metadata__")
        header[name] |= fields
        write(folder / "model.safetensors", header, body)

    return damage


def overlap(folder: Path) -> None:
    """Let two tensors of one size share their bytes."""
    header, body = header_of(folder / "model.safetensors")
    norms = [name for name in header if name.endswith("layernorm.weight")]
    earlier, later = sorted(norms, key=lambda name: header[name]["data_offsets"])[:2]
    header[later]["data_offsets"] = header[earlier]["data_offsets"]
    write(folder / "model.safetensors", header, body)


def shard(folder: Path, name: str) -> None:
    """Write an index that names a shard."""
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))


def twice(folder: Path) -> None:
    """Put every tensor into two files."""
    (folder / "more.safetensors").write_bytes((folder / "model.safetensors").read_bytes())


def pickled(folder: Path) -> None:
    """Leave only a pickle; opening it would run code."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cposix\nsystem\n(S'touch /tmp/pwned'\ntR.")


def truncated(num_bytes: int) -> Callable[[Path], None]:
    """A way to damage a file: cut the weights to `num_bytes` (from the end if negative)."""

    def damage(folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:num_bytes])

    return damage


def append(file: Path) -> None:
    """Append eight bytes that belong to no tensor."""
    file.write_bytes(file.read_bytes() + b"12345678")


def drop(folder: Path) -> None:
    """Remove a tensor in the middle from the header."""
    header, body = header_of(folder / "model.safetensors")
    middle = sorted((name for name in header if name != "__metadata__"), key=lambda n: header[n]["data_offsets"])[3]
    del header[middle]
    write(folder / "model.safetensors", header, body)


def unreadable(folder: Path) -> None:
    """Put a folder in the place of a file."""
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def pipe(file: Path) -> None:
    """Put a named pipe in the place of a file: opening it would block for ever."""
    file.unlink()
    os.mkfifo(file)


WEIGHTS = "model.safetensors"
DAMAGES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no config": (lambda f: (f / "config.json").unlink(), ("config.json", "checkpoint folder")),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), ("config.json", "not valid JSON")),
    "config is no object": (lambda f: (f / "config.json").write_text("[]"), ("config.json", "JSON object")),
    "config is not UTF-8": (lambda f: (f / "config.json").write_bytes(b'{"a": "\xff"}'), ("config.json", "JSON")),
    "config is nested too deep": (lambda f: (f / "config.json").write_text("[" * 10**5), ("config.json", "JSON")),
    "generation config is no JSON": (
        lambda f: (f / "generation_config.json").write_text("x"), ("generation_config.json", "not valid JSON"),
    ),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), ("no *.safetensors", "--load-format dummy")),
    "pickled only": (pickled, ("pytorch_model.bin", "run code", "safetensors")),
    "empty file": (truncated(0), (WEIGHTS, "truncated", "download")),
    "cut in the length": (truncated(5), (WEIGHTS, "truncated")),
    "cut in the header": (truncated(300), (WEIGHTS, "truncated")),
    "cut in the data": (truncated(-7), (WEIGHTS, "7 bytes too early")),
    "bytes after the data": (lambda f: append(f / WEIGHTS), (WEIGHTS, "last 8 bytes belong to no tensor")),
    "a gap in the data": (drop, (WEIGHTS, "belong to no tensor")),
    "a name that breaks the line": (
        lambda f: write(f / WEIGHTS, {"a\nb": {}}, b""), (WEIGHTS, "header is damaged"),
    ),
    "pointer of Git LFS": (
        lambda f: (f / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        ("git lfs pull",),
    ),
    **{
        f"pointer of Git LFS as {name}": (
            lambda f, name=name: (f / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
            (name, "git lfs pull"),
        )
        for name in ("config.json", "generation_config.json", "model.safetensors.index.json")
    },
    "index that breaks the line": (lambda f: shard(f, "a\nb.safetensors"), (r"a\nb.safetensors", "lacks")),
    "header is no JSON": (lambda f: write(f / WEIGHTS, b"{nonsense", b""), (WEIGHTS, "header is damaged")),
    "header is a list": (lambda f: write(f / WEIGHTS, [], b""), (WEIGHTS, "header is damaged")),
    "header is nested too deep": (lambda f: write(f / WEIGHTS, b"[" * 10**5, b""), (WEIGHTS, "header is damaged")),
    "entry is a number": (lambda f: write(f / WEIGHTS, {"x": 1}, b""), (WEIGHTS, "header is damaged")),
    "shape and bytes differ": (change(shape=[3, 3]), (WEIGHTS, "header is damaged")),
    "negative offset": (change(data_offsets=[-8, 0]), (WEIGHTS, "header is damaged")),
    "fractional shape": (change(shape=[1.5]), (WEIGHTS, "header is damaged")),
    "negative shape": (change(shape=[-1, -64]), (WEIGHTS, "header is damaged")),
    "three offsets": (change(data_offsets=[0, 1, 2]), (WEIGHTS, "header is damaged")),
    "offsets backwards": (change(dtype="F8_E4M3", data_offsets=[99, 3]), (WEIGHTS,)),
    "overlap": (overlap, (WEIGHTS, "overlaps")),
    "a tensor twice": (twice, ("second time", "more.safetensors")),
    "weights are a folder": (unreadable, (WEIGHTS, "not a regular file")),
    "weights are a pipe": (lambda f: pipe(f / WEIGHTS), (WEIGHTS, "not a regular file")),
    "config is a pipe": (lambda f: pipe(f / "config.json"), ("config.json", "not a regular file")),
    "no tensor in the file": (lambda f: write(f / WEIGHTS, {}, b""), ("contain no tensors",)),
    "no shard in the index": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {}}'), ("contain no tensors",),
    ),
    "index outside the folder": (lambda f: shard(f, "../secret.safetensors"), ("../secret.safetensors", "unsafe")),
    "index with an absolute path": (lambda f: shard(f, "/etc/passwd.safetensors"), ("/etc/passwd", "unsafe")),
    "index of pickles": (lambda f: shard(f, "pytorch_model.bin"), ("pytorch_model.bin", "unsafe")),
    "index names a missing shard": (lambda f: shard(f, "other.safetensors"), ("other.safetensors", "lacks the shard")),
    "index without a map": (
        lambda f: (f / "model.safetensors.index.json").write_text("{}"), ("index.json", "weight_map"),
    ),
    "index of numbers": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": 1}}'), ("weight_map",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_rejected_by_one_line_that_names_the_file(name: str, tmp_path: Path):
    damage, words = DAMAGES[name]
    folder = damaged_copy(tiny("Llama"), tmp_path / "model")
    damage(folder)
    with pytest.raises(ModelRefused) as rejection:
        Checkpoint.open(folder)
    message = rejection.value.message
    assert "\n" not in message and len(message) < 600
    assert all(word in message for word in words), message
    assert rejection.value.param == "model" and rejection.value.exit_code == 2


def test_rejecting_a_folder_does_not_import_torch(tmp_path: Path):
    """Missing, truncated, pickled, unknown architecture: each in a process of its own would take half a minute."""
    folders = {name: damaged_copy(tiny("Llama"), tmp_path / name) for name in ("truncated", "pickled", "unknown")}
    truncated(1000)(folders["truncated"])
    pickled(folders["pickled"])
    (folders["unknown"] / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    names = [str(tmp_path / "missing"), *map(str, folders.values())]
    program = (
        "import sys\nfrom app.config.settings import ModelConfig\nfrom app.contract.errors import ModelRefused\n"
        "from app.checkpoint.inspection import inspect\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        inspect(ModelConfig(model=name))\n"
        "    except ModelRefused as error:\n        print(error.message)\n"
        "assert not {'torch', 'transformers', 'safetensors'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for line, word in zip(lines, ("no folder", "truncated", "pickled", "GPT2LMHeadModel"), strict=True):
        assert word in line


def test_every_tensor_is_found_with_its_offset():
    folder = tiny("Llama")
    opened = Checkpoint.open(folder)
    raw = (folder / WEIGHTS).read_bytes()
    tensors = load_file(folder / WEIGHTS)
    assert opened.tensors.keys() == tensors.keys()
    for name, entry in opened.tensors.items():
        assert entry.shape == tuple(tensors[name].shape) and entry.type.name == "F32"
        assert raw[entry.begin : entry.end] == tensors[name].numpy().tobytes()


def test_a_sharded_checkpoint_has_the_tensors_of_a_single_file():
    single, sharded = Checkpoint.open(tiny("Qwen2")), Checkpoint.open(tiny("Qwen2", num_shards=3))
    assert {name: entry.shape for name, entry in single.tensors.items()} == {
        name: entry.shape for name, entry in sharded.tensors.items()
    }
    assert len({entry.file for entry in sharded.tensors.values()}) == 3


def test_only_the_shards_of_the_index_are_read(tmp_path: Path):
    """Some checkpoints carry a second copy of the weights beside the shards."""
    folder = damaged_copy(tiny("Qwen2", num_shards=3), tmp_path / "model")
    (folder / "consolidated.safetensors").write_bytes(b"not read")
    assert len(Checkpoint.open(folder).tensors) == len(Checkpoint.open(tiny("Qwen2")).tensors)


def test_dummy_weights_need_only_a_config(tmp_path: Path):
    (tmp_path / "config.json").write_bytes((tiny("Llama") / "config.json").read_bytes())
    opened = inspect(ModelConfig(model=str(tmp_path), load_format="dummy"))
    spec = opened.spec
    assert opened.tensors is None and spec.vocab_size == 307


def test_a_folder_of_an_adapter_is_refused_as_one(tmp_path: Path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelRefused, match="is an adapter; merge it"):
        Checkpoint.open(tmp_path)


def test_the_revision_changes_with_config_and_weights(tmp_path: Path):
    folder = damaged_copy(tiny("Llama"), tmp_path / "model")
    revisions = {Checkpoint.open(folder).revision}
    os.utime(folder / WEIGHTS, ns=(1, 1))
    revisions.add(Checkpoint.open(folder).revision)
    config = read_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 500.0}))
    revisions.add(Checkpoint.open(folder).revision)
    assert len(revisions) == 3
    assert Checkpoint.open(folder).revision in revisions


@pytest.mark.parametrize(
    ("folder", "config", "names"),
    [
        ("Qwen3-0.6B", {}, ("Qwen3-0.6B",)),
        ("models--Qwen--Qwen3-0.6B/snapshots/c0ffee", {}, ("Qwen3-0.6B", "c0ffee")),
        ("bf16", {"_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct/"}, ("SmolLM2-135M-Instruct", "bf16")),
        ("m", {"_name_or_path": 7}, ("m",)),
    ],
)
def test_a_model_is_called_as_its_config_the_hub_and_its_folder_say(folder, config, names, tmp_path: Path):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "config.json").write_text(json.dumps(config))
    assert Checkpoint.open(tmp_path / folder, with_weights=False).names == names


def test_a_configuration_of_gigabytes_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_JSON_BYTES", 100)
    (tmp_path / "config.json").write_text("{" + " " * 100 + "}")
    with pytest.raises(ModelRefused, match="larger than 100 bytes"):
        read_json(tmp_path / "config.json")


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
                    max_leaves=8)  # fmt: skip
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "I4", 7, None]) | JSON,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 80), min_size=2, max_size=2) | JSON,
    },
)


@given(st.dictionaries(st.text(max_size=4), ENTRY | JSON, max_size=3), st.binary(max_size=80))
def test_random_headers_raise_only_the_documented_error(tmp_path_factory, header: dict[str, Any], body: bytes):
    folder = tmp_path_factory.getbasetemp() / "fuzz"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    write(folder / WEIGHTS, header, body)
    try:
        opened = Checkpoint.open(folder)
    except ModelRefused as rejection:
        assert "\n" not in rejection.message
        return
    assert sum(entry.end - entry.begin for entry in opened.tensors.values()) == len(body)
    assert all(math.prod(entry.shape) >= 0 for entry in opened.tensors.values())
