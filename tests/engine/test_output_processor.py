"""The output processor: many sequences in one step, finished and cancelled requests, counts and times."""

import logging
from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.engine_status import EngineStats, StepReport
from app.contract.errors import InvalidValue
from app.contract.events import EngineEvent, Finished, FinishReason, RequestFailed, TokenDelta, Usage
from app.engine.output_processor import OutputProcessor
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.search.beam_search import Hypothesis
from app.engine.schedule.step_plan import Sample
from app.engine.schedule.step_results import StepProgress
from app.observe.metrics import Metrics
from tests.cases import examples
from tests.engine.sequence_groups import (
    BYTES,
    EOS,
    TEXT_IDS,
    TOKENIZER,
    decode_complete,
    make_group,
    make_processor,
    make_progress,
    make_sequence,
)

TOKEN_ID = TEXT_IDS[-2]
BROKEN_ID = TEXT_IDS[0]


class BrokenTokenizer:
    """The toy tokenizer, except that one token cannot be decoded."""

    def __init__(self) -> None:
        self.token_bytes = TOKENIZER.token_bytes

    def new_detokenizer(self, *_: Collection[int]) -> "BrokenTokenizer":
        return self

    def append(self, token_id: int) -> str:
        if token_id == BROKEN_ID:
            raise OverflowError("no text")
        return "."

    def flush(self) -> str:
        return ""


def step(output: OutputProcessor, tokens, now: float = 20.0) -> list[EngineEvent]:
    """Process a step; `tokens` has a sequence and its new token each."""
    return output.process(make_progress(*tokens), now)


def end_search(
    output: OutputProcessor, group: SequenceGroup, hypotheses: list[Hypothesis], now: float
) -> list[EngineEvent]:
    """Process a step after which a beam search ends with these hypotheses."""
    group.search.results = lambda: hypotheses
    return output.process(make_progress(searched=(group,)), now)


# --- One step -----------------------------------------------------------------------------------------------------


def test_each_sequence_has_one_delta_per_step_and_keeps_its_own_text():
    sequences = [make_sequence(i) for i in range(3)]
    output, finishes = make_processor(*[sequence.group for sequence in sequences])
    token_ids = TOKENIZER.encode("abc the dog")
    events = step(output, [(sequence, token_id) for token_id in token_ids for sequence in sequences])
    assert finishes.sequences == []
    assert [(event.request_id, event.text) for event in events] == [(f"request-{i}", "abc the dog") for i in range(3)]


def test_samples_after_the_end_are_ignored():
    sequence = make_sequence()
    output, finishes = make_processor(sequence.group)
    (finished,) = step(output, [(sequence, EOS), (sequence, 5)])
    assert finishes.sequences == [sequence]
    assert (finished.reason, finished.usage.completion_tokens) == (FinishReason.STOP, 1)
    assert step(output, [(sequence, 5)]) == []
    assert output.cancel(sequence.group, now=22.0) == []


def test_a_dropped_request_has_no_more_events():
    sequence = make_sequence()
    output, _ = make_processor(sequence.group)
    output.drop(sequence.group)
    output.drop(sequence.group)
    assert step(output, [(sequence, 5)]) == []


def test_a_request_that_cannot_be_decoded_fails_and_the_others_continue():
    good, bad = make_sequence(1), make_sequence(2)
    output, finishes = make_processor(good.group, bad.group, tokenizer=BrokenTokenizer())
    delta, failed = step(output, [(bad, TOKEN_ID), (good, TOKEN_ID), (bad, BROKEN_ID), (bad, TOKEN_ID)])
    assert (delta.request_id, delta.text) == ("request-1", ".")
    assert (type(failed), failed.request_id) == (RequestFailed, "request-2")
    assert finishes.groups == [bad.group]
    assert [event.request_id for event in step(output, [(bad, TOKEN_ID), (good, TOKEN_ID)])] == ["request-1"]


def test_logprobs_that_were_not_requested_are_not_sent():
    sequence = make_sequence()
    output, _ = make_processor(sequence.group)
    (event,) = output.process(make_progress((sequence, TOKEN_ID, -0.5)), now=20.0)
    assert event.logprobs is None


# --- Several choices ----------------------------------------------------------------------------------------------


@settings(max_examples=examples(50))
@given(
    st.lists(st.lists(st.sampled_from([*BYTES, *TEXT_IDS]), max_size=8), min_size=2, max_size=5),
    st.randoms(use_true_random=False),
)
def test_choices_are_independent_of_the_order_of_their_samples(outputs, random):
    group = make_group(n=len(outputs))
    (output, _), left, events = make_processor(group), [[*output_ids, EOS] for output_ids in outputs], []
    while any(left):
        sampled = [sequence for sequence in group.sequences if left[sequence.choice] and random.random() < 0.7]
        random.shuffle(sampled)
        events += step(output, [(sequence, left[sequence.choice].pop(0)) for sequence in sampled])
    for choice, token_ids in enumerate(outputs):
        *deltas, finished = [event for event in events if event.choice == choice]
        assert [token_id for delta in deltas for token_id in delta.token_ids] == token_ids
        assert "".join(delta.text for delta in deltas) == decode_complete(token_ids)
        assert [delta.first for delta in deltas if delta.token_ids] == list(range(1, len(token_ids) + 1))
        assert (finished.reason, finished.usage.completion_tokens) == (FinishReason.STOP, len(token_ids) + 1)


