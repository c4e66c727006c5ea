"""The requests of a load: their bodies, their due times, and what is the same at every rate."""

import json
import math
import random
from itertools import islice, pairwise
from statistics import mean, pstdev
from typing import Any

import pytest

from app.loadgen.load import WORDS, Load, Request, arrival_times, random_words
from app.loadgen.target import find_target

TARGET = find_target("http://127.0.0.1:8000")


def bodies(requests) -> list[dict[str, Any]]:
    return [json.loads(request.message.partition(b"\r\n\r\n")[2]) for request in requests]


def requests(rate: float = math.inf, run_number: int = 0, **fields: Any) -> list[Request]:
    return list(Load(**({"model": "m", "num_requests": 6, "input_len": 5} | fields)).requests(TARGET, rate, run_number))


def test_a_completion_requests_a_stream_with_usage():
    (body,) = bodies(requests(num_requests=1, output_len=9))
    assert len(body.pop("prompt").split()) == 5
    assert body == {"model": "m", "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}}


def test_a_chat_request_has_one_message():
    found = requests(num_requests=1, endpoint="chat")
    assert found[0].message.startswith(b"POST /v1/chat/completions ")
    (body,) = bodies(found)
    (message,) = body["messages"]
    assert message["role"] == "user" and len(message["content"].split()) == 5
    assert "prompt" not in body


def test_prompts_can_be_token_ids():
    (body,) = bodies(requests(num_requests=1, vocab_size=4))
    assert len(body["prompt"]) == 5 and set(body["prompt"]) <= set(range(4))
    (long,) = bodies(requests(num_requests=1, vocab_size=50, input_len=5000))
    assert len(long["prompt"]) == 5000 and set(long["prompt"]) == set(range(50))


def test_given_parameters_are_sent_and_extra_fields_override_them():
    (body,) = bodies(
        requests(num_requests=1, temperature=0.0, ignore_eos=True, extra_body={"top_k": 3, "max_tokens": 2})
    )
    assert (body["temperature"], body["ignore_eos"], body["top_k"], body["max_tokens"]) == (0.0, True, 3, 2)


def test_arrival_times_are_the_same_in_each_run_and_prompts_differ():
    first, second = requests(2.0, run_number=0), requests(2.0, run_number=1)
    assert [request.due_s for request in first] == [request.due_s for request in second]
    prompts = [body["prompt"] for body in bodies([*first, *second, *Load(model="m", warm_up=3).warm_ups(TARGET)])]
    assert len(set(prompts)) == 15
    assert requests(2.0) == requests(2.0) != requests(2.0, seed=1)


def test_lengths_of_a_data_set_are_the_same_in_each_run():
    first, second = (bodies(requests(run_number=run_number, lengths="alpaca")) for run_number in (0, 1))
    assert [body["max_tokens"] for body in first] == [body["max_tokens"] for body in second]
    assert len({body["max_tokens"] for body in first}) > 1
    assert [len(body["prompt"].split()) for body in first] == [len(body["prompt"].split()) for body in second]


def test_the_cancelled_share_is_cancelled_before_the_end():
    assert {request.cancel_after for request in requests(num_requests=50)} == {None}
    points = [request.cancel_after for request in requests(num_requests=400, cancel_share=1.0, output_len=4)]
    assert set(points) == {0, 1, 2, 3}
    some = [request.cancel_after is not None for request in requests(num_requests=400, cancel_share=0.25)]
    assert sum(some) == pytest.approx(100, abs=30)


def test_warm_ups_are_never_cancelled():
    found = Load(model="m", warm_up=20, cancel_share=1.0).warm_ups(TARGET)
    assert [request.cancel_after for request in found] == [None] * 20


def test_a_duration_gives_rate_times_duration_requests():
    load = Load(model="m", duration_s=5.0, input_len=1)
    assert (load.count(3.0), load.count(0.01), load.count(math.inf)) == (15, 1, None)
    assert [request.due_s for request in load.requests(TARGET, 3.0, 0)][-1] == pytest.approx(5.0)


def test_a_duration_at_an_infinite_rate_has_endless_requests():
    load = Load(model="m", duration_s=5.0, input_len=1)
    assert len(list(islice(load.requests(TARGET, math.inf, 0), 500))) == 500


def gaps(burstiness: float, count: int = 20_000) -> list[float]:
    """Seconds between requests at 2 per second."""
    return [later - earlier for earlier, later in pairwise(arrival_times(2.0, count, burstiness, random.Random(0)))]


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 10.0, math.inf])
@pytest.mark.parametrize("count", [1, 7, 100])
def test_the_last_request_is_due_at_count_divided_by_rate(count, burstiness):
    times = arrival_times(4.0, count, burstiness, random.Random(0))
    assert len(times) == count
    assert times == sorted(times) and times[0] > 0
    assert times[-1] == pytest.approx(count / 4)


def test_at_an_infinite_rate_all_requests_are_due_at_once():
    assert arrival_times(math.inf, 3, 1.0, random.Random(0)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5), (math.inf, 0.0)])
def test_gaps_vary_as_those_of_a_gamma_distribution(burstiness, variation):
    """The deviation is the mean divided by the root of the shape; shape 1 is a Poisson process."""
    found = gaps(burstiness)
    assert mean(found) == pytest.approx(0.5, rel=0.01)
    assert pstdev(found) / mean(found) == pytest.approx(variation, abs=0.05)


def test_a_poisson_process_has_the_expected_share_of_short_gaps():
    assert sum(gap < 0.25 for gap in gaps(1.0)) / 20_000 == pytest.approx(1 - math.exp(-0.5), abs=0.01)


def test_gaps_too_small_for_a_float_are_0():
    assert set(arrival_times(1.0, 3, 1e-9, random.Random(0))) == {0.0}


def test_a_seed_gives_the_same_arrival_times():
    assert arrival_times(3.0, 9, 1.0, random.Random(5)) == arrival_times(3.0, 9, 1.0, random.Random(5))


def test_random_words_have_the_given_number_and_are_known():
    found = random_words(200, random.Random(0)).split(" ")
    assert len(found) == 200
    assert set(found) <= set(WORDS)


def test_words_are_unique():
    assert len(set(WORDS)) == len(WORDS)


def test_a_load_is_described_in_the_units_of_what_is_sent():
    """How many tokens words are depends on the model: only the server knows."""
    assert Load().describe() == "prompts of 256 random words, at most 128 tokens out"
    assert Load(vocab_size=10, input_len=8).describe() == "prompts of 8 random token ids, at most 128 tokens out"
    assert Load(lengths="alpaca").describe() == "prompts of random words, as many as Alpaca-like prompts have tokens"
