"""Answers for the parsers: calls as the families of models write them, and ways to cut a text."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from app.text.calls.formats import FORMATS
from app.text.calls.tool_schemas import ToolSchemas
from app.text.reading.answer_events import Arguments, CallBegin, CallEnd, Event, Reasoning, Text
from app.text.reading.marks import SHOWN
from app.text.reading.parser import Machine, Parser

Call = tuple[str, dict[str, Any]]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "integer"},
                    "is_new": {"type": "boolean"},
                    "rest": {"type": ["object", "array", "null"]},
                },
            },
        },
    }
    for name in ("search", "get-time", "a_1")
]
SCHEMAS = ToolSchemas(TOOLS)


def parse(machine: Machine, pieces: Sequence[str]) -> list[Event]:
    """The events of an answer that comes in `pieces`, with adjacent pieces of one kind joined."""
    parser = Parser(machine)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return joined([*events, *parser.finish()])


def parse_calls(name: str, *pieces: str, special: Sequence[str] = ()) -> list[Event]:
    """The events of an answer of a family."""
    return parse(FORMATS[name].syntax.resolved(frozenset(special)).machine(SCHEMAS), pieces)


def joined(events: Sequence[Event]) -> list[Event]:
    """The events with adjacent pieces of one kind joined."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if last is not None and isinstance(event, Text | Reasoning | Arguments) and type(last) is type(event):
            assert not isinstance(event, Arguments) or event.call == last.call
            found[-1] = last._replace(text=last.text + event.text)
        else:
            found.append(event)
    return found


def cut(text: str, places: Sequence[int]) -> list[str]:
    """The text in pieces, cut at `places` (modulo its length)."""
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def text_of(events: Sequence[Event]) -> str:
    """All text of an answer."""
    return "".join(event.text for event in events if isinstance(event, Text))


def calls_of(events: Sequence[Event]) -> list[Call]:
    """The calls of an answer; asserts that their events are in order."""
    names = {event.call: event.name for event in events if isinstance(event, CallBegin)}
    assert list(names) == list(range(len(names)))
    assert [event.call for event in events if isinstance(event, CallEnd)] == list(names)
    arguments = dict.fromkeys(names, "")
    for event in events:
        if isinstance(event, Arguments):
            arguments[event.call] += event.text
    return [(name, json.loads(arguments[index])) for index, name in names.items()]


def hermes(calls: Sequence[Call]) -> str:
    """As Qwen 2.5 and Qwen 3."""
    return "\n".join(f"<tool_call>\n{_object(call)}\n</tool_call>" for call in calls)


def mistral(calls: Sequence[Call]) -> str:
    """As Mistral Small 3.2."""
    return "".join(f"[TOOL_CALLS]{name}[CALL_ID]abcdefghi[ARGS]{json.dumps(fields)}" for name, fields in calls)


def mistral_v3(calls: Sequence[Call]) -> str:
    """As Mistral Nemo."""
    return f"[TOOL_CALLS][{', '.join(_object(call, id='abcdefghi') for call in calls)}]"


def deepseek(calls: Sequence[Call]) -> str:
    """As DeepSeek R1, then as V3.1."""
    old, new = calls[::2], calls[1::2]
    inner = [f"function<｜tool▁sep｜>{name}\n```json\n{json.dumps(fields)}\n```" for name, fields in old]
    inner += [f"{name}<｜tool▁sep｜>{json.dumps(fields)}" for name, fields in new]
    found = [f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in inner]
    return f"<｜tool▁calls▁begin｜>{chr(10).join(found)}<｜tool▁calls▁end｜>"


def kimi(calls: Sequence[Call]) -> str:
    """As Kimi K2."""
    marks = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    found = [
        f"{marks[0]}functions.{name}:{number}{marks[1]}{json.dumps(fields)}{marks[2]}"
        for number, (name, fields) in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(found)}<|tool_calls_section_end|>"


