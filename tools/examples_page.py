"""The page with an example of each route in curl, Python and JavaScript; a test runs all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import indent
from typing import Any, NamedTuple

URL = "http://127.0.0.1:8000"
MESSAGES: list[Any] = [{"role": "user", "content": "What is Quire?"}]
WEATHER: list[Any] = [{"role": "user", "content": "How warm is it in Oslo?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": CITY},
    }
]
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
# What the Python examples name instead of repeating it.
CONSTANTS: Mapping[str, Mapping[str, object] | list[Any]] = {
    "MESSAGES": MESSAGES,
    "TOOLS": TOOLS,
    "RESPONSE_FORMAT": RESPONSE_FORMAT,
    "WEATHER": WEATHER,
}
MAX_LINE = 100
_HEAD = """# Examples

An example of each route in curl, Python and JavaScript (Node 18 or newer, or a browser), for a server that
`quire serve` has started. With an API key, add the header `Authorization: Bearer KEY`. `/openapi.json` describes all
fields; [HTTP](http.md) explains them.

"""


class Example(NamedTuple):
    """A request; `openai` is the same with OpenAI's Python client, the body of a POST."""

    title: str
    path: str
    body: Mapping[str, object] | None = None
    openai: str | None = None


EXAMPLES = (
    Example(
        "A chat",
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 64},
        'answer = client.chat.completions.create(model="guide", messages=MESSAGES, max_tokens=64)\n'
        "print(answer.choices[0].message.content)",
    ),
    Example(
        "A streamed chat",
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 64, "stream": True},
        'for chunk in client.chat.completions.create(model="guide", messages=MESSAGES, max_tokens=64, stream=True):\n'
        '    print(chunk.choices[0].delta.content or "", end="")',
    ),
    Example(
        "A call of a tool",
        "/v1/chat/completions",
        {"messages": WEATHER, "tools": TOOLS, "tool_choice": "required", "max_tokens": 64},
        "answer = client.chat.completions.create(\n"
        '    model="guide", messages=WEATHER, tools=TOOLS, tool_choice="required", max_tokens=64\n'
        ")\n"
        "print(answer.choices[0].message.tool_calls)",
    ),
    Example(
        "An answer that satisfies a JSON schema",
        "/v1/chat/completions",
        {"messages": WEATHER, "response_format": RESPONSE_FORMAT, "max_tokens": 64},
        "answer = client.chat.completions.create(\n"
        '    model="guide", messages=WEATHER, response_format=RESPONSE_FORMAT, max_tokens=64\n'
        ")\n"
        "print(answer.choices[0].message.content)",
    ),
    Example(
        "A completion of several prompts",
        "/v1/completions",
        {"prompt": ["What is Quire?", "Does it need a GPU?"], "max_tokens": 16},
        'prompts = ["What is Quire?", "Does it need a GPU?"]\n'
        'answer = client.completions.create(model="guide", prompt=prompts, max_tokens=16)\n'
        "print([choice.text for choice in answer.choices])",
    ),
    Example(
        "The log-probabilities of a text",
        "/v1/completions",
        {"prompt": "What is Quire?", "echo": True, "logprobs": 1, "max_tokens": 0},
        'prompt = "What is Quire?"\n'
        'answer = client.completions.create(model="guide", prompt=prompt, echo=True, logprobs=1, max_tokens=0)\n'
        "print(answer.choices[0].logprobs.token_logprobs)",
    ),
    Example(
        "A response",
        "/v1/responses",
        {"input": "What is Quire?", "max_output_tokens": 64},
        'answer = client.responses.create(model="guide", input="What is Quire?", max_output_tokens=64)\n'
        "print(answer.output_text)",
    ),
    Example(
        "A streamed response",
        "/v1/responses",
        {"input": "What is Quire?", "max_output_tokens": 64, "stream": True},
        'with client.responses.stream(model="guide", input="What is Quire?", max_output_tokens=64) as stream:\n'
        "    for event in stream:\n"
        '        if event.type == "response.output_text.delta":\n'
        '            print(event.delta, end="")',
    ),
    Example(
        "Embeddings",
        "/v1/embeddings",
        {"input": ["What is Quire?", "Does it need a GPU?"], "dimensions": 8},
        'texts = ["What is Quire?", "Does it need a GPU?"]\n'
        'answer = client.embeddings.create(model="guide", input=texts, dimensions=8)\n'
        "print([item.embedding for item in answer.data])",
    ),
    Example("A message, in Anthropic's API", "/v1/messages", {"messages": MESSAGES, "max_tokens": 64}),
    Example("The length of a message's prompt", "/v1/messages/count_tokens", {"messages": MESSAGES}),
    Example("The length of a chat's prompt", "/v1/chat/completions/input_tokens", {"messages": MESSAGES}),
    Example("The length of a response's prompt", "/v1/responses/input_tokens", {"input": "What is Quire?"}),
    Example("The prompt of a chat", "/apply-template", {"messages": MESSAGES}),
    Example("Text to token ids", "/tokenize", {"prompt": "What is Quire?"}),
    Example("Token ids to text", "/detokenize", {"tokens": [72, 105]}),
    Example("The served model", "/v1/models", None, "print(client.models.list().data[0].id)"),
    Example("The served model, by name", "/v1/models/guide", None, 'print(client.models.retrieve("guide").id)'),
    Example("The version", "/version"),
    Example("Whether requests are accepted", "/readyz"),
    Example("Whether requests are accepted, under another name", "/health"),
    Example("Whether the process works", "/livez"),
    Example("Metrics", "/metrics"),
    Example("The OpenAPI document", "/openapi.json"),
)


