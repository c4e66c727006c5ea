"""Every field that clients know acts, is accepted, ignored and named, or refused, as the table says."""

import dataclasses
import json
from typing import ClassVar

import pytest

from app.api.body.any_body import AnyBody
from app.api.body.field_table import FIELDS, OFF, Fate, accepted, is_one_of, refused, rule_of
from app.api.body.parse_chat import parse_chat
from app.api.body.parse_completion import parse_completion
from app.api.body.parse_embeddings import EmbeddingsBody, parse_embeddings
from app.api.body.parse_request import parse
from app.api.body.schemas import ChatBody, CompletionBody, StreamOptions, read_fields
from app.api.http.accounts import Sender
from app.contract.errors import InvalidValue, UnsupportedParameter
from app.text.entry.frontend import TextFrontend
from tests.api.known_fields import HUGGING_FACE, KNOWN, OPENAI, STREAM_OPTIONS
from tests.api.serving import make_app, raw
from tools.fields_table import KINDS, all_names

NEEDED = {ChatBody: {"messages": [{"role": "user", "content": "Hi"}]}, CompletionBody: {"prompt": "Hi"},
          EmbeddingsBody: {"input": "Hi"}}  # fmt: skip
VALUES = (None, False, True, 0, 1, 7, -1, 0.5, "", "x", [], ["x"], {}, {"a": 1})
NOT_ACTING = [(name, kind) for name in sorted({*FIELDS, *KNOWN, "loudness"}) for kind in NEEDED
              if rule_of(name, kind).fate is not Fate.ACTS]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": name}} for name in "fg"]
