"""Prompt tokens are counted when their request gets its first token, cached ones too, each request once."""

from app.contract.events import FinishReason
from app.engine.output_processor import OutputProcessor
from tests.engine.groups import EOS, TEXT_IDS, TOKENIZER, make_group, make_sample

NUM_PROMPT = 3  # of each group that `make_group` makes


def processor_of(*groups) -> OutputProcessor:
    output = OutputProcessor(TOKENIZER, [EOS])
    for group in groups:
        for sequence in group.sequences:
            output.add(sequence)
    return output


def draw(output: OutputProcessor, *sequences) -> None:
    output.process([(sequence, make_sample(sequence, TEXT_IDS[0], -0.5)) for sequence in sequences], now=20.0)


def test_a_request_counts_with_its_first_token_and_only_then():
    first, second = make_group(1), make_group(2)
    output = processor_of(first, second)
    assert output.num_prompt_tokens == 0
    draw(output, first.sequences[0])
    assert output.num_prompt_tokens == NUM_PROMPT
    draw(output, first.sequences[0], second.sequences[0])
    draw(output, first.sequences[0], second.sequences[0])
    assert output.num_prompt_tokens == 2 * NUM_PROMPT


def test_the_choices_and_candidates_of_a_request_share_its_prompt():
    for params in ({"n": 3}, {"n": 1, "best_of": 3}):
        group = make_group(**params)
        output = processor_of(group)
        draw(output, group.sequences[1])
        draw(output, *group.sequences)
        assert output.num_prompt_tokens == NUM_PROMPT


def test_a_request_that_gets_no_token_does_not_count():
    group = make_group()
    output = processor_of(group)
    output.finish(group.sequences[0], FinishReason.CANCELLED, 20.0)
    draw(output, group.sequences[0])
    assert output.num_prompt_tokens == 0
