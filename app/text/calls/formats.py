"""The families of models, by the syntax of their calls. To add one, add a row, in the order in which they are tried.

A row says what its calls look like, and which texts in a chat template tell the family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from app.text.calls.call_syntax import CallSyntax
from app.text.calls.json_calls import JsonCalls
from app.text.calls.line_calls import LineCalls
from app.text.calls.named_calls import NamedCalls
from app.text.calls.parameter_calls import ParameterCalls
from app.text.calls.python_calls import PythonCalls


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family.

    Attributes:
        name: as in `--tool-parser`.
        syntax: how its calls are read and written.
        is_told_by: whether a template's source tells this family; the first row that says so counts.
    """

    name: str
    syntax: CallSyntax
    is_told_by: Callable[[str], bool]

    def narrowed(self, source: str) -> CallFormat:
        """Return the format with those of its marks that a template's source has (see `CallMarks`)."""
        return replace(self, syntax=self.syntax.narrowed(source))


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
            NamedCalls(opens=("[TOOL_CALLS]",), id_mark="[CALL_ID]", arguments="[ARGS]", id_chars=9),
            _has("[ARGS]"),
        ),
        CallFormat(
            "mistral_v3",
            JsonCalls(opens=("[TOOL_CALLS]",), shares_block=True, id_chars=9),
            _has("[TOOL_CALLS]"),
        ),
        CallFormat(
            "deepseek",
            NamedCalls(
                opens=("<｜tool▁calls▁begin｜>",),
                name_open="<｜tool▁call▁begin｜>",
                arguments="<｜tool▁sep｜>",
                closes=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
                has_kind=True,
            ),
            _has("tool▁calls▁begin"),
        ),
        CallFormat(
            "kimi",
            NamedCalls(
                opens=("<|tool_calls_section_begin|>",),
                name_open="<|tool_call_begin|>",
                arguments="<|tool_call_argument_begin|>",
                closes=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
                has_named_ids=True,
            ),
            _has("<|tool_call_argument_begin|>"),
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
        CallFormat("glm", ParameterCalls(opens=("<tool_call>",), closes=("</tool_call>",)), _has("<arg_key>")),
        CallFormat(
            "glm4_0414",
            LineCalls(opens=("<|assistant|>",), is_bare=True, has_call_messages=True),
            _has_all("<|observation|>", "metadata"),
        ),
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
            NamedCalls(opens=("<function=",), arguments=">", closes=("</function>",)),
            _has("<function="),
        ),
        CallFormat(
            "lfm2",
            PythonCalls(opens=("<|tool_call_start|>",), closes=("<|tool_call_end|>",)),
            _has("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["),
        ),
        CallFormat(
            "olmo3",
            PythonCalls(opens=("<function_calls>",), closes=("</function_calls>",), has_lines=True),
            _has("<function_calls>"),
        ),
        CallFormat(
            "pythonic",
            PythonCalls(opens=("<|python_start|>",), closes=("<|python_end|>",), is_bare=True),
            _has("[func_name1("),
        ),
        CallFormat(
            "llama_json",
            JsonCalls(opens=("<|python_tag|>", "<|python_start|>"), closes=("<|python_end|>",), is_bare=True),
            _is_llama,
        ),
        CallFormat(
            "json_list",
            JsonCalls(
                opens=("<|tool_call|>", "<TOOLCALL>", "<tool_calls>"),
                closes=("</TOOLCALL>", "</tool_calls>"),
                shares_block=True,
            ),
            _has("<|tool_call|>", "<TOOLCALL>", "<tool_calls>"),
        ),
        CallFormat("hermes", JsonCalls(opens=("<tool_call>",), closes=("</tool_call>",)), _has("<tool_call>")),
    )
}
GENERIC = FORMATS["hermes"]
"""The format of models whose template knows no tools; the system text in `tools` asks for it."""
