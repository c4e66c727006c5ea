"""The deltas of one choice, compared with decoding the complete output at once."""

from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.contract.events import REPETITION, ChoiceEnd, Finished, FinishReason, TokenDelta
from app.engine.choice import Choice
from tests.cases import examples
from tests.engine.sequence_groups import BYTES, EOS, IDS, TEXT_IDS, TOKENIZER, decode_complete, make_group, make_sample

STOPS = ["a", "ab", "abc", "b é", "é", "猫🙂", "dog", "\ufffd", "the dog sleeps", " "]


class Received(NamedTuple):
    """All that a client receives of one choice."""

    token_ids: list[int]
    text: str
    reason: FinishReason
    num_generated: int


def run(token_ids: list[int], cuts: list[int] | None = None, **params) -> list[list]:
    """Feed the tokens step by step (`cuts`: where a step ends; None: after each token); return the steps' events."""
    group = make_group(**params)
    choice = Choice(group, 0, TOKENIZER, frozenset({EOS}))
    logprob = -0.5 if "logprobs" in params else None
    cuts = list(range(1, len(token_ids))) if cuts is None else cuts
    steps: list[list] = []
    for start, end in zip([0, *cuts], [*cuts, len(token_ids)], strict=True):
        steps.append([])
        if choice.ended is None:
            for token_id in token_ids[start:end]:
                if choice.ended is None:
                    choice.append(make_sample(group.sequences[0], token_id, logprob))
            choice.report(steps[-1], now=20.0)
    return steps


def collect(steps: list[list]) -> Received:
    """Join the events of a choice, and check their order and numbers."""
    events = [event for step in steps for event in step]
    *deltas, finished = events
    assert all(isinstance(delta, TokenDelta) for delta in deltas)
    assert isinstance(finished, Finished)
    token_ids: list[int] = []
    for delta in deltas:
        assert delta.first == len(token_ids) + 1
        assert delta.token_ids or (delta is deltas[-1] and delta.logprobs)
        token_ids += delta.token_ids
    text = "".join(delta.text for delta in deltas)
    text.encode()
    return Received(token_ids, text, finished.reason, finished.usage.completion_tokens)


