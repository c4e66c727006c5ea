"""Fields: strict types, paths in errors, names of unknown ones, rejection of unsupported ones."""

import subprocess
import sys

import pytest

from app.api.body.schemas import ChatBody, CompletionBody, read_fields, sampling_params
from app.contract.errors import InvalidValue, UnsupportedParameter

MESSAGES = [{"role": "user", "content": "Hi"}]


def read_chat(*, is_strict: bool = False, **fields: object):
    return read_fields({"messages": MESSAGES} | fields, ChatBody, is_strict=is_strict)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", True),
        ("max_tokens", 1.0),
        ("max_tokens", "5"),
        ("max_tokens", 2.0**64),
        ("temperature", "1"),
        ("temperature", True),
        ("stream", 1),
        ("stream", "true"),
        ("model", 5),
        ("stop", 5),
        ("stop", [1]),
        ("logprobs", 1),
        ("ignore_eos", "no"),
        ("repetition_stop", "no"),
        ("repetition_stop", 1),
        ("context_share", "all"),
        ("stop_token_ids", [1.5]),
        ("stop_token_ids", "1"),
        ("messages", {}),
        ("messages", None),
        ("stream_options", []),
        ("logit_bias", {"a": 1}),
        ("logit_bias", []),
        ("best_of", 1.0),
        ("use_beam_search", 1),
        ("early_stopping", 1),
        ("length_penalty", True),
        ("priority", 1.0),
        ("cache_salt", 1),
        ("queue_timeout", "1"),
        ("timeout", True),
    ],
)
def test_a_value_of_the_wrong_type_is_rejected_with_its_name(name, value):
    with pytest.raises(InvalidValue) as caught:
        read_chat(**{name: value})
    assert caught.value.param is not None and caught.value.param.startswith(name)


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([{"content": "x"}], "messages[0].role"),
        ([MESSAGES[0], 5], "messages[1]"),
        ([{"role": 1, "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    ],
)
def test_errors_in_messages_name_the_path(messages, path):
    with pytest.raises(InvalidValue) as caught:
        read_chat(messages=messages)
    assert caught.value.param == path


def test_a_missing_field_is_named():
    with pytest.raises(InvalidValue) as caught:
        read_fields({"model": "guide"}, ChatBody, is_strict=False)
    assert caught.value.param == "messages"
    assert "missing" in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("chat_template", "{{ messages }}"),
        ("documents", [{}]),
        ("prompt_embeds", "AAAA"),
        ("echo", True),
        ("echo", 0),
        ("add_special_tokens", 1),
        ("suffix", "end"),
        ("modalities", ["audio"]),
        ("add_special_tokens", True),
    ],
)
def test_an_unsupported_feature_is_rejected_with_its_name(name, value):
    with pytest.raises(UnsupportedParameter) as caught:
        read_chat(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", None),
        ("functions", []),
        ("function_call", "auto"),
        ("response_format", {"type": "text"}),
        ("echo", False),
        ("suffix", None),
        ("modalities", ["text"]),
        ("repeat_penalty", 1.0),
        ("typical_p", 1),
        ("mirostat", 0),
        ("dry_multiplier", 0.0),
    ],
)
def test_an_unsupported_field_with_a_neutral_value_is_accepted(name, value):
    assert read_chat(**{name: value})[1] == ()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "file", "file": {"file_id": "file:///etc/passwd"}},
    ],
)
def test_content_parts_other_than_text_are_rejected(part):
    with pytest.raises(UnsupportedParameter) as caught:
        read_chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, part]}])
    assert caught.value.param == "messages[0].content[1].type"


def test_function_calls_in_messages_are_rejected_unless_null():
    read_chat(messages=[{"role": "assistant", "content": "x", "function_call": None, "refusal": None, "audio": None}])
    with pytest.raises(UnsupportedParameter) as caught:
        read_chat(messages=[{"role": "assistant", "content": "x", "function_call": {"name": "f"}}])
    assert caught.value.param == "messages[0].function_call"


@pytest.mark.parametrize("name", ["prefix", "partial"])
def test_the_beginning_of_an_answer_needs_the_field_of_the_body(name):
    """These fields of a message, of DeepSeek, Mistral and Moonshot, would change the answer."""
    message = {"role": "assistant", "content": "x"}
    read_chat(messages=[message | {name: False}])
    with pytest.raises(UnsupportedParameter, match="send continue_final_message") as caught:
        read_chat(messages=[message | {name: True}])
    assert caught.value.param == f"messages[0].{name}"


def test_unknown_fields_are_named():
    _, ignored = read_chat(loudness="low", stream=True, stream_options={"include_rhymes": False})
    assert ignored == ("loudness", "stream_options.include_rhymes")


ACCEPTED = {
    "store": True,
    "metadata": {"a": 1, "b": "x" * 2000},
    "user": {},
    "service_tier": "auto",
    "verbosity": "medium",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "stream_options": {"include_obfuscation": False},
}


@pytest.mark.parametrize("is_strict", [False, True])
def test_fields_of_openai_that_change_nothing_are_accepted_and_not_reported(is_strict):
    _, ignored = read_chat(**ACCEPTED, stream=True, is_strict=is_strict)
    assert ignored == ()


