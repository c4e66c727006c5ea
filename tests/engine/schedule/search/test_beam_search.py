"""Beam search compared with transformers and with an exhaustive search, and rule by rule."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import inf, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel

from app.contract.sampling_params import SamplingParams
from app.engine.schedule.search.beam_search import BeamMove, BeamSearch, Hypothesis
from tests.checkpoints import tiny

EOS, A, B, C = 0, 1, 2, 3
PAD = 306
MAX_NEW = 10


def make_search(eos_token_ids=(EOS,), **params) -> BeamSearch:
    return BeamSearch(SamplingParams(use_beam_search=True, **{"max_tokens": 10, "seed": 0, **params}), eos_token_ids)


# --- Compared with transformers -----------------------------------------------------------------------------------


@dataclass
class Tally:
    """Counts of all cases."""

    num_outputs: int = 0
    num_early: int = 0
    num_ties: int = 0


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny(num_hidden_layers=1), dtype=torch.float32).eval()


def search_with(model: PreTrainedModel, prompt: list[int], eos: list[int], width: int, **params):
    """Results of BeamSearch for every n up to `width`; the model has inputs of the same shapes as in `generate`."""
    searches = [make_search(eos, beam_width=width, n=n, **params) for n in range(1, width + 1)]
    beams: list[list[int]] = [[]]
    while True:
        rows = torch.tensor([prompt + beam for beam in beams] * (width if len(beams) == 1 else 1))
        with torch.inference_mode():
            output = model(rows, attention_mask=torch.ones_like(rows), use_cache=False, logits_to_keep=1)
        best = torch.topk(torch.log_softmax(output.logits[:, -1], dim=-1), width + len(eos))
        candidates = [
            list(zip(*pair, strict=True)) for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        moves, *others = [search.advance(candidates[: len(beams)]) for search in searches]
        assert all(other == moves for other in others), "n must change only the number of results"
        if moves is None:
            return [search.results() for search in searches]
        beams = [[*beams[move.parent], move.token_id] for move in moves]


def generate(model: PreTrainedModel, prompt: list[int], eos: list[int], width: int, **options) -> list[Hypothesis]:
    """All `width` results of transformers."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=width,
        num_return_sequences=width,
        eos_token_id=eos,
        pad_token_id=PAD,
        max_new_tokens=MAX_NEW,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    outputs = found.sequences[:, len(prompt) :].tolist()
    ends = [next((i for i, token_id in enumerate(ids, 1) if token_id in eos), len(ids)) for ids in outputs]
    scores = found.sequences_scores.tolist()
    return [Hypothesis(tuple(outputs[i][: ends[i]]), scores[i]) for i in range(width)]


