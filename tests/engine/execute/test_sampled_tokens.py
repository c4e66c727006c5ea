"""The tokens that the kernels draw are the sampler's, whatever a request asks for: step by step, guesses and all."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from app.contract.sampling_params import SamplingParams
from app.engine.execute.cpu.batch import BatchState
from app.engine.execute.cpu.sampling_table import SampleRecord
from app.engine.execute.host_sampler import Sampler
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import Chunk, Chunks, RowStart, SampleLogprobs, SampleRow, StepPlan
from app.kernels.cpu.library import NativeLibrary, load_library

EOS = (1,)
NUM_ROWS, MAX_GUESS = 3, 2
NUM_LOGIT_ROWS = 16


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    """The native kernels."""
    found = load_library()
    if found is None:
        pytest.skip("no native kernels here")
    return found


def params(vocab: int) -> st.SearchStrategy[dict[str, object]]:
    """Any mixture of what a request can ask of a draw; the tokens named are near to each other, so that they meet."""
    tokens = st.one_of(st.integers(0, 40), st.integers(vocab - 3, vocab - 1))
    return st.fixed_dictionaries(
        {"seed": st.integers(0, 2**64 - 1), "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0])},
        optional={
            "top_k": st.sampled_from([-1, 1, 9, 300]),
            "top_p": st.sampled_from([0.05, 0.6, 0.95, 0.999]),
            "min_p": st.sampled_from([0.02, 0.5]),
            "presence_penalty": st.sampled_from([-1.5, 0.5, 2.0]),
            "frequency_penalty": st.sampled_from([-0.5, 0.7]),
            "repetition_penalty": st.sampled_from([0.6, 1.3, 5.0]),
            "logit_bias": st.dictionaries(tokens, st.sampled_from([-100.0, -1.0, 2.5, 8.0]), max_size=300),
            "min_tokens": st.integers(0, 9),
            "stop_token_ids": st.lists(tokens, max_size=3),
            "logprobs": st.sampled_from([0, 1, 20]),
        },
    )


class Both:
    """The kernels and the sampler, with the same sequences; their tokens are compared in every step."""

    def __init__(self, library: NativeLibrary, starts: Sequence[RowStart], vocab: int, num_threads: int) -> None:
        self._library, self._num_threads = library, num_threads
        num_rows = max(each.row for each in starts)
        self._batch = BatchState(num_rows, 4, 64, 16, NUM_LOGIT_ROWS, EOS)
        self._logits_RV = torch.zeros(NUM_LOGIT_ROWS, vocab)
        buffers = self._batch.buffers
        rows, tokens = (buffers.logit_rows_R, buffers.sampled_rows_R), (buffers.ids_T, buffers.positions_T)
        self._record = SampleRecord(self._logits_RV, *rows, *tokens, buffers.sampling)
        self._sampler = Sampler(EOS)
        self.tokens = {each.row: [*each.prompt_token_ids, *each.output_token_ids] for each in starts}
        self._batch.apply(StepPlan(0, Chunks(), (), (), row_starts=tuple(starts)))
        for each in starts:
            self._sampler.start(each)

    def restart(self, start: RowStart) -> None:
        """A row starts again after a preemption: its tokens are computed once more, some in a chunk of their own."""
        self._sampler.start(start)
        tokens = (*start.prompt_token_ids, *start.output_token_ids)
        half = Chunk(start.row, start.row, 0, tokens[: len(tokens) // 2])
        rest = Chunk(start.row, start.row, len(tokens) // 2, tokens[len(tokens) // 2 : -1])
        self._batch.apply(StepPlan(0, Chunks.of((half,)), (), (), row_starts=(start,)))
        self._batch.apply(StepPlan(0, Chunks.of((rest,)), (), ()))

    def step(self, guesses: dict[int, tuple[int, ...]], logits_RV: Tensor) -> None:
        """Every row draws after its last token, and after each of its guesses."""
        chunks, drawers = [], []
        for row, tokens in self.tokens.items():
            new = (tokens[-1], *guesses.get(row, ()))
            chunks.append(Chunk(row, row, len(tokens) - 1, new))
            drawers += [SampleRow(row, row)] * len(new)
        plan = StepPlan(1, Chunks.of(chunks), tuple(range(len(drawers))), tuple(drawers))
        inputs = self._batch.apply(plan)
        self._logits_RV[: len(drawers)] = logits_RV[: len(drawers)]
        self._library.run(self._record.step.code, self._record.step.fields, inputs.num_logit_rows, self._num_threads)
        drawn, found = self._record.token_ids(len(drawers)), self._record.logprobs(len(drawers))
        positions = self._batch.sampled_positions(plan)
        expected = self._sampler.sample(logits_RV, [row for row, _ in drawers], positions)
        assert torch.equal(self._logits_RV[: len(drawers)], logits_RV[: len(drawers)]), "the raw logits were changed"
        first = 0
        for row, _, _, new in chunks:
            for place, guess in enumerate((*new[1:], None), first):
                assert drawn[place] == expected[place][0]
                check_logprobs(found.get(place), expected[place][1])
                self.tokens[row].append(drawn[place])
                if drawn[place] != guess:  # what comes after a wrong guess means nothing
                    break
            first += len(new)


def check_logprobs(found: SampleLogprobs | None, expected: SampleLogprobs | None) -> None:
    """They agree within rounding: torch adds 151,936 numbers up in float32."""
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert (found.rank, found.top_token_ids) == (expected.rank, expected.top_token_ids)
        assert found.logprob == pytest.approx(expected.logprob, abs=1e-4)
        assert found.top_logprobs == pytest.approx(expected.top_logprobs, abs=1e-4)


def some_logits(rng: random.Random, vocab: int, scale: float) -> Tensor:
    """Rows of logits in which a few tokens are likelier than the others, so that they come again."""
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    logits_RV = torch.randn(NUM_LOGIT_ROWS, vocab, generator=generator) * scale
    logits_RV[:, :40] += math.log(vocab / 40) + 2.0
    return logits_RV


@pytest.mark.parametrize(("vocab", "examples"), [(307, 100), (3_072, 40), (151_936, 5)])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_what_the_kernels_draw_is_what_the_sampler_draws(
    library: NativeLibrary, vocab: int, examples: int, num_threads: int
):
    @settings(max_examples=examples, phases=[Phase.generate])  # shrinking takes minutes
    @given(
        st.lists(params(vocab), min_size=NUM_ROWS, max_size=NUM_ROWS),
        st.sampled_from([0.1, 1.0, 3.0]),
        st.integers(0, 2**32),
    )
    def check(given: list[dict[str, object]], scale: float, seed: int) -> None:
        rng = random.Random(seed)
        starts = [
            RowStart(row, row, row % 2, RowSampling.of(SamplingParams(max_tokens=100, **each)),
                     tuple(rng.choices(range(60), k=rng.randrange(1, 9))), ())
            for row, each in enumerate(given, 1)
        ]  # fmt: skip
        both = Both(library, starts, vocab, num_threads)
        for number in range(6):
            if number == 3:
                again = starts[0]
                output = both.tokens[again.row][len(again.prompt_token_ids) :]
                both.restart(again._replace(output_token_ids=tuple(output)))
            guesses = {row: tuple(rng.choices(range(40), k=rng.randrange(MAX_GUESS + 1))) for row in both.tokens}
            both.step(guesses, some_logits(rng, vocab, scale))

    check()


def test_guesses_that_are_right_count_for_the_draws_after_them(library: NativeLibrary):
    """The same answer whether its tokens are drawn one by one or guessed three at a time, rightly."""
    asked = SamplingParams(temperature=0.0, frequency_penalty=0.9, repetition_penalty=1.2, max_tokens=100)
    logits_RV = torch.zeros(NUM_LOGIT_ROWS, 307)
    logits_RV[:, [5, 9, 20, 30]] = torch.tensor([3.0, 2.9, 2.0, 1.4])
    one_by_one, guessing = (
        Both(library, [RowStart(1, 1, 0, RowSampling.of(asked), (5, 7), ())], 307, 1) for _ in range(2)
    )  # fmt: skip
    for _ in range(12):
        one_by_one.step({}, logits_RV)
    answer = one_by_one.tokens[1]
    while (known := len(guessing.tokens[1])) < len(answer):
        guessing.step({1: tuple(answer[known : known + 3])}, logits_RV)
    assert guessing.tokens[1][: len(answer)] == answer
    assert len(set(answer)) > 3
