"""What templates may do, and how much of it."""

import tracemalloc
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from app.checkpoint.text_files import FolderText
from app.contract.errors import CannotStart, InvalidValue, ModelRefused
from app.text.template import chat_template, template_allowance, template_trial
from app.text.template.chat_template import ChatTemplate
from app.text.template.template_allowance import Allowance, TemplateTooCostly
from app.text.tokens.tokenizer import Tokenizer
from tests.own_process import within_processor_time
from tests.text.templates import CHATML, LLAMA_3, MISTRAL
from tests.text.toys import template_of, toy, user

GUIDE = Path(chat_template.__file__).parents[2] / "models/guide/tokenizer_config.json"
DOUBLED = "{% set ns = namespace(s='x' * 1000) %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
NESTED = "{{% set ns = namespace(t={0}) %}}{{% for i in range({2}) %}}{{% set ns.t = {1} %}}{{% endfor %}}"
HOSTILE = {
    "a string that doubles": DOUBLED,
    "a sum that doubles": DOUBLED.replace("ns.s ~ ns.s", "ns.s + ns.s"),
    "a list that doubles": DOUBLED.replace("'x' * 1000", "[1]").replace("~", "+"),
    "nested loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "nested macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "captured text": "{% set t %}{% for a in range(9999) %}{{ 'x' * 10000 }}{% endfor %}{% endset %}",
    "captured constants": "{% set t %}{% for a in range(9999) %}" + "x" * 10_000 + "{% endfor %}{% endset %}",
    "times": "{{ 'x' * 10000000000 }}",
    "items": "{{ [1] * 10000000000 }}",
    "power": "{{ 10 ** 10000000000 }}",
    "big product": "{% set ns = namespace(n=9) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "replace": "{% set s = 'x' * 100000 %}{{ s.replace('', s) }}",
    "replace filter": "{% set s = 'x' * 100000 %}{{ s | replace('x', s) }}",
    "join": "{% set s = 'x' * 100000 %}{{ s.join(range(9999)) }}",
    "join filter": "{% set s = 'x' * 100000 %}{{ range(9999) | join(s) }}",
    "join of references": "{{ (['x' * 100000] * 100000) | join }}",
    "references as text": "{{ ['x' * 100000] * 100000 }}",
    "references as JSON": "{{ (['x' * 100000] * 100000) | tojson }}",
    "indent": "{{ ('\n' * 100000) | indent(9999) }}",
    "JSON indent": "{{ [[[1]]] | tojson(indent=1000000000) }}",
    "width": "{{ '%1000000000d' % 1 }}",
    "width of an argument": "{{ '%*d' % (1000000000, 1) }}",
    "width filter": "{{ '%1000000000d' | format(1) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "precision": "{{ 5 | round(1000000000, 'floor') }}",
    "justified": "{{ 'x'.ljust(1000000000) }}",
    "comparisons": "{% set s = 'x' * 1000000 %}{% for a in range(9999) %}{% if 'y' in s %}{% endif %}{% endfor %}",
    "slices": "{% set s = 'x' * 1000000 %}{% for a in range(9999) %}{% set t = s[::-1] %}{% endfor %}",
    "long range": "{% for a in range(1000000000) %}{% endfor %}",
    "a field many times": "{{ ('{0}' * 10000).format('x' * 1000000) }}",
    "a field of a dict many times": "{{ ('{a}' * 10000).format_map({'a': 'x' * 1000000}) }}",
    "a value many times": "{{ ('%s' * 10000) % (('x' * 1000000,) * 10000) }}",
    "a named value many times": "{{ ('%(a)s' * 10000) % {'a': 'x' * 1000000} }}",
    "a field of the filter many times": "{{ ('%(a)s' * 10000) | format(a='x' * 1000000) }}",
    "many numbers": "{{ ('{0}' * 100000).format(9 ** 1200) }}",
    "many floats": "{{ ('%f' * 200000) % ((1e300,) * 200000) }}",
    "many widths": "{{ ('{0:9999}' * 100000).format('x') }}",
    "many widths of values": "{{ ('%9999d' * 100000) % ((1,) * 100000) }}",
    "a width in a field": "{{ '{:{}}'.format('x', '999999999') }}",
    "digits of a width in fields": "{{ '{0:{1}{1}}'.format('x', 9999) }}",
    "sorted references": "{{ (['x' * 1000000] * 10000) | sort | length }}",
    "the least of references": "{{ (['x' * 1000000] * 10000) | min | length }}",
    "unique references": "{{ (['x' * 1000000] * 10000) | unique | list | length }}",
    "tests of a filter": "{% set s = ['y' * 1000000] * 10000 %}{% for a in range(9999) %}"
    "{% set t = s | select('eq', 'y' * 1000000) | list %}{% endfor %}",
    "a test": "{% set s = 'x' * 1000000 %}{% for a in range(9999) %}{% if 'y' is in s %}{% endif %}{% endfor %}",
    "stripped of many": "{% set s = 'x' * 1000000 %}{{ s.strip('a' * 999999 ~ 'x') }}",
    "trimmed of many": "{% set s = 'x' * 1000000 %}{{ s | trim('a' * 999999 ~ 'x') }}",
    "lists compared": "{% set s, t = 'a' * 1000000, 'a' * 500000 ~ 'a' * 500000 %}{{ [s] * 10000 == [t] * 10000 }}",
    "looked up in a list": "{% set s = 'a' * 999999 ~ 'b' %}{{ s in ['a' * 1000000] * 10000 }}",
    "beginnings": "{{ ('a' * 1000000).startswith(('a' * 999999 ~ 'b',) * 10000) }}",
    "bytes": "{{ ('x' * 100000).encode().replace('x'.encode(), ('y' * 100000).encode()) }}",
    "numbers summed up": "{% for a in range(9999) %}{% set t = range(9999) | select | sum %}{% endfor %}",
    "lists summed up": "{{ ([[1]] * 200000) | sum(start=[]) | length }}",
    "JSON separators": "{{ ([1] * 10000) | tojson(separators=('x' * 100000, ':')) }}",
    "JSON indent of what lies deep": NESTED.format("range(9999) | list", "[ns.t]", 600)
    + "{{ ns.t | tojson(indent=32) }}",
    "shared lists compared": NESTED.format("[1]", "[ns.t, ns.t]", 60) + "{{ ns.t == ns.t[:1] + ns.t[1:] }}",
    "shared lists as text": NESTED.format("[1]", "[ns.t, ns.t]", 60) + "{{ '%s' % [ns.t] }}",
    "shared lists in upper case": NESTED.format("[1]", "[ns.t, ns.t]", 60) + "{{ ns.t | upper }}",
    "shared lists in a namespace": NESTED.format("[1]", "[ns.t, ns.t]", 60) + "{{ ns }}",
    "a namespace in itself": "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
    "shared namespaces": NESTED.format("namespace(a=1)", "namespace(a=ns.t, b=ns.t)", 60) + "{{ ns.t }}",
    "shared lists of a dict": NESTED.format("[1]", "[ns.t, ns.t]", 60) + "{{ {'a': ns.t}.values() }}",
    "shared lists as a reason": NESTED.format("[1]", "[ns.t, ns.t]", 60) + "{{ raise_exception(ns.t) }}",
    "shared tuples as a key": NESTED.format("(1,)", "(ns.t, ns.t)", 60) + "{{ {ns.t: 1} }}",
    "shared tuples looked up": NESTED.format("(1,)", "(ns.t, ns.t)", 60) + "{{ {}[ns.t] }}",
    "shared tuples as an argument": NESTED.format("(1,)", "(ns.t, ns.t)", 60) + "{{ {}.get(ns.t) }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_expensive_template_is_an_error_before_it_uses_much_memory(monkeypatch, name):
    if any(word in name for word in ("nested", "shared", "summed")):
        monkeypatch.setattr(template_allowance, "MAX_STEPS", 2**14)  # tracing a million steps takes a minute
    template = template_of(HOSTILE[name])
    tracemalloc.start()
    try:
        with pytest.raises(InvalidValue, match="template"):
            template.render(user("Hi"))
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()
    assert template_of("{{ messages[0].content }}").render(user("Hi"))


@pytest.mark.parametrize(("source", "text"), [
    ("{{ '%s has {:,} of %d'.format(1234567) % ('a', 99999) }}", "a has 1,234,567 of 99999"),
    ("{{ messages[0].content.strip('\n -').rsplit('</think>')[-1] | trim }}", "b"),
    ("{{ 'user' in messages | map(attribute='role') | list }} {{ messages[0] == messages[-1] }}", "True True"),
    ("{{ {messages[0].role: messages | length}['user'] }} {{ ['b', 'a'] | sort | join }}", "1 ab"),
    ("{{ {'a': [1, 'é']} | tojson(indent=2) }}", '{\n  "a": [\n    1,\n    "é"\n  ]\n}'),
])  # fmt: skip
def test_usual_operations_of_templates_are_allowed(source, text):
    tokenizer, _ = toy("byte_level")
    assert tokenizer.decode(template_of(source).render(user("a</think> b -\n"))) == text


def test_a_format_string_is_checked_in_linear_time():
    assert not within_processor_time(5, is_wide, "{" + ":" * 200_000)  # tried colon by colon it would take minutes


@pytest.mark.parametrize("text", ["%*d", "{:12345}", "{0:{1}}", "{a:b:{c}}", "{{:{}}"])
def test_a_format_string_with_a_width_from_an_argument_or_a_large_one_is_wide(text):
    assert is_wide(text)
    assert not is_wide(text.replace("*", "").replace("5", "").replace(":", ""))


def is_wide(text: str) -> bool:
    try:
        Allowance(0).check_format(text, ())
    except TemplateTooCostly:
        return True
    return False


def test_a_long_conversation_is_within_the_allowance_of_a_template():
    messages = [{"role": ("user", "assistant")[index % 2], "content": "x" * 4000} for index in range(1024)]
    for source in (CHATML, LLAMA_3, MISTRAL):
        assert template_of(source).render_text(messages).count("x" * 4000) > 1000


@pytest.mark.parametrize("name", ["nested loops", "a string that doubles", "captured text"])
def test_a_model_with_an_expensive_template_is_rejected_when_loaded(tmp_path, name):
    (tmp_path / "chat_template.jinja").write_text(HOSTILE[name])
    with pytest.raises(ModelRefused, match="no usable chat template"):
        ChatTemplate.load(FolderText(tmp_path), toy("byte_level")[0])


IN_CHILD = "from app.text.template import template_trial as t\n"


def test_the_trial_process_of_a_template_has_limits_of_time_and_memory(monkeypatch):
    monkeypatch.setattr(template_trial, "_CHILD", f"{IN_CHILD}t._limit_itself(1)\nwhile 1: 0")
    assert "seconds of processor time" in template_trial.Trial("x").findings().reason
    monkeypatch.setattr(template_trial, "_CHILD", f"{IN_CHILD}t._try = lambda source: 'x' * 2**31\nt.main()")
    assert "MiB" in template_trial.Trial("x").findings().reason


@pytest.mark.parametrize("child", ["import os; os.kill(os.getpid(), 9)", "import time; time.sleep(3600)"])
def test_a_trial_that_the_machine_does_not_finish_refuses_no_model(tmp_path, monkeypatch, child):
    """The template of this test is tried once: a trial without findings may be repeated."""
    monkeypatch.setattr(template_trial, "TIMEOUT_S", 0.2 if "sleep" in child else 60)
    monkeypatch.setattr(template_trial, "_CHILD", child)
    (tmp_path / "chat_template.jinja").write_text(source := f"{{{{ messages }}}} {child}")
    with pytest.raises(CannotStart, match=r"too busy or short of memory .*; try again"):
        ChatTemplate.load(FolderText(tmp_path), toy("byte_level")[0])
    monkeypatch.undo()
    assert template_trial.trial_of(source).findings().reason is None


def test_a_trial_whose_process_cannot_be_started_says_so(monkeypatch):
    monkeypatch.setattr(template_trial.sys, "executable", "/nowhere/python")
    with pytest.raises(CannotStart, match="cannot be started: No such file"):
        template_trial.Trial("x").findings()


def test_the_reason_of_a_rejected_template_is_given_once():
    assert template_trial.Trial(HOSTILE["nested loops"]).findings().reason == "it takes more than 1048576 steps"


def test_a_trial_may_begin_before_its_result_is_wanted():
    costly = template_trial.Trial(HOSTILE["times"])
    for trial in (template_trial.Trial("{{ messages }}"), costly):
        trial.begin()
        child = trial._child
        trial.begin()
        assert child is not None and trial._child is child and child.poll() is None, "it waits for the template"
        assert (trial.findings().reason is None) == (trial is not costly)
        assert child.returncode == 0
        trial.begin()
        assert trial._child is None, "each is tried once"


def test_a_trial_that_nobody_waits_for_is_ended(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{{ messages }} of one test")
    trial = template_trial.trial_of("{{ messages }} of one test")
    with pytest.raises(ZeroDivisionError), chat_template.trying_templates(FolderText(tmp_path)):
        child = trial._child
        raise ZeroDivisionError
    assert child is not None and child.returncode < 0 and trial._child is None
    assert trial.findings().reason is None, "it can be tried again"


def test_errors_of_templates_are_left_to_the_loading(tmp_path):
    with chat_template.trying_templates(FolderText(tmp_path), tmp_path / "nowhere"):
        pass


def test_the_embedded_model_needs_no_trial(monkeypatch):
    monkeypatch.setattr(chat_template, "trial_of", None)
    folder = GUIDE.parent
    assert ChatTemplate.load(FolderText(folder), Tokenizer.load(FolderText(folder)))


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(a=1, b=[2, 'c']) %}{{ ns }}",
        "{% set ns = namespace(a='x') %}{% macro m(ns) %}{{ ns.a ~ ns }}{% endmacro %}{{ m(ns) }}",
        "{% set ns = namespace(a=1) %}{% if ns == ns and ns is defined and ns in [ns] %}{{ [ns] | length }}{% endif %}",
        "{% set a = namespace(b=namespace(c='d')) %}{{ '%s' % a ~ a | string | upper }}",
        "{% set ns = namespace(m=none) %}{% for m in messages %}{% set ns.m = m %}{% endfor %}{{ {'k': ns}.items() }}",
    ],
)
def test_a_namespace_is_a_value_like_others(source):
    """As in Gemma 4's template."""
    chat = user("Hi")
    assert template_of(source).render_text(chat) == render_jinja_template([chat], chat_template=source)[0][0]
