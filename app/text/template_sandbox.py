"""The sandbox of chat templates: allowed functions, and counting of their work.

A template is untrusted code, and its work depends on the client's messages. Every loop, call, filter, test, operator
and output is counted against an allowance (see `template_allowance`). A template that exceeds it fails its request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import Template, TemplateError, Undefined, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from app.text.template_allowance import MAX_BITS, MAX_RANGE, TemplateTooCostly, current

MAX_INDENT = 32
MAX_SEPARATOR = 8
_UNUSED_FILTERS = ("center", "pprint", "urlize", "wordwrap", "xmlattr")
_UNUSED_METHODS = {"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "maketrans", "to_bytes", "encode"}
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
    """Return the template, to be rendered within `allowed`.

    Raises:
        TemplateSyntaxError: the source is not a valid template.
    """
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    for name in _UNUSED_FILTERS:
        del environment.filters[name]
    environment.filters["tojson"] = _to_json
    environment.filters = {
        name: _bounded(name, function, is_deep=name not in _SHALLOW_FILTERS)
        for name, function in environment.filters.items()
    }
    environment.filters |= {"_seen": _seen, "_searched": _searched, "_weighed": _weighed, "_counted": _counted}
    environment.tests = {
        name: _bounded(name, function, is_deep=name not in _SHALLOW_TESTS)
        for name, function in environment.tests.items()
    }
    del environment.globals["lipsum"]
    environment.globals |= {
        "range": _range,
        "dict": _dict,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    code = environment.compile(_Counting().visit(environment.parse(source)))
    return Template.from_code(environment, code, environment.make_globals(None))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Counts calls and operators."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _UNUSED_METHODS and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # see jinja2
        allowance = current()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        subject, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(subject, str) and name == "join" and args:
            args = (_joinable(args[0], len(subject)),)
        if isinstance(subject, (str, int, float)):
            allowance.check_call(name, subject, [*args, *kwargs.values()], is_deep=True)
        elif not isinstance(__obj, Macro):
            for value in (*args, *kwargs.values()):
                allowance.look(value, is_deep=True)
            if name in ("count", "index"):
                allowance.look(subject, is_deep=True)
        allowance.step()
        result = super().call(__context, __obj, *args, **kwargs)
        allowance.look(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        allowance = current()
        if operator == "%" and isinstance(left, str):
            allowance.check_format(left, right if isinstance(right, tuple) else (right,))
        if operator == "**" and isinstance(right, int) and abs(right) > MAX_BITS:
            raise TemplateTooCostly(f"it computes with numbers of more than {MAX_BITS} bits")
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, (str, bytes, list, tuple)) and isinstance(times, int):
                    allowance.take(len(value) * max(times, 0))
        for value in (left, right):
            allowance.look(value)
        result = super().call_binop(context, operator, left, right)
        allowance.look(result)
        return result


class _Counting(NodeTransformer):
    """Wraps expressions without a call in filters that count."""

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_around(_constant(child), "_seen") for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_around(child, "_seen") for child in node.nodes]
        return _around(node, "_seen")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _around(node.expr, "_seen")
        for operand in node.ops:
            operand.expr = _around(operand.expr, "_searched" if operand.op in ("in", "notin") else "_seen")
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _around(node.key, "_seen")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _around(node, "_weighed")
        if not isinstance(node.arg, nodes.Const):
            node.arg = _around(node.arg, "_seen")
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _around(node.iter, "_counted")
        return node


class _GenerationTag(Extension):
    """`{% generation %}`: marks answers for training; here its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context  # so that jinja2 evaluates nothing when it compiles the template
def _seen(_context: Context, value: Any) -> Any:
    """Count a value that is output, compared or used as a key."""
    current().look(value, is_deep=True)
    return value


@pass_context
def _searched(_context: Context, value: Any) -> Any:
    """Count a value that is searched for another one; in a dict only hashed keys are searched."""
    current().look(value, is_deep=not isinstance(value, dict))
    return value


@pass_context
def _weighed(_context: Context, value: Any) -> Any:
    """Count a slice of a value."""
    current().look(value)
    return value


@pass_context
def _counted(_context: Context, items: Iterable[Any]) -> Iterator[Any]:
    """Count the iterations of a loop."""
    return _turns(items)


def _turns(items: Iterable[Any]) -> Iterator[Any]:
    step = current().step
    for item in items:
        step()
        yield item


def _bounded(name: str, function: Any, *, is_deep: bool) -> Callable[..., Any]:
    """Return a filter or test that counts its arguments and its result; see `Allowance.check_call`."""
    num_before = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        allowance = current()
        before, (subject, *rest) = args[:num_before], args[num_before:]
        if isinstance(subject, Iterator):
            subject = list(_turns(subject)) if is_deep else _turns(subject)
        if name == "join":
            separator = rest[0] if rest else kwargs.get("d", "")
            subject = _joinable(subject, len(separator) if isinstance(separator, str) else 0)
        allowance.check_call(name, subject, [*rest, *kwargs.values()], is_deep=is_deep)
        result = function(*before, subject, *rest, **kwargs)
        allowance.look(result)
        return result

    return bounded


def _joinable(items: Any, separator_size: int) -> Any:
    """Return `items` for a join, and count the result."""
    allowance = current()
    if not isinstance(items, (str, list, tuple, dict, Undefined)):
        items = list(items)
    allowance.look(items, is_deep=True)
    allowance.take(separator_size * len(items) if not isinstance(items, Undefined) else 0)
    return items


def _constant(node: nodes.Expr) -> nodes.Expr:
    return nodes.Const(node.data, lineno=node.lineno) if isinstance(node, nodes.TemplateData) else node


def _around(node: Any, name: str) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


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
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    take = current().take
    chunks = []
    for chunk in encoder.iterencode(value):  # with an indent, chunks are as long as their items are deep
        take(len(chunk))
        chunks.append(chunk)
    return "".join(chunks)


def _range(*bounds: int) -> range:
    values = range(*bounds)
    if len(values) > MAX_RANGE:
        raise TemplateTooCostly(f"range() of more than {MAX_RANGE} numbers")
    return values


def _dict(*pairs: Any, **items: Any) -> dict[Any, Any]:
    return dict(*pairs, **items)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
