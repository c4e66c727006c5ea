"""The checks of `tools`, `tool_choice` and `parallel_tool_calls`."""

from dataclasses import replace
from typing import Any

import pytest

from app.contract.errors import InvalidValue, RequestError, UnsupportedParameter
from app.contract.grammar import GrammarKind, StructuredOutputs
from app.text.answer.answer_format import AnswerFormat
from app.text.answer.tool_use import choose_tools
from app.text.calls.formats import FORMATS

HERMES = FORMATS["hermes"]


def tool(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def read(tools: object = None, choice: object = None, is_parallel: bool | None = None, calls=HERMES):
    return choose_tools(tools, choice, is_parallel, calls)


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def source_of(use) -> str | None:
    grammar = use.grammar(AnswerFormat(HERMES))
    assert grammar is None or grammar.kind is GrammarKind.CALLS
    return grammar and grammar.source


def test_without_tools_there_is_nothing_to_parse():
    for use in (read(), read([]), read(choice="auto"), read(choice="none"), read([tool()], "none")):
        assert (use.definitions, use.schemas, source_of(use)) == ((), None, None)


def test_auto_has_no_grammar():
    use = read([tool(), tool("g")])
    assert [each["function"]["name"] for each in use.definitions] == ["f", "g"]
    assert use.schemas.names == {"f", "g"}
    assert source_of(use) is None
    assert source_of(read([tool()], is_parallel=True)) is None


def test_required_and_named_calls_have_a_grammar():
    required = source_of(read([tool(), tool("g")], "required"))
    assert required.startswith("start: marked (NEWLINE marked)*")
    assert '\\"f\\"' in required and '\\"g\\"' in required
    one = source_of(read([tool(), tool("g")], named("g")))
    assert one.startswith("start: marked\n")
    assert '\\"f\\"' not in one
    assert source_of(read([tool()], "required", False)).startswith("start: marked\n")


def test_a_strict_tool_and_a_single_call_have_a_grammar_in_auto():
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    strict = source_of(read([tool(strict=True, parameters=parameters), tool("g", parameters=parameters)]))
    assert strict.startswith("start: (marked)* REST")
    assert strict.count('"integer"') == 1, "only the schema of the strict tool"
    single = source_of(read([tool(parameters=parameters)], is_parallel=False))
    assert single.startswith("start: (marked)? REST")
    assert '"integer"' not in single


def test_a_template_that_takes_one_call_gets_one():
    one = AnswerFormat(HERMES, takes_several_calls=False)
    for is_parallel in (None, True, False):
        required = read([tool(), tool("g")], "required", is_parallel).grammar(one)
        assert required.source.startswith("start: marked\n")
    strict = read([tool(strict=True)]).grammar(one)
    assert strict.source.startswith("start: (marked)? REST")
    beside = read([tool()]).grammar(one, StructuredOutputs(choice=["a"]))
    assert beside.source.startswith("start: marked | answer\n")
    assert read([tool()]).grammar(one) is None, "with auto the parser reads one"
    assert read([tool()]).schemas.is_parallel and not read([tool()], is_parallel=False).schemas.is_parallel


@pytest.mark.parametrize(
    ("tools", "choice", "error", "param"),
    [
        (None, "required", InvalidValue, "tool_choice"),
        ([], named("f"), InvalidValue, "tool_choice"),
        ([tool()], named("g"), InvalidValue, "tool_choice"),
        ([tool()], "any", InvalidValue, "tool_choice"),
        ([tool()], {"type": "function"}, InvalidValue, "tool_choice"),
        ([tool()], {"type": "allowed_tools"}, InvalidValue, "tool_choice"),
        ([tool()], 3, InvalidValue, "tool_choice"),
        ([tool(parameters={"const": "x" * 70000})], "required", InvalidValue, "tools"),
    ],
)
def test_errors_name_the_field(tools, choice, error, param):
    with pytest.raises(RequestError) as caught:
        source_of(read(tools, choice))
    assert (type(caught.value), caught.value.param) == (error, param)


def allowed(mode: object, *names: str) -> dict[str, object]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def test_a_choice_may_be_among_some_of_the_tools():
    tools = [tool("f"), tool("g"), tool("h", parameters={"type": "object", "properties": {"a": {}}})]
    auto = read(tools, allowed("auto", "h", "g"))
    assert [one["function"]["name"] for one in auto.definitions] == ["g", "h"]
    assert auto.called == ()
    required = read(tools, allowed("required", "h"))
    assert [one["function"]["name"] for one in required.called] == ["h"] and required.is_parallel
    [(path, _)] = required.parts(AnswerFormat(HERMES))
    assert path == "tools[2].function.parameters"


@pytest.mark.parametrize("choice", [
    allowed("auto"), allowed("none", "f"), allowed(None, "f"), allowed("auto", "x"), {"type": "allowed_tools"},
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["f"]}},
])  # fmt: skip
def test_allowed_tools_must_be_some_of_the_tools(choice):
    with pytest.raises(InvalidValue) as caught:
        read([tool()], choice)
    assert caught.value.param == "tool_choice"


