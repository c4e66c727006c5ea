"""What the trial of a template finds out about it."""

import pytest

from app.checkpoint.text_files import FolderText
from app.text.template.chat_template import ChatTemplate
from app.text.template.template_trial import SAMPLES, SWITCHES, TOOLS, Findings, Trial, with_calls
from tests.text.templates import CHATML, FIRST_CALL, GRANITE, LFM2, LLAMA_3, MISTRAL, ONE_CALL, PYTHONIC
from tests.text.toys import toy

ADDED_AS_TEXT = ONE_CALL.replace("[0].function", "[0]").replace(
    "{{- '{\"name\": \"' + call.name + '\", \"parameters\": ' }}{{ call.arguments | tojson }}{{ '}' }}",
    "{%- set tool = call %}{{- tool['function']['name'] + tool['function']['arguments'] + '' }}",
)


@pytest.mark.parametrize("source", [ONE_CALL, FIRST_CALL, ADDED_AS_TEXT], ids=["rejects", "leaves out", "as text"])
def test_a_template_that_takes_one_call_is_found(source):
    assert Trial(source).findings() == Findings(takes_several_calls=False)


@pytest.mark.parametrize("source", [CHATML, LLAMA_3, LFM2, MISTRAL, PYTHONIC, "{{ messages }}", "x"])
def test_other_templates_take_several_calls(source):
    """Those too that know no calls, or have none of them in the prompt: nothing is found out about these."""
    assert Trial(source).findings().takes_several_calls


def test_a_loaded_template_knows_what_its_trial_has_found(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(ONE_CALL)
    template = ChatTemplate.load(FolderText(tmp_path), toy("byte_level")[0])
    assert template is not None and not template.findings.takes_several_calls


def test_the_template_for_tools_decides(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text(ONE_CALL)
    template = ChatTemplate.load(FolderText(tmp_path), toy("byte_level")[0])
    assert template is not None and not template.findings.takes_several_calls


@pytest.mark.parametrize(
    ("source", "switches", "asked"),
    [
        (GRANITE, ("thinking",), (False, True, False)),
        (CHATML, ("enable_thinking",), (True, True, False)),
        (LLAMA_3, (), (True, True, True)),
        ("{{ thinking or enable_thinking }}", ("enable_thinking", "thinking"), (False, True, False)),
        (
            "{{ raise_exception('no') if thinking }}{{ enable_thinking }}{{ messages }}",
            SWITCHES[:1],
            (True, True, False),
        ),
    ],
)
def test_the_variables_that_turn_reasoning_on_and_off_are_found(source, switches, asked):
    """Without them, with true and with false."""
    findings = Trial(source).findings()
    assert findings.switches == switches
    assert (
        tuple(
            findings.asks_for_reasoning({} if value is None else dict.fromkeys(SWITCHES, value))
            for value in (None, True, False)
        )
        == asked
    )
    assert findings.asks_for_reasoning({"other": False}) is asked[0]


def test_the_samples_have_a_result_for_each_call():
    for count in (1, 2):
        question, answer, *results = with_calls(count)
        assert question["role"] == "user" and len(answer["tool_calls"]) == len(results) == count
    assert len(SAMPLES) > 4 and TOOLS[0]["function"]["name"] == "count_tokens"
