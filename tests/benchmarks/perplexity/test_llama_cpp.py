"""Files of llama.cpp's predictions are read window by window, and its program is called as it wants to be."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.perplexity.llama_cpp import predict, read_windows

FAKE = """#!/bin/sh
echo "$@" >"$0.calls"
"""


def test_every_window_has_its_tokens_and_the_predictions_of_its_second_half(tmp_path):
    """With an odd vocabulary, whose rows are padded."""
    size, vocab, windows = 6, 3, 2
    tokens = np.arange(size * windows, dtype=np.int32)
    rows = np.zeros((windows, 2, 4 + 4), np.uint16)
    rows[..., :4] = np.array([0.5, -4.0], np.float32).view(np.uint16)
    rows[1, 0, 4:7] = [8, 0, 2]
    sizes = np.array([size, vocab, windows], np.int32)
    (tmp_path / "out").write_bytes(b"_logits_" + sizes.tobytes() + tokens.tobytes() + rows.tobytes())
    first, second = read_windows(tmp_path / "out")
    assert (first.tokens, first.first) == ([0, 1, 2, 3, 4, 5], 3)
    assert second.tokens == [6, 7, 8, 9, 10, 11]
    assert second.logprobs_TV.tolist() == [[0.0, -4.0, -3.0], [-4.0, -4.0, -4.0]]
    assert second.known_TV.tolist() == [[True, False, True], [False, False, False]]


def test_another_file_is_rejected(tmp_path):
    (tmp_path / "out").write_bytes(b"GGUF0000")
    with pytest.raises(ValueError, match="_logits_"):
        list(read_windows(tmp_path / "out"))


def test_the_program_gets_the_text_and_the_size_of_windows(tmp_path):
    program = tmp_path / "llama-perplexity"
    program.write_text(FAKE)
    program.chmod(0o755)
    predict(program, Path("m.gguf"), tmp_path / "out", 3, 512, 2)
    call = Path(f"{program}.calls").read_text()
    assert "perplexity/prose.txt -c 512 -b 512 --chunks 3 -t 2" in call
    assert call.endswith(f"--kl-divergence-base {tmp_path}/out\n")
