"""The penalties that kernels read: biases, penalties and minimum length, updated with the output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from app.contract.sampling_params import SamplingParams
from app.engine.execute.cpu.row_penalties import PromptIds, RowPenalties
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import RowStart
from app.kernels.cpu.records import Penalties

PROMPT = (9, 5, 9, 7)


class CountingTuple(tuple):
    """A tuple that counts how often it is read from end to end."""

    num_reads = 0

    def __iter__(self) -> Iterator[int]:
        self.num_reads += 1
        return super().__iter__()


def make_adjustments(output: tuple[int, ...] = (), eos: tuple[int, ...] = (1,), **params: object) -> RowPenalties:
    """The penalties of a sequence that just started a row."""
    return RowPenalties(RowStart(1, 1, 0, RowSampling.of(SamplingParams(**params)), PROMPT, output), eos, PromptIds())


def fields(row: RowPenalties) -> Penalties:
    """The record that the kernels read; it keeps the row alive."""
    read = Penalties.from_address(row.address)
    read.row = row
    return read


def numbers(address: int | None, count: int, kind: type = np.int32) -> list:
    """The numbers at an address of the record."""
    if not count:
        return []
    assert address
    from_memory = np.ctypeslib.as_array((np.ctypeslib.as_ctypes_type(kind) * count).from_address(address))
    return from_memory.tolist()


def token_counts(row: RowPenalties) -> dict[int, tuple[int, bool]]:
    """The count of each token in the output, and whether it is in the prompt; tokens with neither are left out."""
    read = fields(row)
    ids, entries = numbers(read.seen_ids, read.num_seen), numbers(read.seen, read.num_seen)
    assert len(set(ids)) == len(ids), "a token has one entry"
    return {token: (entry >> 1, bool(entry & 1)) for token, entry in zip(ids, entries, strict=True) if entry}


def test_only_requested_adjustments_are_present():
    read = fields(make_adjustments(logit_bias={7: 2.5, 3: -1.0}))
    assert (numbers(read.bias_ids, read.num_biases), numbers(read.biases, 2, np.float32)) == ([7, 3], [2.5, -1.0])
    assert (read.num_seen, read.num_endings, read.min_tokens) == (0, 0, 0)
    read = fields(make_adjustments(min_tokens=4, stop_token_ids=[8, 1], eos=(1, 2)))
    assert numbers(read.endings, read.num_endings) == [1, 2, 8]
    assert (read.num_biases, read.num_seen, read.min_tokens, read.num_prompt) == (0, 0, 4, len(PROMPT))
    read = fields(make_adjustments(presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.25))
    assert (read.presence, read.frequency, read.repetition) == (0.5, -0.5, 1.25)


def test_the_prompt_counts_only_for_repetition():
    assert token_counts(make_adjustments(repetition_penalty=1.1)) == {5: (0, True), 7: (0, True), 9: (0, True)}
    assert token_counts(make_adjustments(presence_penalty=1.0)) == {}


def test_each_output_token_is_counted_once_when_computed():
    row = make_adjustments(repetition_penalty=1.1, presence_penalty=1.0)
    row.replace_tokens(0, PROMPT)
    for index, token in enumerate((9, 3, 9, 3, 3)):
        row.replace_tokens(len(PROMPT) + index, (token,))
    assert token_counts(row) == {5: (0, True), 7: (0, True), 9: (2, True), 3: (3, False)}
    assert fields(row).num_tokens == len(PROMPT) + 5


def test_output_before_a_preemption_is_counted_once():
    row = make_adjustments(output=(3, 9, 3), frequency_penalty=1.0)
    assert token_counts(row) == {3: (2, False), 9: (1, False)}
    row.replace_tokens(2, (9, 7, 3))  # recomputed, prompt and output in one chunk
    row.replace_tokens(5, (9, 3))
    assert token_counts(row) == {3: (2, False), 9: (1, False)}
    row.replace_tokens(7, (8,))
    assert token_counts(row) == {3: (2, False), 9: (1, False), 8: (1, False)}


def test_rejected_draft_tokens_are_not_counted():
    row = make_adjustments(frequency_penalty=1.0)
    row.replace_tokens(4, (3, 8, 8, 2))
    assert fields(row).num_tokens == 8
    row.replace_tokens(5, (8,))  # the second draft token was rejected
    row.replace_tokens(6, (6, 8))
    assert token_counts(row) == {3: (1, False), 8: (2, False), 6: (1, False)}
    assert fields(row).num_tokens == 8
    row.replace_tokens(6, (6, 8))  # the step failed, and is repeated
    assert token_counts(row) == {3: (1, False), 8: (2, False), 6: (1, False)}


def test_moved_entries_are_found():
    """There is one entry for each different token, for outputs of any length."""
    row, output = make_adjustments(repetition_penalty=1.1), [n % 700 + 4 for n in range(2000)]
    for index, token in enumerate(output):
        row.replace_tokens(4 + index, (token,))
    counts = Counter(output)
    assert token_counts(row) == {token: (counts[token], token in PROMPT) for token in counts}
    assert fields(row).num_seen == len(counts)


@pytest.mark.parametrize("num_choices", [1, 16])
def test_a_long_prompt_is_read_once_for_all_its_choices(num_choices: int):
    prompt = CountingTuple(range(250_000, 0, -1))
    prompt_ids, params = PromptIds(), SamplingParams(repetition_penalty=1.1, n=num_choices)
    rows = [
        RowPenalties(RowStart(row, row, row, RowSampling.of(params), prompt, ()), (), prompt_ids)
        for row in range(num_choices)
    ]
    assert prompt.num_reads == 1
    assert all(fields(row).num_seen == 250_000 for row in rows)
    assert numbers(fields(rows[-1]).seen_ids, 3) == [1, 2, 3]


def test_another_prompt_has_its_own_tokens():
    prompt_ids = PromptIds()
    assert [prompt_ids.of(prompt).tolist() for prompt in ((5, 2, 5), (7,), (5, 2, 5))] == [[2, 5], [7], [2, 5]]
    assert prompt_ids.of(()).tolist() == []