def test_one_choice_may_end_while_the_others_continue():
    group = make_group(n=3)
    output, finishes = make_processor(group)
    first, second, third = group.sequences
    events = step(output, [(first, TOKEN_ID), (second, EOS), (third, TOKEN_ID)])
    assert finishes.sequences == [second]
    assert [(type(event), event.choice) for event in events] == [(TokenDelta, 0), (Finished, 1), (TokenDelta, 2)]
    assert [(event.choice, event.reason) for event in output.cancel(group, now=21.0)] == [
        (0, "cancelled"),
        (2, "cancelled"),
    ]


@pytest.mark.parametrize("params", [{}, {"n": 2}, {"n": 2, "best_of": 3}, {"use_beam_search": True}])
def test_an_ended_group_leaves_nothing_behind(params):
    group = make_group(**params)
    output, _ = make_processor(group)
    assert output.cancel(group, now=21.0)
    assert output.add(group) == []  # asserts that none of its sequences is known
    assert output.cancel(group, now=22.0)


# --- Counts and times ---------------------------------------------------------------------------------------------


def test_a_cancel_before_the_first_token_gives_only_the_end():
    sequence = make_sequence()
    output, _ = make_processor(sequence.group)
    (finished,) = output.cancel(sequence.group, now=12.5)
    assert finished.usage == Usage(prompt_tokens=3, completion_tokens=0)
    assert (finished.timings.queue_s, finished.timings.first_token_s, finished.timings.total_s) == (2.5, 2.5, 2.5)


def test_timings_count_from_the_arrival():
    sequence = make_sequence()
    output, _ = make_processor(sequence.group)
    sequence.group.first_scheduled_time = 11.0
    step(output, [(sequence, TOKEN_ID)], now=13.0)
    step(output, [(sequence, TOKEN_ID)], now=14.0)
    (finished,) = step(output, [(sequence, EOS)], now=17.0)
    assert (finished.timings.queue_s, finished.timings.first_token_s, finished.timings.total_s) == (1.0, 3.0, 7.0)


@pytest.mark.parametrize("params", [{"n": 2}, {"n": 2, "best_of": 3}, {"n": 2, "use_beam_search": True}])
def test_every_choice_reports_cached_and_lost_tokens_of_its_request(params):
    group = make_group(**params)
    output, _ = make_processor(group)
    group.num_cached_tokens = 2
    group.num_preemptions, group.num_lost_tokens = 1, 3
    assert [event.usage for event in output.cancel(group, now=21.0)] == [
        Usage(3, 0, cached_tokens=2, preemptions=1, lost_tokens=3)
    ] * 2


def test_counts_are_those_at_the_end_of_the_choice():
    group = make_group(n=2)
    (output, _), (first, second) = make_processor(group), group.sequences
    (early,) = step(output, [(first, EOS)])
    group.num_preemptions, group.num_lost_tokens = 2, 7
    (late,) = step(output, [(second, EOS)])
    assert (early.usage.preemptions, early.usage.lost_tokens) == (0, 0)
    assert (late.usage.preemptions, late.usage.lost_tokens) == (2, 7)


# --- Beam searches ------------------------------------------------------------------------------------------------


def test_a_search_gives_one_delta_and_one_end_per_choice_best_first():
    group = make_group(n=3, use_beam_search=True, max_tokens=4)
    (output, _), (dog, *_) = make_processor(group), TOKENIZER.encode(" dog")
    group.first_scheduled_time = 11.0
    hypotheses = [
        Hypothesis((dog, EOS), -1.0),
        Hypothesis((dog, BYTES[0], BYTES[1], BYTES[2]), -2.0),
        Hypothesis((), -3.0),
    ]
    first, end, second, second_end, third_end = end_search(output, group, hypotheses, now=17.0)
    assert first == TokenDelta("request-1", 0, 1, (dog,), " dog")
    assert second == TokenDelta("request-1", 1, 1, (dog, *BYTES[:3]), " dog")
    assert [(e.choice, e.reason) for e in (end, second_end, third_end)] == [(0, "stop"), (1, "length"), (2, "length")]
    assert [e.usage.completion_tokens for e in (end, second_end, third_end)] == [2, 4, 0]
    assert (end.timings.queue_s, end.timings.first_token_s, end.timings.total_s) == (1.0, 7.0, 7.0)


def test_a_stop_id_ends_a_hypothesis_like_eos():
    group = make_group(use_beam_search=True, stop_token_ids=[TOKEN_ID], ignore_eos=True)
    hypothesis = Hypothesis((EOS, TOKEN_ID), -1.0)
    output, _ = make_processor(group)
    delta, finished = end_search(output, group, [hypothesis], now=17.0)
    assert (delta.token_ids, delta.text) == ((EOS,), "")
    assert (finished.reason, finished.usage.completion_tokens) == (FinishReason.STOP, 2)