def likely_endings(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    """Tokens of the greedy output of this prompt."""
    ids = torch.tensor([prompt])
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": PAD}
    greedy = model.generate(ids, **options, min_new_tokens=8, max_new_tokens=8)[0, len(prompt) :].tolist()
    return [greedy[2], greedy[5], greedy[7]]


@pytest.mark.parametrize("width", [2, pytest.param(4, marks=pytest.mark.long), 6])
def test_results_equal_those_of_transformers(width: int, model: PreTrainedModel, tally: Tally):
    """Token for token; different outputs must be a tie of scores. Equal outputs have bitwise equal scores."""
    generator = torch.Generator().manual_seed(width)
    cases = product((-1.0, 0.0, 0.5, 1.0, 2.0), (False, True, "never"), ((0, 1), (3, 3)))
    for length_penalty, early_stopping, (min_tokens, num_endings) in cases:
        prompt = torch.randint(4, 300, (7,), generator=generator).tolist()
        eos = likely_endings(model, prompt)[:num_endings]
        common = {"length_penalty": length_penalty, "early_stopping": early_stopping}
        expected = generate(model, prompt, eos, width, min_new_tokens=min_tokens, **common)
        for n, found in enumerate(search_with(
            model, prompt, eos, width, max_tokens=MAX_NEW, min_tokens=min_tokens, **common
        ), start=1):  # fmt: skip
            assert len(found) == n
            for ours, theirs in zip(found, expected, strict=False):
                tally.num_outputs += 1
                tally.num_early += len(ours.token_ids) < MAX_NEW
                if ours.token_ids == theirs.token_ids:
                    assert ours.score == theirs.score
                else:
                    assert abs(ours.score - theirs.score) < 1e-5
                    tally.num_ties += 1


def test_ties_are_rare_and_many_outputs_end_early(tally: Tally):
    print(f"{tally.num_ties} ties in {tally.num_outputs} outputs, of which {tally.num_early} end before max_tokens")
    assert tally.num_ties * 100 <= tally.num_outputs
    assert tally.num_early * 10 >= tally.num_outputs


# --- Compared with all outputs ------------------------------------------------------------------------------------

PROBABILITIES = st.lists(st.integers(1, 30), min_size=3, max_size=3)


@given(st.lists(PROBABILITIES, min_size=7, max_size=7), st.sampled_from([-1.0, 0.0, 0.5, 2.0]), st.integers(1, 15))
def test_a_wide_enough_search_finds_the_best_of_all_outputs(weights, length_penalty, n):
    """With three different tokens, one of them EOS, and max_tokens 3 there are 15 outputs and 7 prefixes."""
    logprobs = [[log(weight / sum(each)) for weight in each] for each in weights]

    def following(token_ids: tuple[int, ...]) -> list[float]:
        return logprobs[int("1" + "".join(str(token_id - 1) for token_id in token_ids), 2) - 1]

    search = make_search(n=n, beam_width=16, length_penalty=length_penalty, max_tokens=3)
    beams: list[tuple[int, ...]] = [()]
    while beams:
        moves = search.advance([sorted(enumerate(following(beam)), key=lambda found: -found[1]) for beam in beams])
        beams = [(*beams[move.parent], move.token_id) for move in moves or ()]
    prefixes = [(), *product((A, B)), *product((A, B), (A, B))]
    outputs = [(*prefix, last) for prefix in prefixes for last in (EOS, A, B)]
    scores = {
        output: sum(following(output[:i])[output[i]] for i in range(len(output))) / len(output) ** length_penalty
        for output in outputs
        if output[-1] == EOS or len(output) == 3
    }
    found = search.results()
    assert len({hypothesis.token_ids for hypothesis in found}) == n
    assert [hypothesis.score for hypothesis in found] == pytest.approx(sorted(scores.values(), reverse=True)[:n])
    assert all(hypothesis.score == pytest.approx(scores[hypothesis.token_ids]) for hypothesis in found)


# --- Rule by rule -------------------------------------------------------------------------------------------------


def test_the_best_continuations_become_beams_best_first():
    search = make_search(n=2)
    assert search.advance([[(A, -1.0), (B, -2.0), (C, -3.0)]]) == [BeamMove(0, A), BeamMove(0, B)]
    moves = search.advance([[(A, -5.0), (B, -6.0), (C, -7.0)], [(C, -1.0), (A, -1.5), (B, -9.0)]])
    assert moves == [BeamMove(1, C), BeamMove(1, A)]


def test_among_equal_scores_the_better_parent_comes_first():
    search = make_search(n=3)
    search.advance([[(A, -1.0), (B, -1.0), (C, -1.0)]])
    moves = search.advance([[(C, -2.0), (A, -2.0)], [(A, -2.0), (B, -2.0)], [(B, -2.0), (C, -3.0)]])
    assert moves == [BeamMove(0, C), BeamMove(0, A), BeamMove(1, A)]


def test_eos_completes_an_output_and_counts_in_its_length():
    search = make_search(n=1, beam_width=2, length_penalty=1.0)
    search.advance([[(A, -1.0), (B, -2.0), (EOS, -30.0)]])
    assert search.advance([[(EOS, -1.0), (A, -8.0)], [(C, -1.0), (A, -2.0)]]) == [BeamMove(1, C), BeamMove(1, A)]
    assert search.results() == [Hypothesis((A, EOS), -1.0)]


def test_eos_below_the_best_continuations_is_dropped():
    search = make_search(n=2, early_stopping=True)
    assert search.advance([[(A, -1.0), (B, -2.0), (EOS, -3.0), (C, -9.0)]]) is not None
    assert [hypothesis.token_ids for hypothesis in search.results()] == [(A,), (B,)]


def test_early_stopping_ends_with_the_first_complete_set_of_outputs():
    search = make_search(n=2, early_stopping=True)
    assert search.advance([[(EOS, -5.0), (A, -5.5), (B, -6.0)]]) == [BeamMove(0, A), BeamMove(0, B)]
    assert search.advance([[(EOS, -0.1), (B, -0.2)], [(A, -9.0), (B, -9.0)]]) is None
    assert [hypothesis.token_ids for hypothesis in search.results()] == [(A, EOS), (EOS,)]


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty", "last", "continues"),
    [
        (False, 0.0, -0.7, False),  # -1.9 is below -1.5
        (False, 0.0, -0.3, False),  # -1.5 is not above -1.5
        (False, 0.0, -0.2, True),
        (False, 1.0, -0.7, True),  # -1.9 / 2 is above -1.0
        (False, 1.0, -1.2, False),  # -2.4 / 2 is below -1.0
        (False, -1.0, -0.7, False),  # -1.9 * 2 is below -1.5 * 2
        ("never", 0.0, -0.7, False),
        ("never", 1.0, -1.2, True),  # -2.4 / 10 is above -1.0
        ("never", -1.0, -0.2, True),  # -1.4 * 2 is above -1.5 * 2: the current length is the best one
        (True, 0.0, -0.2, False),
    ],
)
def test_the_search_continues_while_a_beam_may_exceed_the_worst_output(early_stopping, length_penalty, last, continues):
    """Complete outputs have -1.0 (1 token) and -1.5 (2 tokens); the best beam has -1.2 + `last` (2 tokens of 10)."""
    search = make_search(n=2, early_stopping=early_stopping, length_penalty=length_penalty)
    assert search.advance([[(EOS, -1.0), (A, -1.2), (B, -9.0)]]) == [BeamMove(0, A), BeamMove(0, B)]
    moves = search.advance([[(EOS, -0.3), (C, last), (A, -2.0)], [(A, -9.0), (B, -9.0), (C, -9.0)]])
    assert (moves is not None) == continues