def test_strict_mode_rejects_unknown_fields_and_names_the_nearest():
    with pytest.raises(InvalidValue, match="temperature") as caught:
        read_chat(temprature=1, is_strict=True)
    assert caught.value.param == "temprature"


@pytest.mark.parametrize(
    ("fields", "path", "guess"),
    [
        ({"stream": True, "stream_options": {"include_usag": True}}, "stream_options.include_usag", "include_usage"),
        ({"stream": True, "stream_options": {"stop": 1}}, "stream_options.stop", None),  # known at the top alone
        ({"structured_outputs": {"json": {}, "regexp": 1}}, "structured_outputs.regexp", "regex"),
    ],
)
def test_strict_mode_names_the_nearest_of_the_fields_at_that_place(fields, path, guess):
    with pytest.raises(InvalidValue) as caught:
        read_chat(**fields, is_strict=True)
    assert caught.value.param == path
    assert str(caught.value) == f"Unknown field {path!r}{f'; did you mean {guess!r}' if guess else ''}."


@pytest.mark.parametrize(
    ("name", "allowed", "rejected"),
    [
        ("priority", [-100, 0, 100], [-101, 101, 2**70]),
        ("cache_salt", ["x", "ü" * 128], ["", "x" * 257, "ü" * 129]),
        ("queue_timeout", [0, 0.5, 1e9], [-0.1, -1]),
        ("timeout", [0.001, 1e9], [0, -1]),
    ],
)
def test_scheduling_fields_have_bounds(name, allowed, rejected):
    for value in allowed:
        assert getattr(read_chat(**{name: value})[0], name) == value
    for value in rejected:
        with pytest.raises(InvalidValue) as caught:
            read_chat(**{name: value})
        assert caught.value.param == name


def test_stream_options_need_a_stream():
    with pytest.raises(InvalidValue):
        read_chat(stream_options={"include_usage": True})


@pytest.mark.parametrize(("reasoning", "fields"), [
    ({"effort": "low"}, {"reasoning_effort": "low"}),
    ({"enabled": False, "effort": "high"}, {"reasoning_effort": "none"}),
    ({"enabled": True}, {}),
    ({}, {}),
    ({"max_tokens": 5, "exclude": True}, {"thinking_token_budget": 5, "include_reasoning": False}),
])  # fmt: skip
def test_reasoning_as_routers_send_it_is_the_same_as_fields_of_a_chat(reasoning, fields):
    body, ignored = read_chat(reasoning=reasoning)
    names = ("reasoning_effort", "thinking_token_budget", "include_reasoning")
    assert {name: value for name in names if (value := getattr(body, name)) is not None} == fields
    assert ignored == ()


def test_reasoning_is_checked_like_other_fields():
    assert read_chat(reasoning={"effort": "low", "loud": 1})[1] == ("reasoning.loud",)
    for fields in ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, {"reasoning": {"effort": "huge"}}):
        with pytest.raises(InvalidValue) as caught:
            read_chat(**fields)
        assert caught.value.param.startswith("reasoning")


def test_null_means_the_default():
    body, ignored = read_chat(temperature=None, stop=None, stream=None, max_tokens=None, stream_options=None)
    params = sampling_params(body, None, max_tokens=None, logprobs=None)
    assert params == sampling_params(read_chat()[0], None, max_tokens=None, logprobs=None)
    assert ignored == ()


def test_all_sampling_fields_reach_the_parameters():
    given = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -1,
        "repetition_penalty": 1.1, "logit_bias": {"5": -100}, "seed": 7, "stop": ["a"], "stop_token_ids": [3],
        "ignore_eos": True, "min_tokens": 2, "n": 2, "best_of": 3, "repetition_stop": True,
    }  # fmt: skip
    body, _ = read_fields({"prompt": "x"} | given, CompletionBody, is_strict=True)
    params = sampling_params(body, None, max_tokens=9, logprobs=3)
    expected = given | {"logit_bias": {5: -100.0}, "max_tokens": 9, "logprobs": 3}
    assert {name: getattr(params, name) for name in expected} == expected
    beams = {"use_beam_search": True, "beam_width": 4, "length_penalty": -0.5, "early_stopping": True}
    params = sampling_params(read_chat(**beams)[0], None, max_tokens=None, logprobs=None)
    assert {name: getattr(params, name) for name in beams} == beams


AT_ONCE = """
import sys, threading
from app.api.body.schemas import ChatBody, CompletionBody, learn_body_types, read_fields
learn_body_types((ChatBody, CompletionBody))  # as create_app does
sys.setswitchinterval(1e-6)
start = threading.Barrier(8)
def read(kind, fields):
    start.wait()
    read_fields(fields, kind, is_strict=False)
message = {"role": "user", "content": [{"type": "text", "text": "x"}]}
chat = {"messages": [message], "stream": True, "stream_options": {}}
bodies = [(ChatBody, chat), (CompletionBody, {"prompt": "x"})] * 4
threads = [threading.Thread(target=read, args=body) for body in bodies]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_the_first_bodies_of_a_process_may_be_parsed_concurrently():
    """`create_app` analyzes the types beforehand: threads that did so at the same time crashed the process."""
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", AT_ONCE]).returncode == 0