def before_stop(text: str, stops: list[str]) -> str | None:
    """The text before the stop string that ends first, or None."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return None


def decode_at_once(token_ids: list[int], stops: list[str], max_tokens: int, min_tokens: int = 0) -> Received:
    """The expected output, found by decoding every prefix of the tokens and searching it."""
    for num, token_id in enumerate(token_ids, start=1):
        is_eos = token_id == EOS and num > min_tokens
        known = token_ids[: num - is_eos]
        text = decode_complete(known)
        num_safe = len(decode_complete(known[:min_tokens]))  # characters that no stop string may begin in
        found = before_stop(text[num_safe:], stops)
        if found is not None:
            kept_text = text[:num_safe] + found
            ends = [len(decode_complete(known[:i])) for i in range(len(known) + 1)]
            kept = [t for t, start, end in zip(known, ends, ends[1:], strict=False)
                    if end <= len(kept_text) or start < len(kept_text)]  # fmt: skip
            return Received(kept, kept_text, FinishReason.STOP, num)
        if is_eos or num == max_tokens:
            return Received(known, text, FinishReason.STOP if is_eos else FinishReason.LENGTH, num)
    raise AssertionError("the output must end")


OUTPUTS = st.lists(st.sampled_from([*TEXT_IDS, EOS]), max_size=20).map(lambda token_ids: [*token_ids, *[EOS] * 5])
SOME_STOPS = st.lists(st.sampled_from(STOPS) | st.text("abé🙂", min_size=1, max_size=3), max_size=4)


@settings(max_examples=examples(300))
@given(OUTPUTS, SOME_STOPS, st.integers(1, 22), st.integers(0, 3), st.sampled_from([{}, {"logprobs": 2}]), st.data())
def test_every_partition_into_steps_gives_the_same_output(token_ids, stops, max_tokens, min_tokens, options, data):
    max_tokens = max(max_tokens, min_tokens)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(token_ids)), max_size=8)))
    steps = run(token_ids, cuts, stop=stops, max_tokens=max_tokens, min_tokens=min_tokens, **options)
    assert collect([step for step in steps if step]) == decode_at_once(token_ids, stops, max_tokens, min_tokens)


@given(OUTPUTS, SOME_STOPS)
def test_a_token_waits_only_while_its_text_may_begin_a_stop_string(token_ids, stops):
    num_sent = 0
    for num, events in enumerate(run(token_ids, stop=stops), start=1):
        num_sent += sum(len(event.token_ids) for event in events if isinstance(event, TokenDelta))
        if any(isinstance(event, Finished) for event in events):
            break
        text = decode_complete(token_ids[:num])
        held = max(
            n for n in range(len(text) + 1) if n == 0 or any(s.startswith(text[-n:]) and n < len(s) for s in stops)
        )
        ends = [len(decode_complete(token_ids[:i])) for i in range(1, num + 1)]
        assert num_sent == sum(end <= len(text) - held for end in ends)


@given(OUTPUTS, SOME_STOPS)
@example([IDS[b" a"], IDS[b"a"], EOS], ["ab"])
def test_every_counted_token_has_logprobs_and_the_text_is_the_same(token_ids, stops):
    received = collect(run(token_ids, stop=stops))
    steps = run(token_ids, stop=stops, logprobs=2)
    assert collect(steps) == received
    entries = [entry for step in steps for event in step if isinstance(event, TokenDelta) for entry in event.logprobs]
    assert [entry.token_id for entry in entries] == token_ids[: received.num_generated]
    assert all(entry.top_token_ids == (entry.token_id + 1, entry.token_id) for entry in entries)


def test_eos_and_a_complete_stop_string_have_logprobs_and_no_text():
    token_ids = [*TOKENIZER.encode("the dog"), EOS]
    for params, num_sent in (({}, len(token_ids) - 1), ({"stop": ["the dog"]}, 0), ({"stop_token_ids": [EOS]}, None)):
        steps = run(token_ids, logprobs=0, **params)
        received = collect(steps)
        entries = [e for step in steps for event in step if isinstance(event, TokenDelta) for e in event.logprobs]
        assert len(entries) == received.num_generated
        assert num_sent is None or len(received.token_ids) == num_sent


def test_a_plain_token_is_one_delta_at_once():
    the, dog = TOKENIZER.encode("the")[0], TOKENIZER.encode(" dog")[0]
    (first,), (second,) = run([the, dog])
    assert first == TokenDelta("request-1", 0, 1, (the,), TOKENIZER.decode([the]))
    assert second == TokenDelta("request-1", 0, 2, (dog,), TOKENIZER.decode([dog]))


def test_tokens_of_an_incomplete_character_are_sent_without_text():
    steps = run(BYTES)
    assert [step[0].text for step in steps] == ["", "", "", "🙂"]


@pytest.mark.parametrize("stop", [[], ["ab"], ["\ufffd"]], ids=str)
@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_an_incomplete_character_at_the_end_is_in_the_tokens_alone(num_bytes, stop):
    """Whatever ends the answer: a limit, EOS, a stop id."""
    token_ids = [*TOKENIZER.encode(" dog"), *BYTES[:num_bytes]]
    num = len(token_ids)
    for ending, params, reason in (
        ([], {"max_tokens": num}, FinishReason.LENGTH),
        ([EOS], {}, FinishReason.STOP),
        ([BYTES[num_bytes]], {"stop_token_ids": [BYTES[num_bytes]]}, FinishReason.STOP),
    ):
        steps = run([*token_ids, *ending], stop=stop, logprobs=0, **params)
        assert collect(steps) == Received(token_ids, " dog", reason, num + len(ending))
        entries = [e for step in steps for event in step if isinstance(event, TokenDelta) for e in event.logprobs]
        assert [entry.token_id for entry in entries] == [*token_ids, *ending]


@pytest.mark.parametrize("num_bytes", range(5))
def test_an_answer_to_all_tokens_of_one_that_was_cut_completes_its_character(num_bytes):
    token_ids = [*TOKENIZER.encode(" dog"), *BYTES, *TOKENIZER.encode(" a")]
    cut = len(TOKENIZER.encode(" dog")) + num_bytes
    first = collect(run(token_ids[:cut], max_tokens=cut))
    rest = collect(run([*token_ids[cut:], EOS], prompt=(7, *first.token_ids)))
    assert first.text + rest.text == " dog🙂 a"


def test_eos_ends_the_choice_and_is_counted_but_not_sent():
    assert collect(run([*TEXT_IDS[:3], EOS])) == Received(TEXT_IDS[:3], decode_complete(TEXT_IDS[:3]), "stop", 4)


def test_eos_does_not_end_the_choice_before_min_tokens():
    steps = run([EOS, EOS, EOS, EOS], min_tokens=2)
    assert collect(steps) == Received([EOS, EOS], "", FinishReason.STOP, 3)


def test_a_stop_string_does_not_end_the_choice_before_min_tokens():
    dog = TOKENIZER.encode(" dog")
    received = collect(run([*dog * 3, EOS], stop=[" dog"], min_tokens=2))
    assert received == Received(dog * 2, " dog dog", FinishReason.STOP, 3)


def test_a_stop_string_that_begins_in_the_first_min_tokens_is_text():
    dog = TOKENIZER.encode(" dog")
    received = collect(run([*dog * 2, EOS], stop=["g d"], min_tokens=1))
    assert received == Received(dog * 2, " dog dog", FinishReason.STOP, 3)


def test_ignored_eos_is_a_token_without_text():
    token_id = TEXT_IDS[-2]
    received = collect(run([EOS, token_id, EOS], ignore_eos=True, max_tokens=3))
    assert received == Received([EOS, token_id, EOS], TOKENIZER.decode([token_id]), FinishReason.LENGTH, 3)


def test_a_stop_id_ends_the_choice_even_if_eos_is_ignored():
    assert collect(run([TEXT_IDS[-2], 5], ignore_eos=True, stop_token_ids=[5])).reason is FinishReason.STOP


def test_an_eos_as_the_last_allowed_token_is_a_stop():
    assert collect(run([TEXT_IDS[-2], EOS], max_tokens=2)).reason is FinishReason.STOP


def test_a_stop_string_on_the_last_allowed_token_is_a_stop():
    assert collect(run(TOKENIZER.encode("dog"), max_tokens=len(TOKENIZER.encode("dog")), stop=["dog"])).text == ""


def test_held_text_is_sent_when_the_choice_ends():
    token_ids = TOKENIZER.encode("do")
    received = collect(run([*token_ids, EOS], stop=["dog"]))
    assert received == Received(token_ids, "do", FinishReason.STOP, len(token_ids) + 1)


def test_cancelling_sends_held_text_but_no_replacement_character():
    group = make_group(stop=["dog"])
    choice, events = Choice(group, 0, TOKENIZER, frozenset({EOS})), []
    token_ids = [*TOKENIZER.encode("do"), BYTES[0]]
    for token_id in token_ids:
        choice.append(make_sample(group.sequences[0], token_id))
    choice.end(FinishReason.CANCELLED)
    choice.report(events, now=21.0)
    delta, finished = events
    assert (delta.text, delta.token_ids) == ("do", tuple(token_ids))
    assert (finished.reason, finished.usage.completion_tokens) == (FinishReason.CANCELLED, len(token_ids))


def test_logprobs_have_the_sampled_token_and_the_most_likely_ones():
    token_id = TOKENIZER.encode(" dog")[0]
    (event,) = run([token_id], logprobs=2)[0]
    (entry,) = event.logprobs
    assert entry == (token_id, -0.5, 2, (token_id + 1, token_id), (-0.25, -0.5))


def end_of(token_ids: list[int], **params) -> tuple:
    """Why a choice ended, and after how many tokens."""
    events = [event for step in run(token_ids, **params) for event in step]
    finished = next(event for event in events if isinstance(event, Finished))
    return *finished.end, finished.usage.completion_tokens


LOOP = [IDS[b"a"], IDS[b" "]] * 400


@pytest.mark.parametrize(
    ("params", "end"),
    [
        ({"max_tokens": 800}, (FinishReason.LENGTH, None, 800)),  # without the field nothing ends it
        ({"repetition_stop": True}, (FinishReason.LENGTH, REPETITION, 256)),
        ({"repetition_stop": True, "ignore_eos": True}, (FinishReason.LENGTH, REPETITION, 256)),
        ({"repetition_stop": True, "min_tokens": 301}, (FinishReason.LENGTH, REPETITION, 301)),
        ({"repetition_stop": True, "max_tokens": 256}, (FinishReason.LENGTH, REPETITION, 256)),
        ({"repetition_stop": True, "max_tokens": 255}, (FinishReason.LENGTH, None, 255)),
        ({"repetition_stop": True, "stop": "a a a"}, (FinishReason.STOP, "a a a", 5)),
    ],
)
def test_an_answer_that_repeats_itself_ends_where_the_rule_holds_first(params, end):
    assert end_of(LOOP, **{"max_tokens": 800, **params}) == end


def test_a_repeated_answer_has_all_its_tokens_with_text_and_logprobs():
    """Those too that waited, since they may have been the beginning of a stop string."""
    steps = run(LOOP, max_tokens=800, repetition_stop=True, stop="a b", logprobs=1)
    received = collect([step for step in steps if step])
    assert received == (LOOP[:256], "a " * 128, FinishReason.LENGTH, 256)
    entries = [entry for step in steps for event in step if isinstance(event, TokenDelta) for entry in event.logprobs]
    assert [entry.token_id for entry in entries] == LOOP[:256]


@pytest.mark.parametrize(
    ("token_ids", "params", "stop_reason"),
    [
        ([IDS[b"a"], EOS], {}, None),
        ([IDS[b"a"], EOS], {"stop_token_ids": [EOS]}, None),  # as in vLLM: the model's own end is no reason
        ([IDS[b"a"], EOS], {"stop_token_ids": [EOS], "ignore_eos": True}, EOS),
        ([IDS[b"a"], IDS[b" "]], {"stop_token_ids": [IDS[b" "]]}, IDS[b" "]),
        ([IDS[b"a"], IDS[b" "], IDS[b"a"]], {"stop": ["x", " a"]}, " a"),
        ([IDS[b"a"], IDS[b" "]], {"max_tokens": 2}, None),
    ],
)
def test_the_stop_reason_is_the_stop_token_or_the_stop_string(token_ids, params, stop_reason):
    assert end_of(token_ids, **params)[1] == stop_reason


def test_a_cancelled_choice_has_no_stop_reason():
    choice = Choice(make_group(stop="a"), 0, TOKENIZER, frozenset({EOS}))
    choice.append(make_sample(make_group().sequences[0], IDS[b"a"]))
    choice.ended = ChoiceEnd(FinishReason.CANCELLED)  # as a ranking does with candidates that had ended
    events: list = []
    choice.report(events, now=20.0)
    assert events[-1].end.stop_reason is None
