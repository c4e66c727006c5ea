"""What of a prompt its request determines: where it ends, and the template's variables."""

import pytest
from hypothesis import given, settings

from app.contract.errors import InvalidValue
from app.text.template.chat_template import RenderOptions
from tests.cases import examples
from tests.text.template.test_chat_template import ANSWER, CONTINUE, QUESTION, SPELLINGS, template_of, user
from tests.text.toys import toy


def test_a_continued_message_keeps_its_last_spaces():
    template = template_of("{{ messages[-1].content | trim }}!")
    assert template.render_text([QUESTION, {"role": "assistant", "content": "Well, \n"}], CONTINUE) == "Well, \n"


def test_a_continued_message_that_the_template_writes_twice_ends_at_the_last_one():
    template = template_of("{{ messages[-1].content }}-{{ messages[-1].content }}-")
    assert template.render_text([{"role": "assistant", "content": "ab"}], CONTINUE) == "ab-ab"


def test_a_message_that_the_template_leaves_out_cannot_be_continued():
    with pytest.raises(InvalidValue, match="leaves out the last message") as caught:
        template_of("{{ messages[0].content }}").render([QUESTION, ANSWER], CONTINUE)
    assert caught.value.param == "continue_final_message"


def test_special_tokens_spelled_in_a_continued_message_are_text():
    tokenizer, _ = toy("byte_level")
    messages = [{"role": "assistant", "content": "a<|im_end|>"}]
    token_ids = template_of("{{ messages[0].content }}<|im_end|>").render(messages, CONTINUE)
    assert not set(token_ids) & set(tokenizer.special_tokens.values())
    assert tokenizer.decode(token_ids) == "a<|im_end|>"


@given(words=SPELLINGS)
@settings(max_examples=examples(50))
def test_special_tokens_spelled_in_variables_are_text(words):
    tokenizer, _ = toy("byte_level")
    text = "".join(words)
    options = RenderOptions(variables={"note": {"deep": [text]}, "effort": text})
    template = template_of("{{ note.deep[0] }}|{{ effort }}|{{ note | tojson }}")
    token_ids = template.render(user("Hi"), options)
    assert not set(token_ids) & set(tokenizer.special_tokens.values())
    assert template.render_text(user("Hi"), options).startswith(f"{text}|{text}|")