def test_calls_of_an_unknown_format_cannot_be_required():
    assert read([tool()], "auto", calls=None).definitions
    for choice in ("required", named("f")):
        with pytest.raises(UnsupportedParameter) as caught:
            read([tool()], choice, calls=None)
        assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("name", ["lfm2", "qwen3_coder"])
def test_parameters_that_calls_cannot_name_are_refused_where_a_grammar_writes_calls(name):
    key = "first name" if name == "lfm2" else "a>b"
    parameters = {"type": "object", "properties": {key: {"type": "string"}}}
    answers = AnswerFormat(FORMATS[name].narrowed("<tool_call>"))
    tools = [tool(), tool("g", parameters=parameters)]
    for use in (
        read(tools, "required", calls=answers.calls),
        read(tools, named("g"), calls=answers.calls),
        read([tool(), tool("g", parameters=parameters, strict=True)], calls=answers.calls),
    ):
        with pytest.raises(InvalidValue, match=f"has a parameter with the name '{key}'") as caught:
            use.grammar(answers)
        assert caught.value.param == "tools[1].function.parameters"
    assert read(tools, named("f"), calls=answers.calls).grammar(answers) is not None
    assert read(tools, calls=answers.calls).grammar(answers) is None
    assert read(tools, "required").grammar(AnswerFormat(HERMES)) is not None


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {str(number): {"type": "integer"} for number in range(401)}},
        {"properties": {"a": {"properties": {str(number): {} for number in range(401)}}}},
    ],
    ids=["whole", "inner"],
)
def test_schemas_of_tools_have_the_limits_of_others(name, parameters):
    answers = AnswerFormat(FORMATS[name].narrowed("<tool_call><TOOLCALL>"))
    tools = [tool(), tool("g", parameters=parameters)]
    for use in (
        read(tools, "required", calls=answers.calls),
        read(tools, named("g"), calls=answers.calls),
        read([tool(), tool("g", parameters=parameters, strict=True)], calls=answers.calls),
    ):
        with pytest.raises(InvalidValue, match="has 401 properties") as caught:
            use.grammar(answers)
        assert caught.value.param == "tools[1].function.parameters"
    assert read(tools, calls=answers.calls).grammar(answers) is None
    assert read(tools, named("f"), calls=answers.calls).grammar(answers) is not None


def test_an_answer_that_need_not_call_may_be_what_else_is_asked_for():
    outputs = StructuredOutputs(json={"type": "integer"})
    answers = AnswerFormat(HERMES)
    parameters = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    either = read([tool(parameters=parameters)]).grammar(answers, outputs)
    assert either.kind is GrammarKind.CALLS
    assert " | answer" in either.source and '"integer"' in either.source and '"boolean"' not in either.source
    strict = read([tool(parameters=parameters, strict=True)]).grammar(answers, outputs)
    assert '"boolean"' in strict.source
    alone = read().grammar(answers, outputs)
    assert (alone.kind, alone.source) == (GrammarKind.JSON_SCHEMA, '{"type":"integer"}')
    assert read([tool()], calls=None).grammar(AnswerFormat(), outputs) == alone
    assert read([tool()]).grammar(answers, StructuredOutputs(grammar='start: "a"')).kind is GrammarKind.LARK


