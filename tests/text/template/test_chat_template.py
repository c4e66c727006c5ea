"""Chat templates, compared with `apply_chat_template` of transformers on the same folder."""

import json
import re
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.checkpoint import text_files
from app.checkpoint.text_files import FolderText
from app.contract.errors import ConfigurationError, InvalidValue, ModelRefused
from app.text.template import chat_template, spelled_tokens
from app.text.template.chat_template import ChatTemplate, RenderOptions
from app.text.template.template_allowance import MAX_RANGE
from app.text.tokens.tokenizer import Tokenizer
from tests.cases import examples
from tests.text.templates import CHATML, LLAMA_3, MISTRAL
from tests.text.toys import SPECIAL, oracle, template_of, toy, user, write_folder

GUIDE = Path(chat_template.__file__).parents[2] / "models/guide/tokenizer_config.json"
TEMPLATES = {
    "llama 3": LLAMA_3,
    "chatml": CHATML,
    "mistral": MISTRAL,
    "guide": json.loads(GUIDE.read_text(encoding="utf-8"))["chat_template"],
}
QUESTION = {"role": "user", "content": "  What is a quick 猫? \n"}
ANSWER = {"role": "assistant", "content": "<think>hm</think>\n\nA fast 🙂 one.", "name": None}
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
CONVERSATIONS = [[QUESTION], [QUESTION, ANSWER, QUESTION], [SYSTEM, QUESTION], [QUESTION, ANSWER] * 4 + [QUESTION]]
CONTINUE = RenderOptions(False, continue_final=True)
SPELLINGS = st.lists(
    st.sampled_from([*SPECIAL, "<think>", "<|im_", "start|>", "a b", " ", "\n", "猫", "<", "|"]), max_size=6
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Template name and tokenizer kind -> our template and the tokenizer of transformers."""
    made = {}
    for name, source in TEMPLATES.items():
        for kind in ("byte_level", "sentencepiece", "metaspace"):
            folder = write_folder(tmp_path_factory.mktemp(kind), kind, chat_template=source)
            made[name, kind] = ChatTemplate.load(FolderText(folder), Tokenizer.load(FolderText(folder))), oracle(folder)
    return made


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=len)
@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": False}, {"enable_thinking": False}], ids=str)
def test_prompts_are_those_of_transformers(pairs, name, kind, messages, options):
    ours, theirs = pairs[name, kind]
    if name == "mistral" and messages[0]["role"] == "system":
        messages = messages[1:]
    expected = theirs.apply_chat_template(messages, **{"add_generation_prompt": True, **options}, return_dict=False)
    begins_answer = options.get("add_generation_prompt", True)
    variables = {name: value for name, value in options.items() if name != "add_generation_prompt"}
    assert ours.render(messages, RenderOptions(begins_answer, variables=variables)) == expected


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("content", ["A fast one", "It is", "A fast 🙂 one.", "a\n\nb"])
def test_a_continued_message_ends_the_prompt_as_in_transformers(pairs, name, kind, content):
    ours, theirs = pairs[name, kind]
    messages = [QUESTION, {"role": "assistant", "content": content}]
    expected = theirs.apply_chat_template(messages, continue_final_message=True, return_dict=False)
    assert ours.render(messages, CONTINUE) == expected


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "metaspace"])
@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=examples(25))
@given(words=SPELLINGS)
def test_special_tokens_spelled_in_messages_are_text(pairs, name, kind, words):
    """As `sanitize_control_tokens` of transformers: only the template adds ids of special tokens."""
    ours, theirs = pairs[name, kind]
    messages = [{"role": "user", "content": "".join(words)}]
    token_ids = ours.render(messages)
    assert token_ids == theirs.apply_chat_template(
        messages, add_generation_prompt=True, sanitize_control_tokens=True, return_dict=False
    )
    special = set(theirs.all_special_ids) | set(ours._tokenizer.special_tokens.values())
    own = [token_id for token_id in ours.render(user("")) if token_id in special]
    assert [token_id for token_id in token_ids if token_id in special] == own


@pytest.mark.parametrize("slicing", ["{{ messages[0].content[:-1] }}", "{{ messages[0].content[1:] }}"])
def test_a_template_that_slices_a_message_cannot_turn_text_into_a_special_token(slicing):
    tokenizer, _ = toy("byte_level")
    token_ids = template_of(slicing).render(user("<|im_end|>"))
    assert not set(token_ids) & set(tokenizer.special_tokens.values())
    assert tokenizer.decode(token_ids) == "<|im_end|>"


def test_ids_of_calls_are_those_that_the_family_learned():
    """Kimi's models: the function's name and the call's number, whatever ids the client has."""
    template = template_of(
        "{% for m in messages %}{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }}"
        "<|tool_call_argument_begin|>{% endfor %}{{ m.tool_call_id }}{% endfor %}{{ tools }}"
    )
    calls = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {}}}]
    text = template.render_text(
        [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "call_1", "content": "x"}]
    )
    assert text.startswith("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>functions.f:0")


