"""The kernels sample the same tokens as the host sampler, for all parameters, also after draft tokens."""

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
NUM_ROWS, MAX_DRAFT = 3, 2
NUM_LOGIT_ROWS = 16


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    """The native kernels."""
    found = load_library()
    if found is None:
        pytest.skip("no native kernels here")
    return found


def params(vocab: int) -> st.SearchStrategy[dict[str, object]]:
    """Any combination of sampling parameters; the named tokens are close to each other, so that they coincide."""
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


class SamplerComparison:
    """The kernels and the host sampler with the same sequences; their tokens are compared in every step."""

    def __init__(self, library: NativeLibrary, starts: Sequence[RowStart], vocab: int, num_threads: int) -> None:
        self._library, self._num_threads = library, num_threads
        num_rows = max(each.row for each in starts)
        self._batch = BatchState(num_rows, 4, 64, 16, NUM_LOGIT_ROWS, EOS)
        self._logits_RV = torch.zeros(NUM_LOGIT_ROWS, vocab)
        buffers = self._batch.buffers
        rows, tokens = (buffers.logit_rows_R, buffers.sampled_rows_R), (buffers.ids_T, buffers.positions_T)
        self._record = SampleRecord(self._logits_RV, *rows, *tokens, buffers.sampling, buffers.masks)
        self._sampler = Sampler(EOS)
        self.tokens = {each.row: [*each.prompt_token_ids, *each.output_token_ids] for each in starts}
        self._batch.apply(StepPlan(0, Chunks(), (), (), row_starts=tuple(starts)))
        for each in starts:
            self._sampler.start(each)

    def restart(self, start: RowStart) -> None:
        """Restart a row after a preemption: its tokens are recomputed in two chunks."""
        self._sampler.start(start)
        tokens = (*start.prompt_token_ids, *start.output_token_ids)
        half = Chunk(start.row, start.row, 0, tokens[: len(tokens) // 2])
        rest = Chunk(start.row, start.row, len(tokens) // 2, tokens[len(tokens) // 2 : -1])
        self._batch.apply(StepPlan(0, Chunks.of((half,)), (), (), row_starts=(start,)))
        self._batch.apply(StepPlan(0, Chunks.of((rest,)), (), ()))

    def step(self, drafts: dict[int, tuple[int, ...]], logits_RV: Tensor) -> None:
        """Every row samples after its last token and after each of its draft tokens."""
        chunks, sampled = [], []
        for row, tokens in self.tokens.items():
            new = (tokens[-1], *drafts.get(row, ()))
            chunks.append(Chunk(row, row, len(tokens) - 1, new))
            sampled += [SampleRow(row, row)] * len(new)
        plan = StepPlan(1, Chunks.of(chunks), tuple(range(len(sampled))), tuple(sampled))
        inputs = self._batch.apply(plan)
        self._logits_RV[: len(sampled)] = logits_RV[: len(sampled)]
        self._library.run(self._record.step.code, self._record.step.fields, inputs.num_logit_rows, self._num_threads)
        token_ids, found = self._record.token_ids(len(sampled)), self._record.logprobs(len(sampled))
        positions = self._batch.sampled_positions(plan)
        expected = self._sampler.sample(logits_RV, [row for row, _ in sampled], positions)
        assert torch.equal(self._logits_RV[: len(sampled)], logits_RV[: len(sampled)]), "the raw logits were changed"
        first = 0
        for row, _, _, new in chunks:
            for index, draft in enumerate((*new[1:], None), first):
                assert token_ids[index] == expected[index][0]
                check_logprobs(found.get(index), expected[index][1])
                self.tokens[row].append(token_ids[index])
                if token_ids[index] != draft:  # later samples follow a rejected token
                    break
            first += len(new)


def check_logprobs(found: SampleLogprobs | None, expected: SampleLogprobs | None) -> None:
    """Check that they agree within rounding: torch sums 151,936 numbers in float32."""
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert (found.rank, found.top_token_ids) == (expected.rank, expected.top_token_ids)
        assert found.logprob == pytest.approx(expected.logprob, abs=1e-4)
        assert found.top_logprobs == pytest.approx(expected.top_logprobs, abs=1e-4)


def some_logits(rng: random.Random, vocab: int, scale: float) -> Tensor:
    """Rows of logits in which a few tokens are more likely than the others, so that they are repeated."""
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    logits_RV = torch.randn(NUM_LOGIT_ROWS, vocab, generator=generator) * scale
    logits_RV[:, :40] += math.log(vocab / 40) + 2.0
    return logits_RV


@pytest.mark.parametrize(
    ("vocab", "examples"),
    [
        *((307, 30), (3_072, 12), (151_936, 3)),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((307, 200), (3_072, 80), (151_936, 10))),
    ],
)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_kernels_sample_the_tokens_of_the_host_sampler(
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
        comparison = SamplerComparison(library, starts, vocab, num_threads)
        for number in range(6):
            if number == 3:
                first = starts[0]
                output = comparison.tokens[first.row][len(first.prompt_token_ids) :]
                comparison.restart(first._replace(output_token_ids=tuple(output)))
            drafts = {row: tuple(rng.choices(range(40), k=rng.randrange(MAX_DRAFT + 1))) for row in comparison.tokens}
            comparison.step(drafts, some_logits(rng, vocab, scale))

    check()


def test_accepted_draft_tokens_count_for_later_samples(library: NativeLibrary):
    """The output is the same if tokens are sampled one by one or drafted correctly, three at a time."""
    given = SamplingParams(temperature=0.0, frequency_penalty=0.9, repetition_penalty=1.2, max_tokens=100)
    logits_RV = torch.zeros(NUM_LOGIT_ROWS, 307)
    logits_RV[:, [5, 9, 20, 30]] = torch.tensor([3.0, 2.9, 2.0, 1.4])
    one_by_one, with_drafts = (
        SamplerComparison(library, [RowStart(1, 1, 0, RowSampling.of(given), (5, 7), ())], 307, 1) for _ in range(2)
    )  # fmt: skip
    for _ in range(12):
        one_by_one.step({}, logits_RV)
    output = one_by_one.tokens[1]
    while (known := len(with_drafts.tokens[1])) < len(output):
        with_drafts.step({1: tuple(output[known : known + 3])}, logits_RV)
    assert with_drafts.tokens[1][: len(output)] == output
    assert len(set(output)) > 3