def examples_page() -> str:
    """Return the page."""
    return _HEAD + "\n".join(map(_section, EXAMPLES))


def _section(example: Example) -> str:
    blocks = {"sh": _curl(example), "python": _python(example), "js": _javascript(example)}
    code = "\n".join(f"```{language}\n{text}\n```\n" for language, text in blocks.items())
    method = "GET" if example.body is None else "POST"
    return f"## {example.title}\n\n`{method} {example.path}`\n\n{code}"


def _curl(example: Example) -> str:
    options = "-sS -N" if example.body and example.body.get("stream") else "-sS"
    line = f"curl {options} {URL}{example.path}"
    if example.body is None:
        return line
    return f"{line} -H 'Content-Type: application/json' \\\n  -d '{_json(example.body)}'"


def _python(example: Example) -> str:
    if example.openai is not None:
        code = example.openai
        head = f'from openai import OpenAI\n\nclient = OpenAI(base_url="{URL}/v1", api_key="none")\n'
        for name, value in CONSTANTS.items():
            if name in code:
                head += f"{name.lower()} = {_json(value)}\n"
                code = code.replace(name, name.lower())
        return head + code
    show = "text" if example.path == "/metrics" else "json()"
    if example.body is None:
        return f'import httpx\n\nprint(httpx.get("{URL}{example.path}").{show})'
    return (
        f'import httpx\n\nbody = {json.dumps(example.body)}\nprint(httpx.post("{URL}{example.path}", json=body).{show})'
    )


def _javascript(example: Example) -> str:
    show = "text" if example.path == "/metrics" else "json"
    if example.body is None:
        return f'const response = await fetch("{URL}{example.path}");\nconsole.log(await response.{show}());'
    fetch = (
        f'const response = await fetch("{URL}{example.path}", {{\n'
        + indent(
            'method: "POST",\nheaders: { "Content-Type": "application/json" },\n'
            f"body: JSON.stringify({_json(example.body)}),\n",
            "  ",
        )
        + "});\n"
    )
    if example.body.get("stream"):
        return (
            fetch + "for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {\n"
            "  console.log(piece);\n}"
        )
    return fetch + f"console.log(await response.{show}());"


def _json(value: Mapping[str, object] | list[Any]) -> str:
    """Return `value` as JSON; a long object has a line for each of its fields."""
    line = json.dumps(value)
    if len(line) <= MAX_LINE or not isinstance(value, Mapping):
        return line
    fields = ",\n".join(f"  {json.dumps(name)}: {json.dumps(field)}" for name, field in value.items())
    return f"{{\n{fields}\n}}"
