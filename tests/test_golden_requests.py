"""What every entry makes of its bodies: requests of the engine, how answers are read, and errors, as they were."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

import pytest

from app.api.body import parse_request
from app.api.http.accounts import Sender
from app.api.routes.chat import parse_chat
from app.api.routes.completions import parse_completion
from app.api.routes.embeddings import parse_embeddings
from app.commands.local import LocalModel
from app.config.settings import make_config
from app.contract.engine_status import EngineStats, StepReport
from app.contract.errors import QuireError
from app.contract.events import ChoiceEnd, Embedded, Finished, FinishReason, PromptScored, Timings, TokenDelta, Usage
from app.contract.grammar import StructuredOutputs
from app.contract.packed_logprobs import Logprobs
from app.contract.requests import Submit
from app.contract.sampling_params import SamplingParams
from app.llm import LLM
from app.text.answer.reasoning import ReasoningStyle
from tests.api.body.rejected_bodies import BODIES, CHAT
from tests.api.serving import make_app, raw
from tests.fakes import FakeEngine, Script
from tests.text.templates import GRANITE, ONE_CALL

FILE = Path(__file__).with_suffix(".json")
HI = [{"role": "user", "content": "Hi"}]
BEGUN = [*HI, {"role": "assistant", "content": "<think>I am"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {}}}}}
    for name in ("now", "here")
]
STRICT = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]  # type: ignore[dict-item]
WRONG = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": 5}}}]
NAMED = {"type": "function", "function": {"name": "here"}}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}}}
LONG = "word " * 20_000
OUTPUTS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    {"structured_outputs": {"regex": "a+"}},
    {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"regex": "a", "json": SCHEMA}},
    {"guided_json": "{"},
    {"regex": "(?=a)"},
    {"regex": "a", "grammar": "start: /a/"},
    {"grammar": 'root ::= "a"'},
    {"grammar": "root ::= "},
    {"thinking_token_budget": 5},
    {"thinking_token_budget": 5, "regex": "a+"},
    {"regex": "a+", "min_tokens": 3},
    {"regex": "a+", "ignore_eos": True},
    {"regex": "a+", "use_beam_search": True},
    {"regex": "(?=a)", "max_tokens": 10**6},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"max_tokens": 5, "seed": 3, "n": 2, "temperature": 0.5, "stop": ["x"], "logit_bias": {"5": 1}},
    {"max_tokens": -1, "seed": -1},
    {"max_tokens": 10**6},
    {"max_tokens": 10**7},
    {"n": 16, "max_tokens": 10**5},
    {"n": 16, "logprobs": True, "top_logprobs": 20, "max_tokens": 5000},
    {"n": 65},
    {"min_tokens": 99, "max_tokens": 100},
    {"min_tokens": 10**6},
    {"priority": -3, "cache_salt": "s", "queue_timeout": 2, "timeout": 9},
    {"queue_timeout": 0},
    {"top_k": 10**6},
    {"stop_token_ids": [10**6]},
    {"logit_bias": {"99999999": 1}},
    {"return_token_ids": True, "timings": True, "prompt_logprobs": 2},
    {"prompt_logprobs": 21},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True, "slow_reader": "drop"}},
    {"unknown": 5, "model": "guide"},
    {"model": "other"},
    {"use_beam_search": True, "beam_width": 4, "n": 2, "max_tokens": 4},
    {"best_of": 3, "max_tokens": 4},
    {"top_p": 2},
]
CHATS: list[dict[str, Any]] = [
    *({"messages": HI, **fields} for fields in (*SAMPLING, *OUTPUTS)),
    {"messages": HI, "max_completion_tokens": 7},
    {"messages": HI, "max_completion_tokens": -1},
    {"messages": HI, "max_completion_tokens": 10**6},
    {"messages": HI, "max_completion_tokens": 7, "max_tokens": 8},
    {"messages": HI, "context_share": 0.5},
    {"messages": HI, "context_share": 2},
    {"messages": HI, "logprobs": True, "top_logprobs": 21},
    {"messages": HI, "top_logprobs": 2},
    {"messages": HI, "reasoning_effort": "none"},
    {"messages": HI, "reasoning_effort": "high"},
    {"messages": HI, "reasoning": {"effort": "low", "max_tokens": 4, "exclude": True}},
    {"messages": HI, "reasoning": {"max_tokens": -5}},
    {"messages": HI, "include_reasoning": False},
    {"messages": HI, "chat_template_kwargs": {"enable_thinking": True, "x": 1}},
    {"messages": HI, "chat_template_kwargs": {"enable_thinking": False}, "regex": "a+"},
    {"messages": HI, "chat_template_kwargs": {"enable_thinking": True}, "regex": "a+"},
    {"messages": HI, "chat_template_kwargs": {"enable_thinking": 5}},
    {"messages": HI, "chat_template_kwargs": {"messages": 5}},
    {"messages": HI, "chat_template_kwargs": {"x": "y" * 20_000}},
    {"messages": HI, "continue_final_message": True},
    {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True},
    {"messages": BEGUN, "continue_final_message": True},
    {"messages": BEGUN, "continue_final_message": True, "regex": "a+"},
    {"messages": HI, "add_generation_prompt": False},
    {"messages": []},
    {"messages": HI * 1025},
    {"messages": [{"role": "user", "content": LONG}]},
    {"messages": [{"role": "user", "content": LONG * 20}]},
    {"messages": [{"role": "user", "content": "a\ud800"}]},
    {"messages": [{"role": "robot", "content": "a"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    *(
        {"messages": HI, "tools": tools, **fields}
        for tools in (TOOLS, STRICT, WRONG)
        for fields in (
            {}, {"tool_choice": "none"}, {"tool_choice": "required"}, {"tool_choice": NAMED},
            {"parallel_tool_calls": False}, {"response_format": {"type": "json_object"}}, {"regex": "a+"},
            {"tool_choice": "required", "response_format": {"type": "json_object"}},
            {"tool_choice": "required", "regex": "a+"}, {"max_tokens": 10**6, "tool_choice": "required"},
        )
    ),
    {"messages": HI, "tools": "x"},
    {"messages": HI, "tool_choice": "required"},
    {"messages": HI, "tools": TOOLS, "tool_choice": 5},
]  # fmt: skip
PROMPTS: list[Any] = ["Hi", [5, 6], ["a", "b"], [[5], [6, 7]], "", [], [10**6], ["a", ""], [-1], LONG, LONG * 20,
                      ["a", LONG], [[5], [10**6]], "a\ud800", [5] * 5000]  # fmt: skip
TEXTS: list[dict[str, Any]] = [
    *({"prompt": "Hi", **fields} for fields in (*SAMPLING, *OUTPUTS) if "top_logprobs" not in fields),
    *({"prompt": prompt} for prompt in PROMPTS),
    {"prompt": ["a", "b", "c"], "seed": 2**64 - 1, "n": 2},
    {"prompt": ["a", [5], "c"], "regex": "a+"},
    {"prompt": ["a", "b"], "regex": "(?=a)"},
    {"prompt": [[5]] * 129},
    {"prompt": [[5]] * 65, "n": 2},
    {"prompt": [[5]] * 20, "max_tokens": 60_000},
    {"prompt": ["a", "b"], "max_tokens": 10**6},
    {"prompt": "Hi", "echo": True},
    {"prompt": "Hi", "echo": True, "logprobs": 2},
    {"prompt": "Hi", "echo": True, "logprobs": 2, "prompt_logprobs": 3},
    {"prompt": "Hi", "echo": True, "max_tokens": 0, "logprobs": 1, "n": 2},
    {"prompt": ["Hi", "you"], "echo": True, "max_tokens": 0},
    {"prompt": "Hi", "max_tokens": 0},
    {"prompt": "Hi", "max_tokens": 0, "echo": True, "min_tokens": 3},
    {"prompt": ["Hi", [5] * 1500], "prompt_logprobs": 20, "n": 16},
    {"prompt": "Hi", "add_special_tokens": False},
    {"prompt": "Hi", "logprobs": 21},
]
VECTORS: list[dict[str, Any]] = [
    *({"input": prompt} for prompt in PROMPTS),
    {"input": "Hi", "dimensions": 3, "pooling": "last", "normalize": False, "encoding_format": "base64"},
    {"input": "Hi", "dimensions": 0},
    {"input": "Hi", "dimensions": 9},
    {"input": "", "dimensions": 9},
    {"input": "Hi", "pooling": "max"},
    {"input": [[5]] * 257},
    {"input": "Hi", "add_special_tokens": False, "unknown": 5},
    {"input": "Hi", "model": "other"},
]
SETUPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "think": {"reasoning_parser": "think", "reasoning_field": "both", "clamp_max_tokens": True, "queue_timeout": 7.0},
    "granite": {"chat_template": "granite.jinja", "strict": True},
    "one call": {"chat_template": "one_call.jinja"},
}
LLM_PARAMS: list[dict[str, Any]] = [
    {},
    {"max_tokens": None},
    {"max_tokens": 5, "seed": 3, "n": 2, "temperature": 0.5},
    {"max_tokens": 10**6},
    {"structured_outputs": StructuredOutputs(regex="a+")},
    {"structured_outputs": StructuredOutputs(regex="(?=a)")},
    {"structured_outputs": StructuredOutputs(grammar="root ::= ")},
    {"structured_outputs": StructuredOutputs(json="{")},
    {"thinking_token_budget": 5},
    {"top_k": 10**6},
    {"min_tokens": 3, "max_tokens": 9},
]
LLM_CHATS: list[tuple[Any, dict[str, Any]]] = [
    (HI, {}),
    ([HI, BEGUN], {}),
    (HI, {"tools": TOOLS}),
    (HI, {"tools": TOOLS, "tool_choice": "required"}),
    (HI, {"tools": TOOLS, "tool_choice": NAMED}),
    (HI, {"tools": STRICT}),
    (HI, {"tools": WRONG, "tool_choice": "required"}),
    (HI, {"tools": TOOLS, "parallel_tool_calls": False}),
    (HI, {"tool_choice": "required"}),
    (BEGUN, {"add_generation_prompt": False, "continue_final_message": True}),
    (BEGUN, {"continue_final_message": True}),
    (HI, {"add_generation_prompt": False, "continue_final_message": True}),
    (HI, {"chat_template_kwargs": {"enable_thinking": True}}),
    (HI, {"chat_template_kwargs": {"enable_thinking": 5}}),
    (HI, {"chat_template_kwargs": {"messages": 5}}),
    ([{"role": "user", "content": LONG}], {}),
    ([{"role": "user", "content": "a\ud800"}], {}),
    (5, {}),
]
ANSWER = '<think>Hm.</think>\n\nSo <tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
LONG_TEXT = 300


def described(value: Any) -> Any:
    """A value as JSON; of a long text the beginning and a hash."""
    if isinstance(value, str):
        value = re.sub("[0-9a-f]{32}", "HEX", value.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
        hashed = hashlib.sha256(value.encode()).hexdigest()[:16]
        return value if len(value) < LONG_TEXT else f"{value[:LONG_TEXT]}...{hashed}"
    if isinstance(value, ReasoningStyle):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: described(each) for name, each in found.items() if each is not None}
    if hasattr(value, "_asdict"):
        return {name: described(each) for name, each in value._asdict().items()}
    if isinstance(value, dict):
        return {str(name): described(each) for name, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(described, value))
    if isinstance(value, list | tuple):
        return [described(each) for each in value] if len(value) < 100 else described(repr(value))
    return value if isinstance(value, int | float | bool | None) else str(value)


def of_request(request: Any) -> Any:
    """A request of the engine; its times are those since its arrival."""
    began = request.arrival_time
    times = {
        name: None if (time := getattr(request, name)) is None else round(time - began, 6)
        for name in ("arrival_time", "start_deadline", "deadline")
    }
    return described(dataclasses.replace(request, **times))


def of_plan(parsed: Any) -> Any:
    """How the answers of a request are read."""
    if parsed.answer is None:
        return None
    plan, schemas = parsed.answer, parsed.answer.schemas
    tools = None if schemas is None else {name: getattr(schemas, name) for name in ("is_calls_alone", "is_parallel")}
    return {
        "format": str(plan.format),
        "schemas": tools,
        "start": described(plan.start),
        "fields": list(parsed.reasoning_fields),
    }


def of_parsed(parsed: Any) -> Any:
    """A parsed body."""
    if isinstance(parsed, tuple):
        return {"requests": [*map(of_request, parsed.requests)], "rest": [parsed.is_base64, list(parsed.ignored)]}
    names = ("model", "stream", "include_usage", "ignored", "slow_reader", "has_usage_in_chunks", "has_token_ids",
             "has_timings", "shown", "id", "num_choices")  # fmt: skip
    return {
        "requests": [*map(of_request, parsed.requests)],
        "plan": of_plan(parsed),
        "origin": None if parsed.request.grammar is None else parsed.demand.path,
        "rest": {name: described(getattr(parsed, name)) for name in names},
    }


def of_error(error: QuireError) -> Any:
    """An error as a client sees it."""
    return {
        "error": type(error).__name__,
        "code": error.code,
        "param": error.param,
        "message": described(error.message),
    }


async def of_body(context: Any, kind: str, body: bytes) -> Any:
    """What an entry makes of a body."""
    sender = Sender(tenant="t", account="a")
    try:
        if kind == "embeddings":
            return of_parsed(await parse_request.parse(body, context, parse_embeddings, sender))
        parser = parse_completion if kind == "completions" else parse_chat
        parsed = await parse_request.parse_answer(body, context, parser, sender, always_streams=kind == "quire.v1")
        return of_parsed(parsed)
    except QuireError as error:
        return of_error(error)


async def of_server() -> dict[str, Any]:
    """What a server makes of all bodies."""
    bodies = {
        "chat": [raw(body) for body in CHATS] + [body for _, path, body, *_ in BODIES if path == CHAT],
        "quire.v1": [raw(body) for body in CHATS],
        "completions": [raw(body) for body in TEXTS] + [body for _, path, body, *_ in BODIES if path != CHAT],
        "embeddings": [raw(body) for body in VECTORS],
    }
    found = {}
    for setup, settings in SETUPS.items():
        app = await make_app(**settings)
        context = app.state.context
        context.grammars.load(context.text.tokenizer, 3072, (4,))
        for kind, each in bodies.items():
            for number, body in enumerate(each):
                found[f"{setup}, {kind} {number}"] = await of_body(context, kind, body)
        found[f"{setup} failures"] = dict(context.grammars.failures)
        context.close()
    return found


class Engine:
    """In place of the engine of an LLM: each answer is the same text."""

    has_ready_work = False

    def __init__(self, engine: Any) -> None:
        self.model_info = engine.model_info
        self.requests: list[Any] = []

    def turn(self, commands: list[Any], now: float) -> StepReport:
        """Answer all at once."""
        events: list[Any] = []
        usage, times = Usage(1, 1), Timings(0.0, 0.0, 0.0)
        for request in (command.request for command in commands if isinstance(command, Submit)):
            self.requests.append(request)
            if request.pooling is not None:
                events.append(Embedded(request.id, bytes(8), 1))
                continue
            if request.params.prompt_logprobs is not None:
                events.append(PromptScored(request.id, Logprobs.of([], 0)))
            for choice in range(request.params.n):
                events.append(TokenDelta(request.id, choice, 1, (5,), ANSWER))
                events.append(Finished(request.id, choice, ChoiceEnd(FinishReason.STOP), usage, times))
        return StepReport(tuple(events), EngineStats())

    def abort(self, request_id: str, now: float) -> None:
        """Nothing is open."""


def of_llm() -> dict[str, Any]:
    """What an LLM makes of all calls."""
    found = {}
    for setup, settings in SETUPS.items():
        ours = {name: value for name, value in settings.items()
                if name not in ("reasoning_field", "clamp_max_tokens", "strict")}  # fmt: skip
        llm = LLM("guide", num_kv_blocks=64, max_model_len=1024, **ours)
        engine = llm.engine

        def call(
            name: str, *args: Any, llm: LLM = llm, engine: Any = engine, setup: str = setup, **fields: Any
        ) -> None:
            llm.engine = fake = Engine(engine)  # type: ignore[assignment]
            try:
                answer: Any = described(getattr(llm, name)(*args, **fields))
            except QuireError as error:
                answer = of_error(error)
            key = f"{setup}, LLM.{name} {len(found)}"
            found[key] = {"answer": answer, "requests": [*map(of_request, fake.requests)]}

        for prompt in PROMPTS:
            call("generate", prompt if isinstance(prompt, str) else prompt or [[]], use_tqdm=False)
            call("embed", prompt if isinstance(prompt, str) else prompt or [[]])
            call("score_prompt", prompt if isinstance(prompt, str) else prompt or [[]])
        for options in ({"dimensions": 0}, {"dimensions": 10**6}, {"pooling": "max"}, {"pooling": "last"},
                        {"normalize": False, "dimensions": 2}):  # fmt: skip
            call("embed", "Hi", **options)
        call("score_prompt", "Hi", 21)
        call("score_prompt", "Hi", 3)
        for params in LLM_PARAMS:
            call("generate", ["Hi", [5]], SamplingParams(**params), use_tqdm=False)
            call("chat", [HI, HI], SamplingParams(**params), use_tqdm=False)
            call("chat", HI, SamplingParams(**params), use_tqdm=False, tools=TOOLS, tool_choice="required")
            call("chat", HI, SamplingParams(**params), use_tqdm=False, tools=STRICT)
        for messages, options in LLM_CHATS:
            call("chat", messages, use_tqdm=False, **options)
        llm.engine = engine
        llm.close()
    return {key: json.loads(re.sub('"llm-[0-9]+"', '"llm-N"', re.sub("call_[0-9a-f]{24}", "call_N", json.dumps(value))))
            for key, value in found.items()}  # fmt: skip


def of_terminal() -> dict[str, Any]:
    """What a model in a terminal command makes of its calls."""
    found = {}
    for setup in SETUPS:
        names = ("reasoning_parser", "chat_template", "queue_timeout")
        ours = {name: value for name, value in SETUPS[setup].items() if name in names}
        with asyncio.Runner() as runner:
            local = LocalModel(make_config({"num_kv_blocks": 64, "max_model_len": 1024, **ours}), runner)
            engine, info = local._engine, local._engine.model_info()
            for params in (
                {"max_tokens": None},
                {"max_tokens": 5},
                {"max_tokens": 10**6},
                {"max_tokens": None, "n": 2},
            ):
                for prompt in ("Hi", HI, BEGUN, LONG):
                    fake = FakeEngine(Script(answer=list(ANSWER)))
                    fake.model_info = lambda info=info: info  # type: ignore[method-assign,misc]
                    local._engine = fake
                    try:
                        make = local.complete if isinstance(prompt, str) else local.chat
                        answer: Any = "".join(make(prompt, SamplingParams(**params)))
                    except QuireError as error:
                        answer = of_error(error)
                    key = f"{setup}, local {described(repr(prompt))} {params}"
                    found[key] = {"answer": answer, "requests": [*map(of_request, fake.requests)]}
            local._engine = engine
            local.close()
    return found


@pytest.mark.parametrize("part", ["server", "LLM", "terminal"])
def test_requests_plans_and_errors_are_as_they_were(part, tmp_path, monkeypatch):
    (tmp_path / "granite.jinja").write_text(GRANITE)
    (tmp_path / "one_call.jinja").write_text(ONE_CALL)
    monkeypatch.setattr(secrets, "randbits", lambda count: 0)
    for setup in SETUPS.values():
        if "chat_template" in setup:
            monkeypatch.setitem(setup, "chat_template", str(tmp_path / Path(setup["chat_template"]).name))
    found = asyncio.run(of_server()) if part == "server" else of_llm() if part == "LLM" else of_terminal()
    found = json.loads(json.dumps(found).replace(str(tmp_path), "TMP"))
    if full := os.environ.get("GOLDEN_FULL"):  # to see what differs
        Path(full, f"{part}.json").write_text(json.dumps(found, indent=0, sort_keys=True))
    hashes = {
        key: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12] for key, value in found.items()
    }
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("GOLDEN_RECORD"):
        FILE.write_text(json.dumps(golden | {part: hashes}, indent=0, sort_keys=True))
        return
    assert hashes == golden[part]