def test_text_parts_cannot_form_a_special_token_together():
    tokenizer, _ = toy("byte_level")
    parts = [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]
    token_ids = template_of("{{ messages[0].content }}").render(user(parts))
    assert tokenizer.decode(token_ids) == "<|im_\nend|>"


def test_private_use_characters_of_a_message_are_kept(pairs):
    tokenizer, _ = toy("byte_level")
    content = "\U000f0000<|im_end|>\U000f0001\U000f0002"
    assert tokenizer.decode(template_of("{{ messages[0].content }}").render(user(content))) == content


def test_messages_with_all_private_use_characters_are_rejected(monkeypatch):
    monkeypatch.setattr(spelled_tokens, "_PRIVATE_USE", (range(0xF0000, 0xF0002),))
    with pytest.raises(InvalidValue, match="private-use"):
        template_of(CHATML).render(user("<s>\U000f0001"))


def test_messages_are_not_changed():
    messages = [{"role": "user", "content": "<s>", "name": None}]
    template_of(CHATML).render(messages)
    assert messages == [{"role": "user", "content": "<s>", "name": None}]


def test_raise_exception_of_a_template_is_reported():
    with pytest.raises(InvalidValue, match="rejects these messages: Roles must alternate") as caught:
        template_of(MISTRAL).render([ANSWER])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("source", [
    "{{ messages[0].content + 1 }}",
    "{{ 1 // 0 }}",
    "{{ raise_exception(5) }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ lipsum() }}",
    "{% include 'tokenizer.json' %}",
    "{% import 'os' as os %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    f"{{{{ range({MAX_RANGE} + 1) }}}}",
    "{{ range(10 ** 40) }}",
    "{% for i in range(9999) %}{{ 'x' * 999 }}{% endfor %}",
])  # fmt: skip
def test_forbidden_operations_of_a_template_are_rejected(source):
    with pytest.raises(InvalidValue, match=r"chat template (rejects|cannot render)") as caught:
        template_of(source).render(user("hello"))
    assert caught.value.param == "messages"


def test_a_lone_surrogate_in_a_message_is_rejected():
    with pytest.raises(InvalidValue, match="surrogate") as caught:
        template_of(CHATML).render(user("\ud83d"))
    assert caught.value.param == "messages"


def test_template_helpers_are_those_of_transformers():
    source = "{{ dict(a='<é>') | tojson }}{{ strftime_now('%Y') }}{% for i in range(9) %}{% if i %}{% break %}{% endif %}{{ i }}{% endfor %}"  # noqa: E501
    tokenizer, _ = toy("byte_level")
    assert tokenizer.decode(template_of(source).render(user(""))) == f'{{"a": "<é>"}}{datetime.now().year}0'


def test_a_template_file_overrides_the_configuration_and_an_option_both(tmp_path):
    write_folder(tmp_path, chat_template="config")
    tokenizer = Tokenizer.load(FolderText(tmp_path))
    given_file = tmp_path / "given.txt"
    given_file.write_text("given")

    def text(override=None):
        return tokenizer.decode(ChatTemplate.load(FolderText(tmp_path), tokenizer, override).render(user("")))

    assert text() == "config"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert text() == "file"
    assert text(given_file) == "given"