@pytest.mark.parametrize("choice", ["required", named("f")])
def test_an_answer_that_must_call_is_nothing_else(choice):
    use = read([tool()], choice)
    with pytest.raises(InvalidValue, match=r"^structured_outputs and tool_choice both say") as caught:
        use.grammar(AnswerFormat(HERMES), StructuredOutputs(regex="a"))
    assert caught.value.param == "structured_outputs"
    assert use.schemas.is_calls_alone and not read([tool()]).schemas.is_calls_alone


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (None, "^tools has .* Send fewer or shorter definitions, or tool_choice 'auto' without strict"),
        (StructuredOutputs(grammar='start: "a"'), "^tools and the grammar beside them have .* or a smaller grammar"),
    ],
)
def test_a_grammar_that_is_too_large_names_what_it_is_made_of(outputs, words):
    long = {"properties": {"a": {"const": "x" * 40_000}}}
    tools = [tool(parameters=long, strict=True), tool("g", parameters=long, strict=True)]
    with pytest.raises(InvalidValue, match=words) as caught:
        read(tools).grammar(AnswerFormat(HERMES), outputs)
    assert caught.value.param == "tools"


@pytest.mark.parametrize("name", FORMATS)
def test_descriptions_do_not_count_for_the_size_of_a_grammar(name):
    answers = AnswerFormat(FORMATS[name].narrowed("<tool_call><TOOLCALL>"))
    found = set()
    for text in ("x" * 1200, "short"):
        parameters = {
            "type": "object",
            "title": text,
            "properties": {"title": {"type": "string", "description": text}, "n": {"type": "integer", "default": text}},
            "required": ["title"],
            "additionalProperties": False,
        }
        tools = [tool(f"f{index}", parameters=parameters) for index in range(64)]
        found.add(read(tools, "required", calls=answers.calls).grammar(answers))
    assert len(found) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_keywords_that_exclude_nothing_do_not_matter_in_any_form_of_calls(name):
    answers = AnswerFormat(FORMATS[name].narrowed("<tool_call><TOOLCALL>"))
    parameters = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
    free = {"propertyNames": {"type": "string"}, "dependentRequired": {}, "if": True, "not": False, "minProperties": 0}
    more = {"type": "object", "properties": {"a": {**parameters["properties"]["a"], "uniqueItems": False}}, **free}
    plain, same = (
        read([tool(parameters=each)], "required", calls=answers.calls).grammar(answers) for each in (parameters, more)
    )
    assert plain == same


def test_the_parts_of_a_grammar_are_its_tools():
    answers = AnswerFormat(HERMES)
    tools = [tool(), tool("g", strict=True)]
    assert [path for path, _ in read(tools).parts(answers)] == ["tools[1].function.parameters"]
    assert [path for path, _ in read(tools, "required").parts(answers)] == [
        f"tools[{index}].function.parameters" for index in range(2)
    ]
    assert list(read(tools).parts(AnswerFormat())) == []


def test_a_deferred_tool_can_be_called_and_is_not_in_the_prompt():
    parameters = {"type": "object", "properties": {"later": {"type": "integer"}}}
    first, later = read([tool()]), read([tool("g", parameters=parameters, strict=True)])
    use = replace(first, deferred=later.definitions, strict=later.strict, paths={"f": "a", "g": "b"})
    assert use.schemas.names == {"f", "g"}
    assert use.num_chars == first.num_chars
    assert '"later"' in source_of(use) and '\\"f\\"' in source_of(use)
    assert [path for path, _ in use.parts(AnswerFormat(HERMES))] == ["b"]


def test_deferred_tools_alone_are_parsed():
    use = replace(read(), deferred=read([tool()]).definitions)
    assert use.schemas.names == {"f"} and not use.definitions


def test_the_tool_that_is_wrong_is_named_as_the_client_has_it():
    wrong = read([tool(parameters={"type": "object", "minProperties": 1}, strict=True)])
    use = replace(wrong, paths={"f": "tools[3].input_schema"})
    with pytest.raises(InvalidValue, match=r"^tools\[3\].input_schema ") as caught:
        use.grammar(AnswerFormat(FORMATS["qwen3_coder"]))
    assert caught.value.param == "tools[3].input_schema"
