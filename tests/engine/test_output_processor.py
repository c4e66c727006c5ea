"""Who gets what: many sequences in one step, ends from inside and outside, counts and times."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.events import EngineEvent, Finished, FinishReason, RequestFailed, TokenDelta, Usage
from app.engine.output_processor import OutputProcessor
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.search.beam_search import Hypothesis
from tests.engine.sequence_groups import (
    BYTES,
    EOS,
    TEXT_IDS,
    TOKENIZER,
    make_group,
    make_processor,
    make_progress,
    make_sequence,
)

TOKEN_ID = TEXT_IDS[-2]
BROKEN_ID = TEXT_IDS[0]


class BrokenTokenizer:
    """The toy tokenizer, but the text of one token cannot be made."""

    def __init__(self) -> None:
        self.token_bytes = TOKENIZER.token_bytes

    def new_detokenizer(self) -> "BrokenTokenizer":
        return self

    def append(self, token_id: int) -> str:
        if token_id == BROKEN_ID:
            raise OverflowError("no text")
        return "."

    def flush(self) -> str:
        return ""


def step(output: OutputProcessor, tokens, now: float = 20.0) -> list[EngineEvent]:
    """One step in which each of these sequences gains the token next to it."""
    return output.process(make_progress(*tokens), now)


def end_search(output: OutputProcessor, group: SequenceGroup, found: list[Hypothesis], now: float) -> list[EngineEvent]:
    """One step after which a beam search has ended with these hypotheses."""
    group.search.results = lambda: found
    return output.process(make_progress(searched=(group,)), now)


# --- One step -----------------------------------------------------------------------------------------------------


def test_each_sequence_has_one_delta_per_step_and_keeps_its_own_text():
    sequences = [make_sequence(i) for i in range(3)]
    output, ends = make_processor(*[sequence.group for sequence in sequences])
    token_ids = TOKENIZER.encode("abc the dog")
    events = step(output, [(sequence, token_id) for token_id in token_ids for sequence in sequences])
    assert ends.sequences == []
    assert [(event.request_id, event.text) for event in events] == [(f"request-{i}", "abc the dog") for i in range(3)]


def test_samples_after_the_end_are_ignored():
    sequence = make_sequence()
    output, ends = make_processor(sequence.group)
    (finished,) = step(output, [(sequence, EOS), (sequence, 5)])
    assert ends.sequences == [sequence]
    assert (finished.reason, finished.usage.completion_tokens) == (FinishReason.STOP, 1)
    assert step(output, [(sequence, 5)]) == []
    assert output.cancel(sequence.group, now=22.0) == []


def test_a_dropped_request_has_no_more_events():
    sequence = make_sequence()
    output, _ = make_processor(sequence.group)
    output.drop(sequence.group)
    output.drop(sequence.group)
    assert step(output, [(sequence, 5)]) == []


def test_a_request_whose_text_cannot_be_made_fails_and_the_others_continue():
    good, bad = make_sequence(1), make_sequence(2)
    output, ends = make_processor(good.group, bad.group, tokenizer=BrokenTokenizer())
    delta, failed = step(output, [(bad, TOKEN_ID), (good, TOKEN_ID), (bad, BROKEN_ID), (bad, TOKEN_ID)])
    assert (delta.request_id, delta.text) == ("request-1", ".")
    assert (type(failed), failed.request_id) == (RequestFailed, "request-2")
    assert ends.groups == [bad.group]
    assert [event.request_id for event in step(output, [(bad, TOKEN_ID), (good, TOKEN_ID)])] == ["request-1"]


def test_without_logprobs_a_delta_has_none_even_if_the_sampler_gave_some():
    sequence = make_sequence()
    output, _ = make_processor(sequence.group)
    (event,) = output.process(make_progress((sequence, TOKEN_ID, -0.5)), now=20.0)
    assert event.logprobs is None


# --- Several choices ----------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.sampled_from([*BYTES, *TEXT_IDS]), max_size=8), min_size=2, max_size=5),
    st.randoms(use_true_random=False),
)
def test_choices_come_out_side_by_side_whatever_the_order_of_their_samples(answers, random):
    group = make_group(n=len(answers))
    (output, _), left, events = make_processor(group), [[*answer, EOS] for answer in answers], []
    while any(left):
        drawing = [sequence for sequence in group.sequences if left[sequence.choice] and random.random() < 0.7]
        random.shuffle(drawing)
        events += step(output, [(sequence, left[sequence.choice].pop(0)) for sequence in drawing])
    for choice, token_ids in enumerate(answers):
        *deltas, finished = [event for event in events if event.choice == choice]
        assert [token_id for delta in deltas for token_id in delta.token_ids] == token_ids
        assert "".join(delta.text for delta in deltas) == TOKENIZER.decode(token_ids)
        assert [delta.first for delta in deltas if delta.token_ids] == list(range(1, len(token_ids) + 1))
        assert (finished.reason, finished.usage.completion_tokens) == (FinishReason.STOP, len(token_ids) + 1)


def test_one_choice_may_end_while_the_others_go_on():
    group = make_group(n=3)
    output, ends = make_processor(group)
    first, second, third = group.sequences
    events = step(output, [(first, TOKEN_ID), (second, EOS), (third, TOKEN_ID)])
    assert ends.sequences == [second]
    assert [(type(event), event.choice) for event in events] == [(TokenDelta, 0), (Finished, 1), (TokenDelta, 2)]
    assert [(event.choice, event.reason) for event in output.cancel(group, now=21.0)] == [
        (0, "cancelled"),
        (2, "cancelled"),
    ]


@pytest.mark.parametrize("params", [{}, {"n": 2}, {"n": 2, "best_of": 3}, {"use_beam_search": True}])
def test_a_group_that_has_ended_leaves_nothing_behind(params):
    group = make_group(**params)
    output, _ = make_processor(group)
    assert output.cancel(group, now=21.0)
    assert output.add(group) == []  # asserts that it has none of its sequences
    assert output.cancel(group, now=22.0)


# --- Counts and times ---------------------------------------------------------------------------------------------


def test_an_end_from_outside_before_the_first_token_is_just_the_end():
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
def test_every_choice_tells_what_its_request_found_in_the_cache_and_lost(params):
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


def test_a_search_comes_out_as_one_delta_and_one_end_per_choice_best_first():
    group = make_group(n=3, use_beam_search=True, max_tokens=4)
    (output, _), (dog, *_) = make_processor(group), TOKENIZER.encode(" dog")
    group.first_scheduled_time = 11.0
    found = [
        Hypothesis((dog, EOS), -1.0),
        Hypothesis((dog, BYTES[0], BYTES[1], BYTES[2]), -2.0),
        Hypothesis((), -3.0),
    ]
    first, end, second, second_end, third_end = end_search(output, group, found, now=17.0)
    assert first == TokenDelta("request-1", 0, 1, (dog,), " dog")
    assert second == TokenDelta("request-1", 1, 1, (dog, *BYTES[:3]), " dog\ufffd")
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


def test_a_cancelled_search_gives_out_the_best_so_far():
    group = make_group(n=2, use_beam_search=True)
    (output, _), (dog, *_) = make_processor(group), TOKENIZER.encode(" dog")
    group.search.advance([[(dog, -1.0), (EOS, -1.5), (TOKEN_ID, -2.0)]])
    delta, first, second = output.cancel(group, now=21.0)
    assert (delta.choice, delta.text) == (0, " dog")
    assert [(event.choice, event.reason, event.usage.completion_tokens) for event in (first, second)] == [
        (0, FinishReason.CANCELLED, 1),
        (1, FinishReason.CANCELLED, 1),
    ]


def test_a_cancelled_search_gives_out_no_replacement_character():
    group = make_group(n=1, use_beam_search=True)
    output, _ = make_processor(group)
    group.search.advance([[(BYTES[0], -1.0), (TOKEN_ID, -2.0)]])
    delta, finished = output.cancel(group, now=21.0)
    assert (delta.token_ids, delta.text) == ((BYTES[0],), "")
    assert finished.usage.completion_tokens == 1


def test_a_search_cancelled_before_its_first_step_is_just_the_ends():
    group = make_group(n=2, use_beam_search=True)
    output, _ = make_processor(group)
    events = output.cancel(group, now=21.0)
    assert [(type(event), event.choice, event.reason) for event in events] == [
        (Finished, 0, FinishReason.CANCELLED),
        (Finished, 1, FinishReason.CANCELLED),
    ]


def test_a_search_whose_text_cannot_be_made_fails():
    group = make_group(use_beam_search=True)
    output, ends = make_processor(group, tokenizer=BrokenTokenizer())
    (failed,) = end_search(output, group, [Hypothesis((BROKEN_ID, EOS), -1.0)], now=17.0)
    assert (type(failed), failed.request_id, ends.groups) == (RequestFailed, "request-1", [group, group])
