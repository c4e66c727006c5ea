"""Turns that templates do not take: found out once for a template, and fitted to it."""

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checkpoint.checkpoint_folder import EMBEDDED
from app.checkpoint.names import resolve
from app.checkpoint.text_files import FolderText
from app.config.settings import ModelConfig
from app.text.entry.frontend import TextFrontend
from app.text.template import template_trial
from app.text.template.chat_template import ChatTemplate, RenderOptions
from app.text.template.template_trial import Findings, Trial
from app.text.template.turns import AS_GIVEN, Turns, turns_of
from tests.text import templates
from tests.text.toys import oracle, template_of, toy, write_folder

TAKEN = {
    "LLAMA_3": AS_GIVEN,
    "CHATML": AS_GIVEN,
    "PYTHONIC": AS_GIVEN,
    "LFM2": AS_GIVEN,
    "MISTRAL": Turns(False, False, False, False, False, False),
    "GEMMA_2": Turns(False, False, False, False, False, False),
    "GEMMA_3": Turns(True, False, False, False, False, False),
    "MISTRAL_3": Turns(True, False, False, False, False, False),
    "PHI_3": Turns(False, False, False, True),
    "QWEN_FIRST": Turns(True, False, False, True),
}
ROLES = {"s": "system", "u": "user", "a": "assistant"}
# Codex begins with two developer messages and two of the user; other agents put a system line behind each question.
SEQUENCES = [
    "u",
    "su",
    "uau",
    "suau",
    "ssuu",
    "ssuuau",
    "sus",
    "susau",
    "suasuasu",
    "uuu",
    "uaau",
    "usu",
    "uasa",
    "s",
    "au",
    "sau",
    "ss",
    "aau",
]


def chat(roles: str) -> list[dict[str, str]]:
    return [{"role": ROLES[role], "content": f"<{number}>"} for number, role in enumerate(roles)]


def found(source: str) -> Turns:
    """What a trial in this process finds."""
    finding = template_trial._try(source)
    assert finding.reason is None
    return finding.turns


@pytest.mark.parametrize("name", TAKEN)
def test_what_a_template_takes_is_found(name):
    assert found(getattr(templates, name)) == TAKEN[name]


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("roles", SEQUENCES)
def test_every_text_is_in_the_prompt(name, roles):
    source = getattr(templates, name)
    messages = chat(roles)
    text = template_of(source).taking(Findings(turns=found(source))).render_text(messages)
    assert all(message["content"] in text for message in messages)


UNCHANGED = [(name, roles) for name, roles in product(TAKEN, SEQUENCES) if TAKEN[name].fit(chat(roles)) == chat(roles)]


CALL = {"id": "c23456789", "type": "function", "function": {"name": "f", "arguments": '{"text": "<cut'}}


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("results", [[], [{"role": "tool", "content": "<result>", "tool_call_id": CALL["id"]}]])
def test_a_question_may_follow_a_call_or_its_result(name, results):
    """As when an answer was cut in a call, and its user asks on."""
    messages = [*chat("u"), {"role": "assistant", "content": None, "tool_calls": [CALL]}, *results, *chat("uu")[1:]]
    source = getattr(templates, name)
    template = template_of(source).taking(Findings(turns=found(source)))
    text = template.render_text(messages)
    assert all(message["content"] in text for message in [*messages[:1], *results, messages[-1]])


@pytest.mark.parametrize(("name", "roles"), UNCHANGED)
def test_what_a_template_takes_is_rendered_as_before(tmp_path, name, roles):
    """The tokens are those of transformers for every chat that needs no change."""
    turns, messages = TAKEN[name], chat(roles)
    folder = write_folder(tmp_path, chat_template=getattr(templates, name))
    expected = oracle(folder).apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert template_of(getattr(templates, name)).taking(Findings(turns=turns)).render(messages) == expected


def test_the_trial_of_a_template_that_is_loaded_decides(tmp_path):
    for name in ("GEMMA_3", "LLAMA_3"):
        (tmp_path / "chat_template.jinja").write_text(getattr(templates, name))
        template = ChatTemplate.load(FolderText(tmp_path), toy("byte_level")[0])
        assert template is not None and template.findings.turns == TAKEN[name]
        assert Trial(getattr(templates, name)).findings().turns == TAKEN[name]


