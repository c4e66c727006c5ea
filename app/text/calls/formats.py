"""The families of models, by the syntax of their calls. To add one, add a row, in the order in which they are tried.

A row says which texts in a chat template tell the family, what its calls look like, and how long its ids must be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from app.text.calls.json_calls import JsonCalls
from app.text.calls.named_calls import NamedCalls
from app.text.calls.parameter_calls import ParameterCalls
from app.text.calls.python_calls import PythonCalls

CallForm: TypeAlias = JsonCalls | NamedCalls | ParameterCalls | PythonCalls


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family.

    Attributes:
        name: as in `--tool-parser`.
        form: its marks; `form.machine` reads its calls.
        is_told_by: whether a template's source tells this family; the first row that says so counts.
        id_chars: the exact number of letters and digits that the template wants in a call's id, if it does.
        has_named_ids: whether a call's id, in a prompt, is the function's name and the call's number.
    """

    name: str
    form: CallForm
    is_told_by: Callable[[str], bool]
    id_chars: int | None = None
    has_named_ids: bool = False

    def narrowed(self, source: str) -> CallFormat:
        """Return the format with those of its opening marks that a template's source has, and their closing ones."""
        form = self.form
        if isinstance(form, NamedCalls) or not (opens := tuple(mark for mark in form.opens if mark in source)):
            return self
        others = {mark.replace("<", "</", 1) for mark in form.opens} - {mark.replace("<", "</", 1) for mark in opens}
        closes = tuple(mark for mark in form.closes if mark not in others)
        return replace(self, form=replace(form, opens=opens, closes=closes))

    def resolved(self, special: frozenset[str]) -> CallFormat:
        """Return the format for a model with the special tokens `special`."""
        return replace(self, form=self.form.resolved(special))


def _has(*marks: str) -> Callable[[str], bool]:
    """Return a test for any of `marks`."""
    return lambda source: any(mark in source for mark in marks)


def _has_all(*marks: str) -> Callable[[str], bool]:
    return lambda source: all(mark in source for mark in marks)


def _is_llama(source: str) -> bool:
    return "<|python_tag|>" in source or ('"parameters": ' in source and "ipython" in source)


FORMATS = {
    row.name: row
    for row in (
        CallFormat(
            "mistral",
            NamedCalls(open="[TOOL_CALLS]", id_mark="[CALL_ID]", arguments="[ARGS]"),
            _has("[ARGS]"),
            id_chars=9,
        ),
        CallFormat("mistral_v3", JsonCalls(("[TOOL_CALLS]",)), _has("[TOOL_CALLS]"), id_chars=9),
        CallFormat(
            "deepseek",
            NamedCalls(
                section="<｜tool▁calls▁begin｜>",
                open="<｜tool▁call▁begin｜>",
                arguments="<｜tool▁sep｜>",
                closes=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
                has_kind=True,
            ),
            _has("tool▁calls▁begin"),
        ),
        CallFormat(
            "kimi",
            NamedCalls(
                section="<|tool_calls_section_begin|>",
                open="<|tool_call_begin|>",
                arguments="<|tool_call_argument_begin|>",
                closes=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
                path="functions.",
            ),
            _has("<|tool_call_argument_begin|>"),
            has_named_ids=True,
        ),
        CallFormat(
            "minimax",
            ParameterCalls(
                opens=("<minimax:tool_call>",),
                closes=("</invoke>", "</minimax:tool_call>"),
                name_open='<invoke name="',
                name_close='">',
                key_open='<parameter name="',
                key_close='">',
                value_open="",
                value_close="</parameter>",
                shares_block=True,
            ),
            _has("<minimax:tool_call>"),
        ),
        CallFormat("glm", ParameterCalls(("<tool_call>",), ("</tool_call>",)), _has("<arg_key>")),
        CallFormat(
            "qwen3_coder",
            ParameterCalls(
                opens=("<tool_call>", "<seed:tool_call>"),
                closes=("</function>", "</tool_call>", "</seed:tool_call>"),
                name_open="<function=",
                name_close=">",
                key_open="<parameter=",
                key_close=">",
                value_open="",
                value_close="</parameter>",
                has_lines=True,
            ),
            _has_all("<function=", "<parameter="),
        ),
        CallFormat(
            "functionary",
            NamedCalls(open="<function=", arguments=">", closes=("</function>",)),
            _has("<function="),
        ),
        CallFormat(
            "lfm2",
            PythonCalls(("<|tool_call_start|>",), ("<|tool_call_end|>",)),
            _has("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["),
        ),
        CallFormat(
            "pythonic",
            PythonCalls(("<|python_start|>",), ("<|python_end|>",), is_bare=True),
            _has("[func_name1("),
        ),
        CallFormat(
            "llama_json",
            JsonCalls(("<|python_tag|>", "<|python_start|>"), ("<|python_end|>",), is_bare=True),
            _is_llama,
        ),
        CallFormat(
            "json_list",
            JsonCalls(("<|tool_call|>", "<TOOLCALL>", "<tool_calls>"), ("</TOOLCALL>", "</tool_calls>")),
            _has("<|tool_call|>", "<TOOLCALL>", "<tool_calls>"),
        ),
        CallFormat("hermes", JsonCalls(("<tool_call>",), ("</tool_call>",)), _has("<tool_call>")),
    )
}
GENERIC = FORMATS["hermes"]
"""The format of models whose template knows no tools; the system text in `tools` asks for it."""