def test_a_cancelled_search_sends_the_best_hypothesis_so_far():
    group = make_group(n=2, use_beam_search=True)
    (output, _), (dog, *_) = make_processor(group), TOKENIZER.encode(" dog")
    group.search.advance([[(dog, -1.0), (EOS, -1.5), (TOKEN_ID, -2.0)]])
    delta, first, second = output.cancel(group, now=21.0)
    assert (delta.choice, delta.text) == (0, " dog")
    assert [(event.choice, event.reason, event.usage.completion_tokens) for event in (first, second)] == [
        (0, FinishReason.CANCELLED, 1),
        (1, FinishReason.CANCELLED, 1),
    ]


def test_a_cancelled_search_sends_no_replacement_character():
    group = make_group(n=1, use_beam_search=True)
    output, _ = make_processor(group)
    group.search.advance([[(BYTES[0], -1.0), (TOKEN_ID, -2.0)]])
    delta, finished = output.cancel(group, now=21.0)
    assert (delta.token_ids, delta.text) == ((BYTES[0],), "")
    assert finished.usage.completion_tokens == 1


def test_a_search_cancelled_before_its_first_step_gives_only_the_ends():
    group = make_group(n=2, use_beam_search=True)
    output, _ = make_processor(group)
    events = output.cancel(group, now=21.0)
    assert [(type(event), event.choice, event.reason) for event in events] == [
        (Finished, 0, FinishReason.CANCELLED),
        (Finished, 1, FinishReason.CANCELLED),
    ]


@pytest.mark.parametrize("end", [OutputProcessor.fail, OutputProcessor.reject])
def test_the_log_shows_eight_digits_of_the_id_of_a_request_that_failed(end, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "quire.engine")
    group = make_group()
    answer_id = "chatcmpl-" + "0123456789abcdef" * 2
    group.request = replace(group.request, id=answer_id)
    output, _ = make_processor(group)
    assert end(output, group, InvalidValue("The grammar is stuck.")).request_id == answer_id
    assert "chatcmpl-01234567" in caplog.text
    assert "chatcmpl-012345678" not in caplog.text


def test_a_search_that_cannot_be_decoded_fails():
    group = make_group(use_beam_search=True)
    output, finishes = make_processor(group, tokenizer=BrokenTokenizer())
    (failed,) = end_search(output, group, [Hypothesis((BROKEN_ID, EOS), -1.0)], now=17.0)
    assert (type(failed), failed.request_id, finishes.groups) == (RequestFailed, "request-1", [group, group])


# --- Answers without tokens -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("token_id", [TOKEN_ID, EOS])
def test_an_answer_of_a_prompt_alone_ends_with_its_prompt_and_metrics_count_no_token(token_id):
    group = make_group(n=2, is_prompt_only=True)
    output, _ = make_processor(group)
    events = step(output, [(sequence, token_id) for sequence in group.sequences])
    assert [(type(event), event.choice, event.reason) for event in events] == [
        (Finished, choice, FinishReason.LENGTH) for choice in range(2)
    ]
    assert {event.usage.completion_tokens for event in events} == {0} and output.num_open == 0
    metrics = Metrics("guide")
    metrics.observe(StepReport(tuple(events), EngineStats()))
    text = metrics.render().decode()
    for name in ("vllm:generation_tokens_total", "vllm:request_generation_tokens_sum"):
        assert f'{name}{{engine="0",model_name="guide"}} 0.0' in text


def test_a_cancelled_answer_of_a_prompt_alone_has_no_token():
    group = make_group(is_prompt_only=True)
    output, _ = make_processor(group)
    (end,) = output.cancel(group, 20.0)
    assert isinstance(end, Finished) and (end.reason, end.usage.completion_tokens) == (FinishReason.CANCELLED, 0)


def test_an_answer_may_end_after_its_last_token_was_reported():
    """What was held back is released, and the counts are those of its tokens."""
    sequence = make_sequence(stop=("ab!",))
    output, finishes = make_processor(sequence.group)
    held = TOKENIZER.encode("ab")
    assert step(output, [(sequence, token_id) for token_id in held]) == []
    delta, finished = output.end(sequence, FinishReason.STOP, 21.0)
    assert (delta.text, list(delta.token_ids)) == ("ab", held)
    assert (finished.reason, finished.usage.completion_tokens) == (FinishReason.STOP, len(held))
    assert finishes.take() == [sequence] and output.num_open == 0
    assert output.end(sequence, FinishReason.STOP, 22.0) == [] and finishes.take() == []


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_the_last_token_that_an_answer_may_have_is_reported_before_why_it_ends_is_known(reason: FinishReason):
    sequence = make_sequence(max_tokens=1)
    output, finishes = make_processor(sequence.group)
    sample = Sample(sequence.id, TOKEN_ID, ends=None)
    (delta,) = output.process(StepProgress([(sequence, sample)], [], []), 20.0)
    assert list(delta.token_ids) == [TOKEN_ID] and finishes.take() == []
    (finished,) = output.end(sequence, reason, 21.0)
    assert (finished.reason, finished.usage.completion_tokens) == (reason, 1) and finishes.take() == [sequence]
