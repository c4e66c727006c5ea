"""The best of several candidates, compared with a ranking of the complete outputs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from app.contract.events import EngineEvent, Finished, FinishReason, TokenDelta
from app.engine.output_processor import OutputProcessor
from tests.cases import examples
from tests.engine.sequence_groups import EOS, TEXT_IDS, TOKENIZER, make_group, make_processor, make_progress

TOKEN_ID = TEXT_IDS[-2]


def step(output: OutputProcessor, tokens, now: float = 20.0) -> list[EngineEvent]:
    """Process a step; `tokens` has a sequence, its new token and the log-probability each."""
    return output.process(make_progress(*tokens), now)


def choices(events) -> dict[int, tuple[tuple[int, ...], FinishReason]]:
    """Token ids and reason of each choice; a choice has at most one delta, then its end, and choices are in order."""
    shown: dict[int, tuple[tuple[int, ...], FinishReason]] = {}
    token_ids: tuple[int, ...] = ()
    for event in events:
        assert event.choice == len(shown)
        if isinstance(event, TokenDelta):
            assert (event.first, token_ids) == (1, ())
            assert event.text == TOKENIZER.decode(list(event.token_ids))
            token_ids = event.token_ids
        else:
            assert isinstance(event, Finished)
            shown[event.choice] = (token_ids, event.reason)
            token_ids = ()
    return shown


# Fractions of a power of two, so that sums are exact and ties are ties.
LOGPROBS = st.integers(-24, 0).map(lambda eighths: eighths / 8)
TOKENS = st.tuples(st.sampled_from([TOKEN_ID, *TOKENIZER.encode("the dog")]), LOGPROBS)


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.lists(TOKENS, max_size=3), LOGPROBS), min_size=2, max_size=5),
    st.integers(1, 4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_the_best_candidates_are_sent_once_all_have_ended(outputs, n, is_cut, random):
    n = min(n, len(outputs) - 1)
    group = make_group(n=n, best_of=len(outputs))
    (output, finishes), left = make_processor(group), [[*tokens, (EOS, last)] for tokens, last in outputs]
    sampled = [[] for _ in outputs]
    events, num_steps = [], random.randrange(8) if is_cut else 1000
    while any(left) and num_steps:
        num_steps -= 1
        assert events == []
        stepped = [sequence for sequence in group.sequences if left[sequence.choice] and random.random() < 0.7]
        random.shuffle(stepped)
        for sequence in stepped:
            sampled[sequence.choice].append(left[sequence.choice].pop(0))
        events += step(output, [(sequence, *sampled[sequence.choice][-1]) for sequence in stepped])
        assert finishes.take() == [sequence for sequence in stepped if not left[sequence.choice]]
    reason = FinishReason.STOP
    if any(left):
        reason = FinishReason.CANCELLED
        assert events == []
        events = output.cancel(group, now=30.0)
    ranked = sorted(sampled, key=lambda tokens: -sum(lp for _, lp in tokens) / len(tokens) if tokens else 1000)
    assert choices(events) == {
        choice: (tuple(token_id for token_id, _ in tokens if token_id != EOS), reason)
        for choice, tokens in enumerate(ranked[:n])
    }
    assert output.cancel(group, now=31.0) == []
    assert step(output, [(sequence, TOKEN_ID, -0.5) for sequence in group.sequences]) == []


def test_eos_counts_in_the_mean():
    group = make_group(best_of=2)
    (output, _), (first, second) = make_processor(group), group.sequences
    step(output, [(first, TOKEN_ID, -1.0), (second, TEXT_IDS[-3], -1.5)])
    events = step(output, [(first, EOS, -3.0), (second, EOS, -1.5)])
    assert choices(events) == {0: ((TEXT_IDS[-3],), FinishReason.STOP)}


def test_logprobs_needed_only_for_ranking_are_not_sent():
    group = make_group(best_of=2)
    events = step(
        make_processor(group)[0], [(s, token_id, -1.0) for s in group.sequences for token_id in (TOKEN_ID, EOS)]
    )
    assert events[0].logprobs is None


def test_requested_logprobs_are_sent_for_every_token():
    group = make_group(best_of=2, logprobs=1)
    tokens = ((TOKEN_ID, -1.0), (TOKEN_ID, -2.0), (EOS, -1.0))
    events = step(make_processor(group)[0], [(s, *token) for s in group.sequences for token in tokens])
    assert [entry.logprob for entry in events[0].logprobs] == [-1.0, -2.0, -1.0], "also for EOS"
    assert [len(entry.top_logprobs) for entry in events[0].logprobs] == [1, 1, 1]


def test_the_first_token_is_the_candidates_and_the_end_is_the_last_ones():
    group = make_group(best_of=2)
    (output, _), (first, second) = make_processor(group), group.sequences
    step(output, [(first, EOS, -0.25), (second, TOKEN_ID, -1.0)], now=13.0)
    (finished,) = step(output, [(second, EOS, -1.0)], now=17.0)
    assert (finished.usage.completion_tokens, finished.timings.first_token_s, finished.timings.total_s) == (1, 3.0, 7.0)


def test_plain_requests_do_not_wait_for_a_ranked_one():
    ranked, plain = make_group(1, best_of=2), make_group(2)
    output, _ = make_processor(ranked, plain)
    (event,) = step(output, [(s, TOKEN_ID, -1.0) for s in (*ranked.sequences, *plain.sequences)])
    assert event.request_id == "request-2"


def test_a_dropped_request_has_no_more_events():
    group = make_group(best_of=3)
    (output, _), (first, second, third) = make_processor(group), group.sequences
    step(output, [(first, EOS, -1.0)])
    output.drop(group)
    assert step(output, [(second, EOS, -1.0), (third, EOS, -1.0)]) == []
    assert output.cancel(group, now=21.0) == []
