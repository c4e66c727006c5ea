"""The sandbox of chat templates: allowed functions, and counting of their work.

A template is untrusted code, and its work depends on the client's messages. Every loop, call, filter, test, operator
and output is counted against an allowance (see `template_allowance`). A template that exceeds it fails its request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import Template, TemplateError, Undefined, nodes, pass_context
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from app.text.reading.json_text import JsonTooLarge, parse_json
from app.text.template.template_allowance import MAX_BITS, MAX_RANGE, TemplateTooCostly, current_allowance

MAX_INDENT = 32
MAX_SEPARATOR = 8
# The private-use planes stay: the marks around spelled special tokens are characters of these (see `spelled_tokens`).
_NOT_ASCII = re.compile("[^\x00-\x7f\U000f0000-\U0010ffff]+")
_UNUSED_FILTERS = ("center", "pprint", "urlize", "wordwrap", "xmlattr")
_UNUSED_METHODS = {"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "maketrans", "to_bytes", "encode"}
TEMPLATE_NAMES = frozenset(
    {
        *DEFAULT_NAMESPACE, "raise_exception", "strftime_now", "self", "super", "loop", "caller", "varargs", "kwargs",
        "and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "True", "False", "None",
    }
)  # fmt: skip
"""The names that have a meaning of their own in every template, so that no variable can have them."""

# All other filters and tests may process every value in a list several times.
_SHALLOW_FILTERS = {
    "attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "random", "reject",
    "rejectattr", "reverse", "select", "selectattr", "slice",
}  # fmt: skip
_SHALLOW_TESTS = {
    "boolean", "callable", "defined", "divisibleby", "escaped", "even", "false", "filter", "float", "integer",
    "iterable", "mapping", "none", "number", "odd", "sameas", "sequence", "string", "test", "true", "undefined",
}  # fmt: skip


def compile_template(source: str) -> Template:
    """Return the template, to be rendered within `new_allowance`.

    Raises:
        TemplateSyntaxError: the source is not a valid template.
    """
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    for name in _UNUSED_FILTERS:
        del environment.filters[name]
    environment.filters["tojson"] = _to_json
    environment.filters["from_json"] = _from_json
    environment.filters = {
        name: _limited(name, function, is_deep=name not in _SHALLOW_FILTERS)
        for name, function in environment.filters.items()
    }
    counting = (_count_deep, _count_searched, _count_shallow, _count_iterations)
    environment.filters |= {function.__name__: function for function in counting}
    environment.tests = {
        name: _limited(name, function, is_deep=name not in _SHALLOW_TESTS)
        for name, function in environment.tests.items()
    }
    del environment.globals["lipsum"]
    environment.globals |= {
        "range": _range,
        "dict": lambda *pairs, **items: dict(*pairs, **items),  # without the methods of the type
        "raise_exception": _raise_exception,
        "strftime_now": lambda pattern: datetime.now().strftime(pattern),
    }
    code = environment.compile(_CountingFilters().visit(environment.parse(source)))
    return Template.from_code(environment, code, environment.make_globals(None))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Counts calls and operators."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _UNUSED_METHODS and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # see jinja2
        allowance = current_allowance()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        subject, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(subject, str) and name == "join" and args:
            args = (_counted_join(args[0], len(subject)),)
        if isinstance(subject, (str, int, float)):
            allowance.check_call(name, subject, [*args, *kwargs.values()], is_deep=True)
        elif not isinstance(__obj, Macro):
            for value in (*args, *kwargs.values()):
                allowance.count_value(value, is_deep=True)
            if name in ("count", "index"):
                allowance.count_value(subject, is_deep=True)
        allowance.count_step()
        result = super().call(__context, __obj, *args, **kwargs)
        allowance.count_value(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        allowance = current_allowance()
        if operator == "%" and isinstance(left, str):
            allowance.check_format(left, right if isinstance(right, tuple) else (right,))
        if operator == "**" and isinstance(right, int) and abs(right) > MAX_BITS:
            raise TemplateTooCostly(f"it computes with numbers of more than {MAX_BITS} bits")
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, (str, bytes, list, tuple)) and isinstance(times, int):
                    allowance.count_chars(len(value) * max(times, 0))
        for value in (left, right):
            allowance.count_value(value)
        result = super().call_binop(context, operator, left, right)
        allowance.count_value(result)
        return result


class _CountingFilters(NodeTransformer):
    """Wraps expressions without a call in filters that count."""

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        texts = (nodes.Const(n.data, lineno=n.lineno) if isinstance(n, nodes.TemplateData) else n for n in node.nodes)
        node.nodes = [_filtered(child, _count_deep) for child in texts]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filtered(child, _count_deep) for child in node.nodes]
        return _filtered(node, _count_deep)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, _count_deep)
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, _count_searched if operand.op in ("in", "notin") else _count_deep)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _filtered(node.key, _count_deep)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _filtered(node, _count_shallow)
        if not isinstance(node.arg, nodes.Const):
            node.arg = _filtered(node.arg, _count_deep)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _count_iterations)
        return node


class _GenerationTag(Extension):
    """`{% generation %}`: marks answers for training; here its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context  # so that jinja2 evaluates nothing when it compiles the template
