"""Prompt tokens, also cached ones, are counted once per request, with its first token."""

from app.engine.output_processor import OutputProcessor
from tests.engine.sequence_groups import TEXT_IDS, make_group, make_processor, make_progress

NUM_PROMPT = 3  # of each group of `make_group`


def sample(output: OutputProcessor, *sequences) -> None:
    output.process(make_progress(*((sequence, TEXT_IDS[0], -0.5) for sequence in sequences)), now=20.0)


def test_a_request_is_counted_once_with_its_first_token():
    first, second = make_group(1), make_group(2)
    output, _ = make_processor(first, second)
    assert output.counts.num_tokens == 0
    sample(output, first.sequences[0])
    assert output.counts.num_tokens == NUM_PROMPT
    sample(output, first.sequences[0], second.sequences[0])
    sample(output, first.sequences[0], second.sequences[0])
    assert output.counts.num_tokens == 2 * NUM_PROMPT


def test_tokens_found_in_the_cache_are_counted_among_them():
    group = make_group()
    group.num_cached_tokens = 2
    output, _ = make_processor(group)
    sample(output, group.sequences[0])
    assert (output.counts.num_tokens, output.counts.num_cached) == (NUM_PROMPT, 2)


def test_the_choices_and_candidates_of_a_request_share_its_prompt():
    for params in ({"n": 3}, {"n": 1, "best_of": 3}):
        group = make_group(**params)
        output, _ = make_processor(group)
        sample(output, group.sequences[1])
        sample(output, *group.sequences)
        assert output.counts.num_tokens == NUM_PROMPT


def test_a_request_without_a_token_is_not_counted():
    group = make_group()
    output, _ = make_processor(group)
    output.cancel(group, 20.0)
    sample(output, group.sequences[0])
    assert output.counts.num_tokens == 0
