"""The options of `quire bench serve`: defaults, and rejected values."""

import dataclasses
import math

import pytest

from app.cli import command_parser
from app.commands.measuring.bench_serve_options import VOCAB_SIZE, read_load
from app.contract.errors import ConfigurationError
from app.loadgen.load import Load


def read(*options: str) -> Load:
    parser, _ = command_parser("bench serve")
    return read_load(parser.parse(["http://127.0.0.1:8000", *options]))


def test_without_options_the_load_is_the_default():
    assert read() == Load()


def test_every_field_of_the_load_has_an_option():
    options = {
        "endpoint": ("--endpoint", "chat"), "model": ("--model", "m"), "num_requests": ("--num-requests", "7"),
        "burstiness": ("--burstiness", "0.5"), "max_concurrency": ("--max-concurrency", "3"),
        "input_len": ("--input-len", "9"), "output_len": ("--output-len", "8"), "lengths": ("--lengths", "alpaca"),
        "vocab_size": ("--prompt-token-ids",), "temperature": ("--temperature", "0"), "ignore_eos": ("--ignore-eos",),
        "extra_body": ("--extra-body", '{"top_k": 5}'), "warm_up": ("--warm-up", "4"),
        "cancel_share": ("--cancel", "0.5"), "timeout_s": ("--timeout", "2.5"), "seed": ("--seed", "9"),
        "duration_s": ("--duration", "5", "--rate", "2"),
    }  # fmt: skip
    assert set(options) == {field.name for field in dataclasses.fields(Load)}
    for name, words in options.items():
        assert getattr(read(*words), name) != getattr(Load(), name)
    assert read("--prompt-token-ids").vocab_size == VOCAB_SIZE
    assert read("--prompt-token-ids", "--vocab-size", "50").vocab_size == 50


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--rate 0", "--rate is 0; it must be above 0, or inf"),
        ("--rate nan", "--rate is nan"),
        ("--rate 2 --rate -1", "--rate is -1"),
        ("--rate fast", "--rate is 'fast'; it must be a number"),
        ("--num-requests 0", "--num-requests is 0; it must be at least 1"),
        ("--max-concurrency -2", "--max-concurrency is -2"),
        ("--input-len 0", "--input-len is 0"),
        ("--output-len 0", "--output-len is 0"),
        ("--burstiness 0", "--burstiness is 0; it must be above 0"),
        ("--burstiness nan", "--burstiness is nan"),
        ("--duration 0", "--duration is 0"),
        ("--timeout -1", "--timeout is -1"),
        ("--warm-up -1", "--warm-up is -1"),
        ("--cancel 1.5", "--cancel is 1.5; it must be a number between 0 and 1"),
        ("--cancel nan", "--cancel is nan"),
        ("--temperature inf", "--temperature is inf"),
        ("--endpoint chats", "--endpoint is 'chats'.*must be one of completions, chat"),
        ("--lengths sharegtp", "--lengths is 'sharegtp'; did you mean 'sharegpt'"),
        ("--extra-body {", "--extra-body is not JSON"),
        ("--extra-body 3", "--extra-body is 3; it must be a JSON object"),
        ("--endpoint chat --prompt-token-ids", "the chat endpoint takes no token ids"),
        ("--vocab-size 9", "--vocab-size needs --prompt-token-ids"),
        ("--duration 5", "--duration at rate inf needs a limit; give --max-concurrency, or a --rate"),
        ("--duration 5 --rate 2 --rate inf", "--duration at rate inf needs a limit"),
        ("--duration inf --rate 2", "--duration at rate inf needs a limit"),
    ],
)
def test_invalid_options_are_rejected(options, says):
    with pytest.raises(ConfigurationError, match=says):
        read(*options.split())


def test_a_duration_at_an_infinite_rate_needs_a_concurrency_limit():
    assert math.isclose(read("--duration", "5", "--max-concurrency", "2").duration_s or 0, 5)