def _count_deep(_context: Context, value: Any) -> Any:
    """Count a value that is output, compared or used as a key."""
    current_allowance().count_value(value, is_deep=True)
    return value


@pass_context
def _count_searched(_context: Context, value: Any) -> Any:
    """Count a value that is searched for another one; in a dict only hashed keys are searched."""
    current_allowance().count_value(value, is_deep=not isinstance(value, dict))
    return value


@pass_context
def _count_shallow(_context: Context, value: Any) -> Any:
    """Count a slice of a value."""
    current_allowance().count_value(value)
    return value


@pass_context
def _count_iterations(_context: Context, items: Iterable[Any]) -> Iterator[Any]:
    """Count the iterations of a loop."""
    return _counted_items(items)


def _counted_items(items: Iterable[Any]) -> Iterator[Any]:
    count_step = current_allowance().count_step
    for item in items:
        count_step()
        yield item


def _limited(name: str, function: Any, *, is_deep: bool) -> Callable[..., Any]:
    """Return a filter or test that counts its arguments and its result; see `Allowance.check_call`."""
    num_before = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        allowance = current_allowance()
        before, (subject, *rest) = args[:num_before], args[num_before:]
        if isinstance(subject, Iterator):
            subject = list(_counted_items(subject)) if is_deep else _counted_items(subject)
        if name == "join":
            separator = rest[0] if rest else kwargs.get("d", "")
            subject = _counted_join(subject, len(separator) if isinstance(separator, str) else 0)
        allowance.check_call(name, subject, [*rest, *kwargs.values()], is_deep=is_deep)
        result = function(*before, subject, *rest, **kwargs)
        allowance.count_value(result)
        return result

    return limited


def _counted_join(items: Any, separator_size: int) -> Any:
    """Return `items` for a join, and count the result."""
    allowance = current_allowance()
    if not isinstance(items, (str, list, tuple, dict, Undefined)):
        items = list(items)
    allowance.count_value(items, is_deep=True)
    allowance.count_chars(separator_size * len(items) if not isinstance(items, Undefined) else 0)
    return items


def _filtered(node: Any, function: Callable[..., Any]) -> nodes.Expr:
    return nodes.Filter(node, function.__name__, [], [], None, None, lineno=node.lineno)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and (not isinstance(indent, int) or indent > MAX_INDENT):
        raise TemplateTooCostly(f"tojson with an indent above {MAX_INDENT}")
    if any(len(separator) > MAX_SEPARATOR for separator in separators or ()):
        raise TemplateTooCostly(f"tojson with a separator of more than {MAX_SEPARATOR} characters")
    # jinja2's filter escapes HTML, which prompts are not.
    encoder = json.JSONEncoder(ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    count_chars = current_allowance().count_chars
    chunks = []
    for chunk in encoder.iterencode(value):  # with an indent, chunks are as long as their items are deep
        escaped = _NOT_ASCII.sub(_escape, chunk) if ensure_ascii else chunk
        count_chars(len(escaped))
        chunks.append(escaped)
    return "".join(chunks)


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def _from_json(text: str) -> object:
    try:
        return parse_json(text)
    except JsonTooLarge as error:
        raise TemplateTooCostly(f"it reads JSON that {error}") from None


def _range(*bounds: int) -> range:
    values = range(*bounds)
    if len(values) > MAX_RANGE:
        raise TemplateTooCostly(f"range() of more than {MAX_RANGE} numbers")
    return values


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))