# A value that changes the request, for each field that acts; and what it needs beside it.
ACTING = {
    "stream": True, "stream_options": {"include_usage": True}, "n": 2, "best_of": 3, "use_beam_search": True,
    "beam_width": 3, "length_penalty": 2.0, "early_stopping": True, "temperature": 0.5, "top_p": 0.5, "top_k": 5,
    "min_p": 0.5, "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.5, "logit_bias": {"5": 1},
    "seed": 8, "stop": "x", "stop_token_ids": [5], "ignore_eos": True, "min_tokens": 2, "max_tokens": 5,
    "repetition_stop": True, "context_share": 0.25,
    "prompt_logprobs": 1, "priority": 5, "cache_salt": "x", "queue_timeout": 5, "timeout": 5, "return_token_ids": True,
    "timings": True, "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"},
    "guided_json": {"type": "string"}, "guided_regex": "a", "guided_choice": ["a"], "guided_grammar": 'root ::= "a"',
    "json_schema": {"type": "string"}, "regex": "a", "ebnf": 'root ::= "a"', "grammar": 'root ::= "a"',
    "thinking_token_budget": 5, "messages": [{"role": "user", "content": "Ho"}], "add_generation_prompt": False,
    "continue_final_message": True, "chat_template_kwargs": {"x": 1}, "reasoning_effort": "low", "tools": TOOLS,
    "tool_choice": "required", "parallel_tool_calls": False, "include_reasoning": False, "max_completion_tokens": 5,
    "logprobs": 1, "top_logprobs": 2, "prompt": "Ho", "echo": True, "add_special_tokens": False, "input": "Ho",
    "encoding_format": "base64", "dimensions": 2, "pooling": "last", "normalize": False,
}  # fmt: skip
BESIDE = {
    "stream_options": {"stream": True}, "beam_width": {"use_beam_search": True},
    "length_penalty": {"use_beam_search": True}, "early_stopping": {"use_beam_search": True},
    "continue_final_message": {"messages": [*NEEDED[ChatBody]["messages"], {"role": "assistant", "content": "x"}]},
    "tool_choice": {"tools": TOOLS}, "parallel_tool_calls": {"tools": TOOLS}, "top_logprobs": {"logprobs": True},
}  # fmt: skip
# These need a template or tokenizer that knows them, and have tests of their own.
ELSEWHERE = {"model", "chat_template_kwargs", "reasoning_effort", "reasoning", "include_reasoning",
             "add_special_tokens", "thinking_token_budget"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_known_field_is_decided(name):
    """If this fails, a client sends a new field: let it act, or add a row to `FIELDS`."""
    assert name in FIELDS or any(name in kind.__struct_fields__ for kind in NEEDED)


def test_the_fields_of_the_sdks_are_found():
    assert {"verbosity", "prompt_cache_key", "suffix", "dimensions", "stream"} < OPENAI
    assert {"messages", "tool_prompt"} < HUGGING_FACE


def test_the_options_of_streams_are_known():
    assert set(StreamOptions.__struct_fields__) >= STREAM_OPTIONS


def test_the_table_has_no_row_that_never_applies():
    assert [name for name in FIELDS if all(name in kind.__struct_fields__ for kind in NEEDED)] == []


@pytest.mark.parametrize(("name", "kind"), NOT_ACTING)
def test_a_field_that_does_not_act_is_treated_as_the_table_says(name, kind):
    rule = rule_of(name, kind)
    harmful = tuple(value for value in VALUES if not rule.is_harmless(value))
    for value in [*VALUES, *rule.harmless]:
        body = {**NEEDED[kind], name: value}
        if rule.fate is Fate.REFUSED and is_one_of(value, harmful):
            with pytest.raises(UnsupportedParameter, match=f"^{name} is .*{rule.note[:9]}") as caught:
                read_fields(body, kind, is_strict=False)
            assert caught.value.param == name
            continue
        is_named = rule.fate is Fate.IGNORED and is_one_of(value, harmful)
        assert read_fields(body, kind, is_strict=False)[1] == ((name,) if is_named else ())
        if is_named:
            with pytest.raises(InvalidValue, match="Unknown field"):
                read_fields(body, kind, is_strict=True)
        else:
            read_fields(body, kind, is_strict=True)


def test_null_asks_for_nothing_wherever_a_row_decides():
    assert [name for name, rule in FIELDS.items() if rule.fate is not Fate.ACCEPTED and None not in rule.harmless] == []


def test_a_refused_field_without_values_of_its_own_may_be_empty():
    assert FIELDS["lora"].harmless == OFF
    assert FIELDS["lora"].refusal("lora", [{"id": 0}]) == "lora is not supported; leave it out."
    assert FIELDS["skip_special_tokens"].refusal("skip_special_tokens", False) == (
        "skip_special_tokens is false, and only true is supported; leave it out."
    )
    assert FIELDS["typical_p"].refusal("typical_p", 0.9) == "typical_p is 0.9, and only 1 is supported; leave it out."


@pytest.mark.parametrize(("name", "value"), [
    ("return_tokens_as_token_ids", True), ("skip_special_tokens", False), ("spaces_between_special_tokens", False),
    ("no_stop_trim", True), ("separate_reasoning", False), ("n_probs", 5), ("input_ids", [1]), ("verbosity", "low"),
    ("return_hidden_states", True), ("top_n_sigma", 1.0), ("samplers", ["top_k"]), ("lora", [{"id": 0, "scale": 1}]),
    ("dynatemp_range", 0.5), ("add_special_tokens", True), ("enable_thinking", False),
])  # fmt: skip
def test_what_changes_the_answer_of_a_chat_is_never_ignored(name, value):
    with pytest.raises(UnsupportedParameter):
        read_fields({**NEEDED[ChatBody], name: value}, ChatBody, is_strict=False)


PARSERS = {ChatBody: parse_chat, CompletionBody: parse_completion, EmbeddingsBody: parse_embeddings}
ACTS = [(name, kind) for kind in NEEDED for name in kind.__struct_fields__ if name not in ELSEWHERE]


@pytest.mark.parametrize(("name", "kind"), ACTS)
async def test_a_field_that_acts_changes_the_request(name, kind):
    context = (await make_app()).state.context
    value = True if (name, kind) == ("logprobs", ChatBody) else ACTING[name]
    body = {"seed": 7, **NEEDED[kind], **BESIDE.get(name, {})}
    if kind is EmbeddingsBody:
        del body["seed"]
    without = await parsed(body, kind, context)
    assert outcome(await parsed({**body, name: value}, kind, context)) != outcome(without)


async def parsed(body: dict[str, object], kind: type, context: object) -> object:
    """A body as its route reads it, without the trial of its grammar."""
    return await parse(raw(body), context, PARSERS[kind], Sender())


def outcome(parsed: object) -> str:
    """What a parsed request says, but for its random id and its time."""
    if isinstance(parsed, tuple):  # of embeddings
        requests = [dataclasses.replace(one, id="", arrival_time=0.0, start_deadline=0.0) for one in parsed.requests]
        return repr(parsed._replace(requests=requests))
    request = parsed.request
    times = {name: getattr(request, name) and getattr(request, name) - request.arrival_time
             for name in ("start_deadline", "deadline")}  # fmt: skip
    times = {name: value and round(value) for name, value in times.items()}
    request = dataclasses.replace(request, id="", arrival_time=0.0, **times)
    return repr(dataclasses.replace(parsed, request=request, created=0, token_bytes=None))


async def test_special_tokens_around_a_prompt_can_be_left_out():
    context = (await make_app()).state.context
    asked = []
    tokenizer = context.text.tokenizer
    encode = type(tokenizer).encode

    def encode_and_note(self, text, *, add_special_tokens=True, max_tokens=None):
        asked.append(add_special_tokens)
        return encode(self, text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(tokenizer), "encode", encode_and_note)
        patch.setattr(TextFrontend, "as_question", lambda *_, **__: None)  # `guide` would answer the text of a prompt
        for kind in (CompletionBody, EmbeddingsBody):
            for is_added in (False, True):
                asked.clear()
                await parsed(NEEDED[kind] | {"add_special_tokens": is_added}, kind, context)
                assert (True in asked) == is_added


def test_the_page_of_http_has_all_fields_of_the_three_routes():
    assert {*FIELDS, *ChatBody.__struct_fields__, *CompletionBody.__struct_fields__} <= set(all_names())
    assert set(KINDS.values()) == set(NEEDED)
    json.dumps([rule.harmless for rule in FIELDS.values()])


class OtherBody(AnyBody, kw_only=True):
    """A body of another API."""

    own_rules: ClassVar = {**refused("seed", note="send luck"), **accepted("it is silent", "suffix")}
    options: ClassVar = ("luck",)
    luck: StreamOptions | None = None


def test_the_bodies_of_another_api_have_a_table_of_their_own():
    fates = [rule_of(name, OtherBody).fate for name in ("luck", "seed", "suffix", "echo", "loudness")]
    assert fates == [Fate.ACTS, Fate.REFUSED, Fate.ACCEPTED, Fate.REFUSED, Fate.IGNORED]
    assert rule_of("seed", ChatBody).fate is Fate.ACTS
    with pytest.raises(UnsupportedParameter, match=r"^seed is not supported; send luck"):
        read_fields({"seed": 7}, OtherBody, is_strict=False)


def test_unknown_fields_inside_the_options_of_another_api_are_named():
    fields = {"luck": {"slow_reader": "drop", "more": 1}}
    assert read_fields(fields, OtherBody, is_strict=False)[1] == ("luck.more",)
    with pytest.raises(InvalidValue, match=r"luck\.more"):
        read_fields(fields, OtherBody, is_strict=True)