def minimax(calls: Sequence[Call]) -> str:
    """As MiniMax M2."""
    found = ""
    for name, fields in calls:
        parts = [f'<parameter name="{key}">{_value(value)}</parameter>\n' for key, value in fields.items()]
        found += f'<invoke name="{name}">\n{"".join(parts)}</invoke>\n'
    return f"\n<minimax:tool_call>\n{found}</minimax:tool_call>"


def glm(calls: Sequence[Call]) -> str:
    """As GLM 4.6."""
    found = ""
    for name, fields in calls:
        parts = [f"<arg_key>{k}</arg_key>\n<arg_value>{_value(v)}</arg_value>\n" for k, v in fields.items()]
        found += f"\n<tool_call>{name}\n{''.join(parts)}</tool_call>"
    return found


def qwen3_coder(calls: Sequence[Call]) -> str:
    """As Qwen 3 Coder."""
    found = []
    for name, fields in calls:
        parts = [f"<parameter={key}>\n{_value(value)}\n</parameter>\n" for key, value in fields.items()]
        found.append(f"<tool_call>\n<function={name}>\n{''.join(parts)}</function>\n</tool_call>")
    return "\n".join(found)


def functionary(calls: Sequence[Call]) -> str:
    """As Functionary 3.1."""
    return "".join(f"<function={name}>{json.dumps(fields)}</function>" for name, fields in calls)


def lfm2(calls: Sequence[Call]) -> str:
    """As LFM2."""
    return f"<|tool_call_start|>{_list(calls)}<|tool_call_end|>"


def glm4_0414(calls: Sequence[Call]) -> str:
    """As GLM-4 of April 2025, with the mark, which its template has before the first call, too."""
    return "".join(f"<|assistant|>{name}\n{json.dumps(fields, ensure_ascii=False)}" for name, fields in calls)


def olmo3(calls: Sequence[Call]) -> str:
    """As OLMo 3."""
    written = [
        f"{name}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in fields.items())})"
        for name, fields in calls
    ]
    return f"<function_calls>{chr(10).join(written)}</function_calls>"


def pythonic(calls: Sequence[Call]) -> str:
    """As Llama 4, with the marks."""
    return f"<|python_start|>{_list(calls)}<|python_end|>"


def llama_json(calls: Sequence[Call]) -> str:
    """As Llama 3.1, with the mark."""
    return f"<|python_tag|>{'; '.join(_object(call, 'parameters') for call in calls)}"


def json_list(calls: Sequence[Call]) -> str:
    """As Nemotron Nano 2."""
    return f"<TOOLCALL>[{', '.join(map(_object, calls))}]</TOOLCALL>"


WRITERS: dict[str, Callable[[Sequence[Call]], str]] = {
    writer.__name__: writer
    for writer in (
        mistral, mistral_v3, deepseek, kimi, minimax, glm, glm4_0414, qwen3_coder, functionary, lfm2, olmo3, pythonic,
        llama_json, json_list, hermes,
    )
}  # fmt: skip
WITH_PARAMETERS = ("glm", "qwen3_coder", "minimax")
AS_PYTHON = ("lfm2", "olmo3", "pythonic")


def shown(text: str, marks: Sequence[str]) -> str:
    """The text as the engine sends it if `marks` are special tokens: of two at one place the longer."""
    pattern = "|".join(map(re.escape, sorted(marks, key=len, reverse=True)))
    return re.sub(pattern, lambda match: SHOWN + match[0], text) if pattern else text


def _object(call: Call, key: str = "arguments", **more: str) -> str:
    return json.dumps({"name": call[0], key: call[1], **more}, ensure_ascii=False)


def _list(calls: Sequence[Call]) -> str:
    """The calls with names for arguments; strings in double quotes, others as Python writes them."""
    written = [
        (name, ", ".join(f"{key}={json.dumps(v) if isinstance(v, str) else repr(v)}" for key, v in fields.items()))
        for name, fields in calls
    ]
    return f"[{', '.join(f'{name}({arguments})' for name, arguments in written)}]"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
