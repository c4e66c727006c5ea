"""Biases, penalties and the minimum length in the native sampling kernel."""

from __future__ import annotations

import random

import numpy as np
import torch

from app.kernels.cpu.library import NativeLibrary
from app.kernels.cpu.records import Penalties
from tests.kernels.cpu.sampling import Batch, RowParams

_KEPT: list[np.ndarray] = []  # the arrays that records point to


def numbers(values: object, dtype: type = np.int32) -> int:
    """The address of an array that is kept alive."""
    _KEPT.append(np.array(list(values), dtype))
    return _KEPT[-1].ctypes.data


def make_penalties(
    biases: dict[int, float] | None = None, seen: dict[int, int] | None = None, endings: tuple[int, ...] = (),
    **numbers_of: float,
) -> Penalties:  # fmt: skip
    """A penalties record; `seen` has twice the count, plus 1 if the token is in the prompt."""
    biases, seen = biases or {}, seen or {}
    return Penalties(
        numbers(biases), numbers(biases.values(), np.float32), numbers(seen), numbers(seen.values()), numbers(endings),
        len(biases), len(seen), len(endings), **{"repetition": 1.0, **numbers_of},
    )  # fmt: skip


def order(library: NativeLibrary, logits: list[float], wanted: Penalties, position: int = 4, **step: object) -> list:
    """The possible tokens, best first: each is sampled, then made impossible in the raw logits."""
    raw, found = torch.tensor(logits), []
    while True:
        batch = Batch(raw[None].clone(), [RowParams(0.0, penalties=wanted)], **{"positions": [position], **step})
        (token,) = batch.sample(library)
        assert torch.equal(batch.logits_RV[0], raw), "the raw logits were changed"
        if raw[token] == -torch.inf or token in found:
            return found
        found.append(token)
        raw[token] = -torch.inf


def test_biases_are_applied_before_penalties_and_stop_tokens_last(library: NativeLibrary):
    """Token 2: (1 + 3) / 2; token 3: (-1 - 1) · 2; stop token 4 is impossible with any bias."""
    wanted = make_penalties(
        {2: 3.0, 3: -1.0, 4: 100.0}, {2: 1, 3: 1}, (4,), repetition=2.0, num_prompt=3, min_tokens=9, num_tokens=5
    )
    logits = [1.9, 2.1, 1.0, -1.0, 0.0, -3.9, -4.1]
    assert order(library, logits, wanted) == [1, 2, 0, 5, 3, 6]


def test_presence_and_frequency_count_only_the_output(library: NativeLibrary):
    """Token 0 is in the prompt, 1 twice in the output, 2 in both, 3 once in the output."""
    wanted = make_penalties({}, {0: 1, 1: 4, 2: 7, 3: 2}, presence=1.0, frequency=0.5, num_prompt=3, num_tokens=5)
    assert order(library, [1.0, 2.9, 3.3, 2.6, 0.95], wanted) == [3, 0, 4, 1, 2]


def test_stop_tokens_are_possible_from_the_minimum_length_on(library: NativeLibrary):
    wanted = make_penalties(endings=(1, 2), num_prompt=3, min_tokens=2)
    sampled = [order(library, [1.0, 9.0, 8.0], wanted, position)[0] for position in range(2, 6)]
    assert sampled == [0, 0, 1, 1], "the sampled token is at the next position"


def test_later_tokens_of_the_step_do_not_count(library: NativeLibrary):
    """Draft tokens 1, 1 and 2 are at positions 4 to 6; the rows before the first and after each are sampled."""
    wanted = make_penalties({}, {1: 4, 2: 2}, frequency=1.0, repetition=2.0, num_prompt=3, num_tokens=7)
    step = {"positions": [3, 4, 5, 6], "ids": [0, 1, 1, 2]}
    logits = [2.0, 2.3, 2.2]
    firsts = [order(library, logits, wanted, rows=[row], **step) for row in range(4)]
    assert firsts == [[1, 2, 0], [2, 0, 1], [2, 0, 1], [0, 2, 1]]


def test_ids_outside_of_the_vocabulary_are_ignored(library: NativeLibrary):
    outside = make_penalties({5: 9.0, -1: 9.0}, {7: 3, 2**31 - 1: 3}, (6, -2), num_prompt=9, min_tokens=9, presence=1.0)
    assert order(library, [1.0, 3.0, 2.0], outside) == [1, 2, 0]


def test_adjusted_rows_depend_neither_on_the_batch_nor_on_threads(library: NativeLibrary):
    """In any batch with rows without penalties, also with filters and log-probabilities."""
    rng = random.Random(5)
    logits_RV = torch.randn(24, 3001, generator=torch.Generator().manual_seed(0)) * 2
    params = [
        RowParams(
            rng.choice((0.0, 1.0, 2.0)), top_p=rng.choice((1.0, 0.9, 0.3)), seed=row, num_logprobs=rng.choice((-1, 3))
        )
        for row in range(24)
    ]
    for each in params[::2]:
        tokens = rng.sample(range(3001), 400)
        biases = {token: rng.uniform(-5, 5) for token in tokens[:200]}
        seen = {token: rng.randrange(6) for token in tokens[100:]}
        factors = {"presence": 0.7, "frequency": 0.3, "repetition": 1.3}
        each.penalties = make_penalties(biases, seen, tuple(tokens[:5]), num_prompt=2, min_tokens=60, **factors)
    positions = [rng.randrange(120) for _ in params]
    alone = [Batch(logits_RV[[row]], [params[row]], [positions[row]]).sample(library)[0] for row in range(24)]
    for num_threads in (1, 2, 5):
        for _ in range(5):
            rows = rng.choices(range(24), k=rng.randrange(1, 30))
            batch = Batch(logits_RV[rows], [params[row] for row in rows], [positions[row] for row in rows])
            assert batch.sample(library, num_threads) == [alone[row] for row in rows]
