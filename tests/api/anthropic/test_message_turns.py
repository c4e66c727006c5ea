"""Messages of the Messages API as messages of a chat."""

import msgspec
import pytest

from app.api.anthropic.message_fields import CountTokensBody
from app.api.anthropic.message_turns import chat_messages, is_continued
from app.contract.errors import InvalidValue, RequestError, UnsupportedParameter
from tests.api.anthropic.messages import parsed, prompt_of
from tests.api.serving import make_app

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
PDF = {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.332; cch={};"


def text(content: str) -> dict:
    return {"type": "text", "text": content}


def turns(*messages: dict, system=None, definitions=None, **options) -> list[dict]:
    """The chat's messages, without the fields that they leave out."""
    body = msgspec.convert({"messages": list(messages), "system": system}, CountTokensBody)
    found = chat_messages(body, definitions or {}, **options)
    return [{k: v for k, v in msgspec.to_builtins(message).items() if v is not None} for message in found]


def user(*content) -> dict:
    return {"role": "user", "content": list(content)}


def assistant(*content) -> dict:
    return {"role": "assistant", "content": list(content)}


def test_texts_stay_texts_and_several_become_parts():
    assert turns({"role": "user", "content": "a"}) == [{"role": "user", "content": "a"}]
    assert turns(user(text("a"))) == [{"role": "user", "content": "a"}]
    assert turns(user(text("a"), text("b")))[0]["content"] == [text("a"), text("b")]


def test_the_system_blocks_are_joined_without_anything_between():
    expected = [{"role": "system", "content": "ab"}, {"role": "user", "content": "c"}]
    assert turns(user(text("c")), system=[text("a"), text("b")]) == expected
    assert turns(user(text("c")), system="ab") == expected
    assert turns(user(text("c")), system=[])[0]["role"] == "user"


def test_a_system_message_stays_in_its_place():
    found = turns(user(text("a")), {"role": "system", "content": "b"}, user(text("c")))
    assert [(one["role"], one["content"]) for one in found] == [("user", "a"), ("system", "b"), ("user", "c")]


def test_an_answer_is_one_message():
    found = turns(
        user(text("a")),
        assistant(
            {"type": "thinking", "thinking": "b", "signature": "x"},
            text("c"),
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
            {"type": "redacted_thinking", "data": "y"},
            {"type": "thinking", "thinking": "d", "signature": "x"},
            {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
            text("e"),
        ),
    )
    call, other = found[1]["tool_calls"]
    assert (call["id"], call["function"]) == ("toolu_1", {"name": "f", "arguments": {"x": 1}})
    assert (other["id"], other["function"]) == ("toolu_2", {"name": "g", "arguments": {}})
    assert found[1]["reasoning_content"] == "b\nd"
    assert found[1]["content"] == [text("c"), text("e")]


def test_results_come_before_the_texts_of_their_message():
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "warm"}
    found = turns(user(text("a"), result, text("b"), result | {"tool_use_id": "toolu_2"}))
    assert [(one["role"], one.get("tool_call_id")) for one in found] == [
        ("tool", "toolu_1"), ("tool", "toolu_2"), ("user", None),
    ]  # fmt: skip
    assert turns(user(result)) == [{"role": "tool", "content": "warm", "tool_call_id": "toolu_1"}]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ""),
        ({"content": "a"}, "a"),
        ({"content": [text("a"), text("b")]}, "a\nb"),
        ({"content": [text("a"), IMAGE]}, "a\n[image left out: this model reads text]"),
        ({"content": [PDF]}, "[document left out: this model reads text]"),
        ({"content": [{"type": "document", "source": {"type": "text", "data": "c"}}]}, "c"),
        ({"content": [{"type": "search_result", "content": [text("d"), text("e")]}]}, "d\ne"),
        ({"content": [{"type": "tool_reference", "tool_name": "f"}]}, '{"name": "f"}'),
        ({"content": [{"type": "tool_reference", "tool_name": "unknown"}]}, "unknown"),
        ({"content": "a", "is_error": True}, "Error: a"),
        ({"content": "Error: a", "is_error": True}, "Error: a"),
        ({"content": "a", "is_error": False}, "a"),
        ({"is_error": True}, "Error: "),
    ],
)
def test_a_result_is_a_text(fields, expected):
    block = {"type": "tool_result", "tool_use_id": "toolu_1", **fields}
    assert turns(user(block), definitions={"f": '{"name": "f"}'})[0]["content"] == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "a"}, "a"),
        ({"type": "content", "content": "b"}, "b"),
        ({"type": "content", "content": [text("c"), text("d")]}, "c\nd"),
    ],
)
def test_a_document_with_a_text_is_read(source, expected):
    assert turns(user({"type": "document", "source": source}))[0]["content"] == expected


@pytest.mark.parametrize(
    "block",
    [IMAGE, PDF, {"type": "document", "source": {}}, {"type": "document", "source": {"type": "text", "data": 3}},
     {"type": "document", "source": {"type": "content", "content": [text("a"), IMAGE]}}],
)  # fmt: skip
def test_what_is_no_text_is_refused_in_words_that_clients_know(block):
    with pytest.raises(UnsupportedParameter, match="Could not process image: this model reads text only") as caught:
        turns(user(text("a")), user(text("b"), block))
    assert caught.value.param == "messages[1].content[1]"
    assert caught.value.message.startswith("messages[1].content[1]: ")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (user(), "messages[0].content"),
        (user({"type": "tool_use", "id": "a", "name": "f", "input": {}}), "messages[0].content[0]"),
        (user({"type": "thinking", "thinking": "a"}), "messages[0].content[0]"),
        (assistant({"type": "tool_result", "tool_use_id": "a"}), "messages[0].content[0]"),
        (assistant(text("a"), IMAGE), "messages[0].content[1]"),
        ({"role": "system", "content": [{"type": "thinking", "thinking": "a"}]}, "messages[0].content[0]"),
        (user({"type": "tool_result", "tool_use_id": "a" * 257}), "messages[0].content[0].tool_use_id"),
        (assistant({"type": "tool_use", "id": "a" * 257, "name": "f"}), "messages[0].content[0].id"),
    ],
)
def test_a_misplaced_or_wrong_block_is_named(message, param):
    with pytest.raises(InvalidValue) as caught:
        turns(message)
    assert caught.value.param == param and caught.value.message.startswith(param)


