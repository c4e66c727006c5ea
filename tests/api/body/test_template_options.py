"""How the fields of a body become options of the template; what is rejected is in test_rejections."""

from dataclasses import replace

import pytest

from app.api.body.chat_fields import Message
from app.api.body.parse_chat import parse_chat
from app.api.body.schemas import ChatBody
from app.api.body.template_options import MAX_KWARGS_BYTES, MAX_KWARGS_KEYS, render_options
from app.contract.errors import InvalidValue, UnsupportedParameter
from app.contract.sampling_defaults import SamplingDefaults
from app.text.template.chat_template import RenderOptions
from app.text.template.template_sandbox import TEMPLATE_NAMES, compile_template
from tests.api.serving import make_app, parse, raw
from tests.fakes import MODEL_INFO, FakeEngine
from tests.text.templates import CHATML

USER, ASSISTANT = Message(role="user", content="Hi"), Message(role="assistant", content="Well,")
TEMPLATE = (
    "{{ effort | default(reasoning_effort) }}/{{ enable_thinking | default('unset') }}/{{ messages[-1].content }}$"
)


@pytest.fixture
async def context():
    return (await make_app()).state.context


def options_of(context, *messages: Message, **fields: object) -> RenderOptions:
    return render_options(ChatBody(messages=list(messages or (USER,)), **fields), context.text.tokenizer)


async def test_by_default_the_prompt_begins_an_answer_and_has_no_variables(context):
    assert options_of(context) == RenderOptions(True, False, {})


async def test_the_prompt_can_end_after_the_messages_or_within_the_last_one(context):
    assert options_of(context, add_generation_prompt=False) == RenderOptions(False, False, {})
    for begins in (None, False):
        options = options_of(context, USER, ASSISTANT, continue_final_message=True, add_generation_prompt=begins)
        assert options == RenderOptions(False, True, {})


@pytest.mark.parametrize(
    ("effort", "variables"),
    [
        ("none", {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
        ("minimal", {"reasoning_effort": "minimal", "enable_thinking": False, "thinking": False}),
        ("low", {"reasoning_effort": "low"}),
        ("max", {"reasoning_effort": "max"}),
    ],
)
async def test_reasoning_effort_is_a_variable_and_little_effort_disables_thinking(context, effort, variables):
    assert options_of(context, reasoning_effort=effort).variables == variables
    given = variables | {"level": [1, {"a": None}]}
    assert options_of(context, reasoning_effort=effort, chat_template_kwargs=given).variables == given


async def test_the_bounds_of_variables_are_exact(context):
    options_of(context, chat_template_kwargs={"a": "x" * (MAX_KWARGS_BYTES - len('{"a":""}'))})
    options_of(context, chat_template_kwargs={f"a{number}": number for number in range(MAX_KWARGS_KEYS)})


async def test_variables_reach_the_prompt(tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATE)
    context = (await make_app(chat_template=str(file))).state.context
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]
    for fields, expected in (
        ({"reasoning_effort": "none"}, "none/False/Well,$"),
        ({"chat_template_kwargs": {"effort": 7, "enable_thinking": True}}, "7/True/Well,$"),
        ({"chat_template_kwargs": {"effort": "x"}, "continue_final_message": True}, "x/unset/Well,"),
    ):
        request = (await parse(raw({"messages": messages} | fields), context, parse_chat)).request
        assert context.text.tokenizer.decode(request.prompt_token_ids) == expected


@pytest.mark.parametrize(
    ("fields", "temperature"),
    [
        ({}, 0.6),
        ({"chat_template_kwargs": {"enable_thinking": True}}, 0.6),
        ({"chat_template_kwargs": {"enable_thinking": False}}, 0.7),
        ({"reasoning_effort": "none"}, 0.7),
        ({"reasoning_effort": "none", "temperature": 0.1}, 0.1),
        ({"reasoning_effort": "low"}, 0.6),
    ],
    ids=str,
)
async def test_a_chat_without_thinking_has_the_sampling_defaults_for_it(tmp_path, fields, temperature):
    file = tmp_path / "template.jinja"
    file.write_text(CHATML)
    engine = FakeEngine()
    defaults = SamplingDefaults(temperature=0.6, without_thinking=SamplingDefaults(temperature=0.7))
    info = replace(MODEL_INFO, defaults=defaults)
    engine.model_info = lambda: info  # type: ignore[method-assign]
    context = (await make_app(engine, chat_template=str(file))).state.context
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert (await parse(raw(body | fields), context, parse_chat)).request.params.temperature == temperature


ODD_NAMES = [
    "cls", "class", "def", "lambda", "source", "given", "options", "template", "context", "environment", "resolve",
    "missing", "undefined", "blocks", "name", "args", "variables", "__name__", "_",
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(TEMPLATE_NAMES))
async def test_a_variable_cannot_have_the_name_of_something_in_every_template(name):
    context = (await make_app()).state.context
    with pytest.raises(UnsupportedParameter, match="give the variable another name") as caught:
        await parse(raw({"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {name: 1}}), context,
                    parse_chat)  # fmt: skip
    assert caught.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_names_of_python_are_free(name, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages[0].content }}{{ " + name + " }}")
    context = (await make_app(chat_template=str(file))).state.context
    body = {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {name: 7}}
    request = (await parse(raw(body), context, parse_chat)).request
    assert context.text.tokenizer.decode(request.prompt_token_ids) == "Hi7"


@pytest.mark.parametrize("name", ["", "a b", "a-b", "1a", "é", "a.b", "a\n", "{{", "x" * 65])
async def test_a_variable_needs_a_name(name):
    context = (await make_app()).state.context
    with pytest.raises(InvalidValue, match="chat_template_kwargs has"):
        await parse(raw({"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {name: 1}}), context,
                    parse_chat)  # fmt: skip


def test_all_functions_of_templates_are_names_of_templates():
    assert compile_template("").environment.globals.keys() <= TEMPLATE_NAMES