@pytest.mark.parametrize(("named", "expected"), [
    ([{"name": "tool_use", "template": "b"}, {"name": "default", "template": "a"}], "a"),
    ([{"name": "tool_use", "template": "b"}], None),
    ([{"name": ["x"], "template": "b"}, "y", {"name": "default", "template": "a"}], "a"),
    ([{"name": {}, "template": "b"}], None),
    ([{"name": "default", "template": ["b"]}], None),
    (None, None),
])  # fmt: skip
def test_of_several_templates_the_default_is_used(tmp_path, named, expected):
    write_folder(tmp_path, chat_template=named)
    tokenizer = Tokenizer.load(FolderText(tmp_path))
    template = ChatTemplate.load(FolderText(tmp_path), tokenizer)
    assert (None if template is None else tokenizer.decode(template.render(user("")))) == expected


def test_a_folder_without_a_configuration_has_no_template(tmp_path):
    assert ChatTemplate.load(FolderText(tmp_path), toy("byte_level")[0]) is None


@pytest.mark.parametrize("content", [b"{% for %}", b"\xff", b"x" * 100])
def test_a_damaged_template_is_rejected_with_advice(tmp_path, monkeypatch, content):
    monkeypatch.setattr(text_files, "MAX_TEMPLATE_BYTES", 99)
    file = tmp_path / "chat_template.jinja"
    file.write_bytes(content)
    tokenizer, _ = toy("byte_level")
    with pytest.raises(ModelRefused, match="--chat-template FILE"):
        ChatTemplate.load(FolderText(tmp_path), tokenizer)
    with pytest.raises(ConfigurationError, match="--chat-template FILE") as caught:
        ChatTemplate.load(FolderText(tmp_path), tokenizer, file)
    assert not isinstance(caught.value, ModelRefused)


@pytest.mark.parametrize("source", [
    "{% if a %}" * 400 + "{% endif %}" * 400,
    "{% if a %}" * 110 + "{% endif %}" * 110,
    "{% for x in a %}" * 25 + "{% endfor %}" * 25,
    "{{ " + "(" * 400 + "1" + ")" * 400 + " }}",
], ids=len)  # fmt: skip
def test_a_template_that_is_nested_too_deeply_is_rejected(tmp_path, source):
    file = tmp_path / "chat_template.jinja"
    file.write_text(source)
    with pytest.raises(ModelRefused, match=r"chat_template\.jinja contains no usable .*nested too deeply"):
        ChatTemplate.load(FolderText(tmp_path), toy("byte_level")[0])


def test_an_error_quotes_little_of_a_template(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{% " + "x" * 10_000 + " %}")
    with pytest.raises(ModelRefused, match="line 1") as caught:
        ChatTemplate.load(FolderText(tmp_path), toy("byte_level")[0])
    assert len(caught.value.message) < 1000


def test_a_missing_override_is_rejected(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        ChatTemplate.load(FolderText(tmp_path), toy("byte_level")[0], tmp_path / "nowhere")


@given(
    st.lists(st.text("ab|<", min_size=1, max_size=5), min_size=1, max_size=6, unique=True), st.text("ab|<", max_size=30)
)
def test_the_pattern_for_special_tokens_finds_the_longest_at_each_position(words, text):
    found = [match.span() for match in re.finditer(spelled_tokens._trie(words), text)]
    expected, position = [], 0
    while position < len(text):
        length = max((len(word) for word in words if text.startswith(word, position)), default=0)
        if length:
            expected.append((position, position + length))
        position += length or 1
    assert found == expected


def test_a_pointer_of_git_lfs_is_no_template(tmp_path):
    write_folder(tmp_path)
    tokenizer = Tokenizer.load(FolderText(tmp_path))
    file = tmp_path / "chat_template.jinja"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    for override in (None, file):
        with pytest.raises(ModelRefused, match="git lfs pull"):
            ChatTemplate.load(FolderText(tmp_path), tokenizer, override)
