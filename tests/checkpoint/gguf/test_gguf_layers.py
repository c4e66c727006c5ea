"""Which layers of a GGUF file have a window, and how each turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.checkpoint.spec import NO_ROPE, RopeSpec
from tests.checkpoint.gguf.test_gguf_spec import read
from tests.gguf_writer import GGUF_NAMES

WINDOW = {"attention.sliding_window": 5}


@pytest.mark.parametrize(
    ("architecture", "fields", "windows", "ropes"),
    [
        ("Gemma2", {}, "5-5-", "0000"),
        ("Gemma2", {"attention.sliding_window": None}, "W-W-", "0000"),
        ("Gemma3", {}, "55555-", "111110"),
        ("Gemma3", {"attention.sliding_window": None}, "------", "000000"),
        ("Gemma3", {"attention.sliding_window_pattern": 3}, "55-55-", "110110"),
        ("Gemma3", {"attention.sliding_window_pattern": 1}, "------", "000000"),
        ("Gemma3", {"attention.sliding_window_pattern": 0}, "555555", "111111"),
        ("Olmo3", {}, "555-", "1110"),
        ("Olmo3", {"attention.sliding_window_pattern": None}, "555-", "1110"),
        ("Olmo3", {"attention.sliding_window_pattern": [True, False, True, False]}, "5-5-", "1010"),
        ("Olmo3", {"attention.sliding_window_pattern": [True] * 4}, "5555", "1111"),
        ("Olmo3", {"attention.sliding_window_pattern": [0] * 4}, "----", "0000"),
        ("Olmo2", {}, "--", "00"),
        ("Exaone4", {}, "555-", "0001"),
        ("Exaone4", {"attention.sliding_window": None}, "----", "0000"),
        ("Exaone4", {"attention.sliding_window": 0}, "----", "0000"),
        ("Ministral3", WINDOW, "55", "00"),
        ("Qwen3", WINDOW, "--", "00"),
    ],
)  # fmt: skip
def test_layers_have_the_windows_of_the_file_or_of_llama_cpp(
    architecture: str, fields: dict[str, Any], windows: str, ropes: str, tmp_path: Path
):
    """A digit is a window and a rotary embedding, W the window of 4096 that old files of Gemma 2 leave out."""
    name = GGUF_NAMES[architecture]
    spec = read(tmp_path, {f"{name}.{key}": value for key, value in fields.items()}, architecture)
    shown = {None: "-", 5: "5", 4096: "W"}
    assert "".join(shown[layer.window] for layer in spec.layers) == windows
    assert "".join(str(layer.rope) for layer in spec.layers) == ropes


def test_layers_with_windows_turn_in_their_own_way(tmp_path: Path):
    """What llama.cpp has in code: Gemma 3's local base, OLMo 3's scaling of some layers, EXAONE 4's layers without."""
    full, windowed = read(tmp_path, architecture="Gemma3").ropes
    assert (full.theta, full.kind, full.factor) == (100000.0, "linear", 8.0)
    assert windowed == RopeSpec(10000.0)
    assert read(tmp_path, {"gemma3.rope.freq_base_swa": 5000.0}, "Gemma3").ropes[1] == RopeSpec(5000.0)
    full, windowed = read(tmp_path, architecture="Olmo3").ropes
    assert (full.kind, full.attention_factor, windowed) == ("yarn", 1.25, RopeSpec(10000.0))
    rope_freqs = ("F32", np.arange(1, 9, dtype=np.float32))
    turning, still = read(tmp_path, architecture="Exaone4", rope_freqs=rope_freqs).ropes
    assert (turning.kind, still) == ("divisors", NO_ROPE)