def test_the_number_of_messages_is_bounded(monkeypatch):
    monkeypatch.setattr("app.api.anthropic.message_turns.MAX_MESSAGES", 3)
    assert len(turns(*[user(text("a"))] * 3)) == 3
    for count in (0, 4):
        with pytest.raises(RequestError, match=f"messages has {count} items; it must have 1 to 3"):
            turns(*[user(text("a"))] * count)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (assistant(text("The answer is")), True),
        ({"role": "assistant", "content": "a"}, True),
        (assistant(), False),
        ({"role": "assistant", "content": ""}, False),
        (assistant(text("a"), {"type": "tool_use", "id": "a", "name": "f"}), False),
        (user(text("a")), False),
    ],
)
def test_the_text_of_a_last_answer_is_continued(message, expected):
    body = msgspec.convert({"messages": [message]}, CountTokensBody)
    assert is_continued(chat_messages(body, {})) is expected
    assert not is_continued([])


BLOCKS = [
    ([text(BILLING.format(1)), text("Be brief.")], "Be brief."),
    ([text(BILLING.format(1) + "\nBe brief.")], "Be brief."),
    ([text("Be brief.\n" + BILLING.format(1))], "Be brief."),
    ([text("a\n" + BILLING.format(1) + "\nb")], "a\nb"),
    ([text("a " + BILLING.format(1))], "a " + BILLING.format(1)),
    (BILLING.format(1) + "\nBe brief.", "Be brief."),
]


@pytest.mark.parametrize(("system", "expected"), BLOCKS)
def test_a_billing_line_is_left_out_of_system_prompts(system, expected):
    assert turns(user(text("c")), system=system)[0]["content"] == expected
    in_place = {"role": "system", "content": system}
    assert [one["content"] for one in turns(user(text("c")), in_place) if one["role"] == "system"] == [expected]


def test_a_billing_line_stays_where_it_is_wanted_and_in_the_text_of_users():
    line = BILLING.format(1)
    assert turns(user(text("c")), system=[text(line), text("a")], keeps_billing_line=True)[0]["content"] == line + "a"
    assert turns(user(text(line)))[0]["content"] == line
    assert turns({"role": "system", "content": line}, user(text("a"))) == [{"role": "user", "content": "a"}]


async def test_two_conversations_with_other_billing_lines_share_their_prefix():
    app, kept = await make_app(), await make_app(keep_billing_line=True)
    bodies = [{"system": [text(BILLING.format(number)), text("Be brief.")]} for number in (1, 2)]
    first, second = [(await parsed(app, **body)).request.prompt_token_ids for body in bodies]
    assert first == second
    first, second = [(await parsed(kept, **body)).request.prompt_token_ids for body in bodies]
    assert first != second


CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "3 degrees"}


async def test_the_same_content_as_a_text_and_as_a_block_has_the_same_tokens():
    """The mark `cache_control` wanders with the end of a conversation, and makes a list of a text."""
    marked = {"cache_control": {"type": "ephemeral"}}

    def spelled(*, as_blocks: bool) -> dict:
        def content(one: str) -> object:
            return [text(one) | marked] if as_blocks else one

        messages = [
            {"role": "user", "content": content("How warm is it?")},
            assistant(CALL | (marked if as_blocks else {})),
            user(RESULT | {"content": content("3 degrees")}),
            {"role": "assistant", "content": content("Cold.")},
            {"role": "system", "content": content("10 tokens remain.")},
            {"role": "user", "content": content("Thanks!")},
        ]
        return {"system": content("Be brief."), "messages": messages}

    app = await make_app()
    prompts = [(await parsed(app, **spelled(as_blocks=is_so))).request.prompt_token_ids for is_so in (False, True)]
    assert prompts[0] == prompts[1]


async def test_the_prompt_of_a_turn_begins_with_that_of_the_turn_before():
    app = await make_app()
    messages: list[dict] = []
    before = ""
    for number in range(10):
        messages = [*messages, user(text(f"question {number}")), {"role": "system", "content": f"{90 - number} left"}]
        prompt = await prompt_of(app, system="Be brief.", messages=messages)
        assert prompt.startswith(before)
        before = await prompt_of(app, system="Be brief.", messages=[*messages, assistant(text("x"))])
        before = before.rpartition("x")[0]
        call, result = CALL | {"id": f"toolu_{number}"}, RESULT | {"tool_use_id": f"toolu_{number}"}
        messages = [*messages, assistant(call), user(result), assistant(text("Cold."))]


async def test_ids_are_not_in_the_prompt():
    app = await make_app()

    async def prompt(call_id: str) -> str:
        messages = [user(text("a")), assistant(CALL | {"id": call_id}), user(RESULT | {"tool_use_id": call_id})]
        return await prompt_of(app, messages=messages, metadata={"user_id": call_id})

    assert await prompt("toolu_1") == await prompt("toolu_2")
