"""The files: what they really hold, and how they are made."""

from pathlib import Path

import pytest

from benchmarks.cpu.gguf import files as module
from benchmarks.cpu.gguf.cells import QWEN3, SMOLLM2, SOURCE
from benchmarks.cpu.gguf.files import Files, contents
from benchmarks.side import SideFailed
from tests.gguf_writer import tiny_gguf

FAKE_QUANTIZE = """#!/bin/sh
echo "$@" >>"$0.calls"
[ -e "$0.fails" ] && { echo "no such type"; exit 1; }
cp "$2" "$3"
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Files that a fake llama-quantize makes of a fake SmolLM2."""
    program = tmp_path / "llama-quantize"
    program.write_text(FAKE_QUANTIZE)
    program.chmod(0o755)
    model = tmp_path / "real.gguf"
    model.write_text("weights")
    monkeypatch.setattr(module.smollm2, "local_file", lambda: model)
    monkeypatch.setattr(module.smollm2, "is_there", model.exists)
    return Files(tmp_path, tmp_path)


def test_contents_are_the_types_of_the_matrices_by_their_weights(tmp_path):
    file = tiny_gguf(tmp_path / "m.gguf", kind="Q8_0")
    found = contents(file)
    assert found.types == {"Q8_0": 1.0}
    assert found.file_bytes == file.stat().st_size > found.matrix_bytes > 0
    assert found.matrix_bytes % 34 == 0
    assert str(found).endswith("MB: Q8_0 100%")


def test_an_embedding_that_is_not_the_head_is_not_multiplied(tmp_path):
    tied, untied = (
        contents(tiny_gguf(tmp_path / f"{is_tied}.gguf", kind="Q8_0", tie_word_embeddings=is_tied))
        for is_tied in (True, False)
    )
    assert untied.file_bytes > tied.file_bytes and untied.matrix_bytes == tied.matrix_bytes


def test_experts_are_counted_by_layers(tmp_path):
    found = contents(tiny_gguf(tmp_path / "m.gguf", "Mixtral", kind="Q8_0", num_local_experts=6))
    assert found.num_experts == 6 and len(found.expert_bytes) == 2 and len(set(found.expert_bytes)) == 1
    assert found.step_bytes([6, 6]) == found.matrix_bytes
    assert found.step_bytes([3, 0]) == found.matrix_bytes - 1.5 * found.expert_bytes[0]


def test_files_of_dummies_are_made_at_once_and_deleted_after_use(files, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(Files, "_run", lambda self, command, environ: made.append(command) or Path(command[-1]).touch())
    file = files.file("mixtral", "Q8_0")
    assert file.exists() and made[0][1:5] == ["-m", "benchmarks.peers.write_dummy_gguf", "mixtral", "Q8_0"]
    files.discard("mixtral", "Q8_0")
    assert not file.exists()
    kept = tmp_path / f"{SMOLLM2}.Q8_0.gguf"
    kept.touch()
    files.discard(SMOLLM2, "Q8_0")
    assert kept.exists()


def test_a_file_is_quantized_once_from_the_decoded_weights(files, tmp_path):
    for _ in range(2):
        assert files.file(SMOLLM2, "Q4_K_M").read_text() == "weights"
    calls = Path(tmp_path / "llama-quantize.calls").read_text().splitlines()
    assert [call.split()[3] for call in calls] == ["F32", "Q4_K_M"]
    assert calls[0].split()[1].endswith("real.gguf") and calls[1].split()[1].endswith(f"{SMOLLM2}.{SOURCE}.gguf")
    assert not list(tmp_path.glob("*.part"))


def test_a_file_that_cannot_be_made_is_reported_and_left_out(files, tmp_path):
    (tmp_path / "llama-quantize.fails").touch()
    with pytest.raises(SideFailed, match="no such type"):
        files.file(SMOLLM2, "Q4_0")
    (tmp_path / "real.gguf").unlink()
    with pytest.raises(SideFailed, match="make real-model"):
        files.file(SMOLLM2, "Q4_0")
    (tmp_path / "llama-quantize").unlink()
    (tmp_path / f"{QWEN3}.{SOURCE}.gguf").touch()
    with pytest.raises(SideFailed, match="llama-quantize"):
        files.file(QWEN3, "Q4_0")