def test_max_tokens_ends_the_search():
    search = make_search(n=3, max_tokens=1)
    assert search.advance([[(A, -1.0), (EOS, -2.0), (B, -3.0), (C, -4.0)]]) is None
    assert [hypothesis.token_ids for hypothesis in search.results()] == [(A,), (EOS,), (B,)]


def test_no_output_ends_before_min_tokens():
    search = make_search(n=1, beam_width=1, min_tokens=1, stop_token_ids=[C])
    assert search.advance([[(EOS, -0.1), (C, -0.2), (A, -5.0)]]) == [BeamMove(0, A)]
    assert search.advance([[(C, -0.1), (A, -5.0)]]) is None
    assert search.results()[0].token_ids == (A, C)


def test_ignored_eos_is_a_normal_token_except_before_min_tokens():
    search = make_search(n=1, beam_width=1, ignore_eos=True, min_tokens=1, max_tokens=3)
    assert search.advance([[(EOS, -0.1), (A, -5.0)]]) == [BeamMove(0, A)]
    assert search.advance([[(EOS, -0.1), (A, -5.0)]]) == [BeamMove(0, EOS)]
    assert search.advance([[(EOS, -0.1), (A, -5.0)]]) is None
    assert search.results()[0].token_ids == (A, EOS, EOS)


def test_results_before_the_end_score_the_unfinished_beams():
    search = make_search(n=2, length_penalty=1.0)
    search.advance([[(EOS, -1.0), (A, -1.5), (B, -9.0)]])
    search.advance([[(B, -0.1), (C, -0.2)], [(B, -0.1), (C, -0.2)]])
    assert [hypothesis.token_ids for hypothesis in search.results()] == [(A, B), (A, C)]
    assert search.results()[0].score == pytest.approx(-0.8)


def test_results_before_the_first_step_are_empty():
    assert make_search(n=2, length_penalty=-1.0).results() == [Hypothesis((), -inf)] * 2


def test_missing_outputs_of_a_small_vocabulary_are_empty():
    search = make_search(n=4, max_tokens=2)
    assert search.advance([[(EOS, -1.0), (A, -2.0)]]) == [BeamMove(0, A)]
    assert search.advance([[(A, -1.0), (EOS, -2.0)]]) is None
    assert [hypothesis.token_ids for hypothesis in search.results()] == [(EOS,), (A, A), (A, EOS), ()]


def test_a_beam_without_continuations_ends_the_search():
    search = make_search(n=1)
    assert search.advance([[]]) is None
    assert search.results() == [Hypothesis((), -inf)]


def test_advancing_an_ended_search_fails():
    search = make_search(n=1, beam_width=1, max_tokens=1)
    search.advance([[(A, -1.0)]])
    with pytest.raises(AssertionError):
        search.advance([[(A, -1.0)]])


@pytest.mark.parametrize("length_penalty", [-10.0, 10.0])
def test_extreme_length_penalties_work_for_long_outputs(length_penalty):
    search = make_search(n=1, beam_width=1, length_penalty=length_penalty, max_tokens=40_000, ignore_eos=True)
    for _ in range(40_000 - 1):
        assert search.advance([[(A, -0.5)]]) is not None
    assert search.advance([[(A, -0.5)]]) is None
    assert len(search.results()[0].token_ids) == 40_000