def test_the_template_for_tools_has_its_own(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(templates.LLAMA_3)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("{{ tools }}" + templates.GEMMA_3)
    template = ChatTemplate.load(FolderText(tmp_path), toy("byte_level")[0])
    assert template is not None
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert "<1>\n\n<2>" in template.render_text(chat("suu"), RenderOptions(tools=[tool]))
    assert "<1>\n\n<2>" not in template.render_text(chat("suu"))


def test_the_embedded_model_takes_every_chat_as_it_is():
    template = TextFrontend.load(ModelConfig(), FolderText(resolve(EMBEDDED))).chat_template
    assert template is not None and template.findings.turns == AS_GIVEN
    assert template.render_text(chat("sus")).endswith("<1><|end|><|assistant|>")


def fitted(turns: Turns, roles: str) -> str:
    """The messages as roles and numbers."""
    short = {role: letter for letter, role in ROLES.items()}
    return " ".join(
        short[message["role"]] + message["content"].replace("\n\n", "").replace("<", "").replace(">", "")
        for message in turns.fit(chat(roles))
    )


@pytest.mark.parametrize(
    ("turns", "roles", "expected"),
    [
        (AS_GIVEN, "ssuusaa", "s0 s1 u2 u3 s4 a5 a6"),
        (Turns(has_systems=False), "ssusu", "s01 u2 s3 u4"),
        (Turns(has_later_systems=False), "ssusu", "s0 s1 u2 u3 u4"),
        (Turns(has_equal_roles=False), "ssuusaa", "s0 s1 u23 s4 a56"),
        (Turns(True, False, False, False), "ssuusuaasu", "s01 u2345 a67 u89"),
        (Turns(False, False, False, True), "ssuua", "u012 u3 a4"),
        (Turns(False, False, False, True), "sau", "u0 a1 u2"),
        (Turns(False, False, False, False), "ssus", "u0123"),
        (Turns(False, False, False, False), "s", "u0"),
        (Turns(False, False, False, False), "ua", "u0 a1"),
        (Turns(has_late_question=False), "ssau", "s0 s1 u a2 u3"),
        (Turns(has_late_question=False), "s", "s0 u"),
        (Turns(has_late_question=False), "sua", "s0 u1 a2"),
        (Turns(False, has_late_question=False), "sau", "u0 a1 u2"),
    ],
)
def test_turns_are_fitted(turns, roles, expected):
    assert fitted(turns, roles) == expected


ALL = [Turns(*flags) for flags in product((True, False), repeat=4)]


@given(turns=st.sampled_from(ALL), roles=st.text("sua", min_size=1, max_size=12), more=st.text("sua", max_size=4))
def test_fitting_keeps_all_texts_in_order_and_what_came_before(turns, roles, more):
    messages = chat(roles)
    shown = "".join(str(message["content"]) for message in turns.fit(messages)).replace("\n\n", "")
    assert shown == "".join(message["content"] for message in messages)
    assert turns.fit(turns.fit(messages)) == turns.fit(messages)
    continued = turns.fit(chat(roles + more))
    assert continued[: len(turns.fit(messages)) - 1] == turns.fit(messages)[:-1], "only the last one may grow"


def test_results_stay_with_their_calls():
    call = {"id": "1", "function": {"name": "f", "arguments": {}}}
    messages = [
        *chat("u"),
        {"role": "assistant", "content": "Wait.", "reasoning_content": "Hm."},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "So."},
        {"role": "assistant", "tool_calls": [{**call, "id": "2"}]},
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "tool", "tool_call_id": "2", "content": "b"},
        *chat("a"),
    ]
    user, answer, *results, last = Turns(has_equal_roles=False).fit(messages)
    assert answer == {
        "role": "assistant",
        "content": "Wait.",
        "reasoning_content": "Hm.\n\nSo.",
        "tool_calls": [call, {**call, "id": "2"}],
    }
    assert results == messages[4:6] and [user, last] == [*chat("u"), *chat("a")]


def test_messages_are_not_changed():
    messages = chat("ssuu")
    before = json.dumps(messages)
    Turns(False, False, False, False).fit(messages)
    assert json.dumps(messages) == before


def test_parts_that_are_no_text_are_kept():
    image = {"type": "image"}
    messages = [{"role": "user", "content": [image]}, {"role": "user", "content": "What is this?"}]
    [joined] = Turns(has_equal_roles=False).fit(messages)
    assert joined["content"] == [image, {"type": "text", "text": "What is this?"}]


def test_a_continued_answer_is_continued_behind_what_it_is_joined_with():
    template = template_of(templates.GEMMA_3).taking(Findings(turns=TAKEN["GEMMA_3"]))
    options = RenderOptions(False, continue_final=True)
    assert template.render_text(chat("uaa"), options).endswith("<start_of_turn>model\n<1>\n\n<2>")


def test_tools_of_a_template_without_a_system_message_are_in_the_first_question():
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    template = template_of(templates.GEMMA_2).taking(Findings(turns=TAKEN["GEMMA_2"]))
    call = {"id": "1", "function": {"name": "f", "arguments": {}}}
    messages = [
        *chat("su"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42"},
        {"role": "user", "content": "And now?"},
    ]
    text = template.render_text(messages, RenderOptions(tools=[tool]))
    assert text.startswith("<s><start_of_turn>user\n<0>\n\n# Tools")
    assert "<tool_response>\n42\n</tool_response>\n\nAnd now?<end_of_turn>" in text


@pytest.mark.parametrize(
    "source",
    ["{{ messages[0].content }}", "{{ messages[-1].content }}", "plain", "{{ messages[0].content[0].text }}"],
)
def test_a_template_that_does_not_show_a_plain_chat_is_not_judged(source):
    assert found(source) == AS_GIVEN


def test_a_chat_is_shown_when_all_its_texts_are():
    shown: list[list[str]] = []

    def shows(messages) -> bool:
        shown.append([message["role"] for message in messages])
        return shown[-1][-1] != "system"

    assert turns_of(shows) == Turns(True, True, False, True, False)
    assert ["system", "system", "user"] in shown and ["user", "user"] in shown
