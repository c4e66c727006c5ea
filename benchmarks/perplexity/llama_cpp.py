"""What llama.cpp predicts at the positions of a text: the file that `llama-perplexity --kl-divergence-base` writes.

The text is cut into windows; predictions are those of their second halves. Numbers are log-probabilities in 16 bits,
each position with a scale of its own (an error of about 1e-4). Those that are more than 16 under the likeliest are
raised to that: of 49,152 tokens they may add 0.5 % to the sum of probabilities.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.perplexity.text import FILE

MAGIC = b"_logits_"
LIMIT_S = 900.0


class Window(NamedTuple):
    """Tokens, the first position with a prediction, and log-probabilities [T, V]: of all from there but the last.

    Attributes:
        known_TV: which of them are not the least: that one may stand for anything below.
    """

    tokens: list[int]
    first: int
    logprobs_TV: Tensor
    known_TV: Tensor


def predict(program: Path, model: Path, out: Path, num_windows: int, size: int, num_threads: int) -> None:
    """Let llama.cpp predict the first windows of the text, into `out`. Blocks.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it failed, or took too long.
    """
    command = [
        str(program), "-m", str(model), "-f", str(FILE), "-c", str(size), "-b", str(size), "--chunks", str(num_windows),
        "-t", str(num_threads), "-ngl", "0", "--kl-divergence-base", str(out),
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, check=True, timeout=LIMIT_S)


def read_windows(file: Path) -> Iterator[Window]:
    """Yield the windows of a file that `predict` wrote, read one at a time."""
    with file.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{file} does not begin with {MAGIC!r}")
        size, vocab_size, num_windows = np.fromfile(stream, np.int32, 3).tolist()
        tokens = np.fromfile(stream, np.int32, num_windows * size).reshape(num_windows, size)
        num_rows, width = size - 1 - size // 2, 4 + (vocab_size + 1) // 2 * 2
        for window in tokens:
            rows = np.fromfile(stream, np.uint16, num_rows * width).reshape(num_rows, width)
            factors = torch.from_numpy(rows[:, :4].copy().view(np.float32))  # scale, least
            steps = torch.from_numpy(rows[:, 4 : 4 + vocab_size].astype(np.float32))
            known = steps > 0
            yield Window(window.tolist(), size // 2, steps.mul_(factors[:, :1]).add_(factors[:, 1:]), known)
