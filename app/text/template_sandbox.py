"""The sandbox that chat templates run in: what they may call, and how much they may do.

A template is code of strangers, and what it does depends on what clients send. Every loop, call, filter, operator and
output of it is counted against an allowance, and sizes are known before strings are made of them. So a template that
runs wild is an error of its request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import Template, TemplateError, Undefined, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_RANGE = 10_000  # numbers of a range(), and the largest width, count or precision
MAX_STEPS = 2**20
MAX_ITEMS = 2**18
MAX_BITS = 4096
MAX_INDENT = 32
# A template may repeat what it is given (system prompts do), but not without end.
MAX_EXPANSION = 4
MAX_EXTRA_CHARS = 2**20
WORK_PER_CHAR = 512
MAX_EXTRA_WORK = 2**24
_WIDE = re.compile(r"\*|\d{5}")  # in a format string: a width of its argument's, or a large one
_UNUSED_FILTERS = ("center", "pprint", "urlize", "wordwrap", "xmlattr")
_UNUSED_METHODS = {"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "maketrans", "to_bytes"}
_DEEP_FILTERS = {"join", "tojson", "string", "sum", "format", "urlencode"}  # they look at all that a list holds


class TemplateTooCostly(TemplateError):
    """A template does more than it may."""


class Allowance:
    """What one rendering may still do: steps, and characters that go through it. One thread."""

    __slots__ = ("max_chars", "num_chars", "num_steps")

    def __init__(self, num_given: int) -> None:
        """`num_given` is how many characters the template is given."""
        self.max_chars = MAX_EXTRA_CHARS + MAX_EXPANSION * num_given
        self.num_chars = MAX_EXTRA_WORK + WORK_PER_CHAR * num_given
        self.num_steps = MAX_STEPS

    def step(self) -> None:
        """Count one step."""
        self.num_steps -= 1
        if self.num_steps < 0:
            raise TemplateTooCostly(f"it takes more than {MAX_STEPS} steps")

    def take(self, size: int) -> None:
        """Count `size` characters, of a string that is there or is about to be made."""
        if size > self.max_chars:
            raise TemplateTooCostly(f"it makes a text of more than {self.max_chars} characters")
        self.num_chars -= size
        if self.num_chars < 0:
            raise TemplateTooCostly("it goes through the messages too often")

    def look(self, value: object, *, is_deep: bool = False) -> None:
        """Count a value as it stands, or with all that it holds."""
        self.step()
        if isinstance(value, (str, bytes)):
            self.take(len(value))
        elif isinstance(value, (list, tuple, dict, set)):
            if len(value) > MAX_ITEMS:
                raise TemplateTooCostly(f"it makes a list of more than {MAX_ITEMS} items")
            self.take(len(value))
            for item in (value.items() if isinstance(value, dict) else value) if is_deep else ():
                self.look(item, is_deep=True)
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise TemplateTooCostly(f"it computes with numbers of more than {MAX_BITS} bits")

    def check_call(self, name: str, subject: object, args: list[Any]) -> None:
        """Refuse a call of a filter or method of `subject` that would make something too large."""
        if any(isinstance(value, int) and abs(value) > MAX_RANGE for value in args):
            raise TemplateTooCostly(f"{name} with a number above {MAX_RANGE}")
        self.look(subject)
        if not isinstance(subject, str):
            return
        if name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
            self.take(len(subject) + (subject.count(args[0]) if args[0] else len(subject) + 1) * len(args[1]))
        elif name == "indent":
            width = args[0] if args else 4
            self.take((subject.count("\n") + 1) * (width if isinstance(width, int) else len(str(width))))
        elif name in ("format", "format_map") and _WIDE.search(subject):
            raise TemplateTooCostly("it formats with a large width")


_allowance: ContextVar[Allowance] = ContextVar("allowance")


@contextmanager
def allowed(num_given: int) -> Iterator[None]:
    """Render within the block with a new allowance for `num_given` characters."""
    token = _allowance.set(Allowance(num_given))
    try:
        yield
    finally:
        _allowance.reset(token)


def compile_template(source: str) -> Template:
    """Return the template, to be rendered within `allowed`.

    Raises:
        TemplateSyntaxError: it is none.
    """
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    for name in _UNUSED_FILTERS:
        del environment.filters[name]
    environment.filters["tojson"] = _to_json
    environment.filters = {name: _bounded(name, function) for name, function in environment.filters.items()}
    environment.filters |= {"_seen": _seen, "_weighed": _weighed, "_counted": _counted}
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
        allowance = _current()
        method = getattr(__obj, "__wrapped__", __obj)  # of str.format the sandbox makes a function of its own
        subject, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(subject, (str, bytes, int, float)):
            if name == "join" and args:
                args = (_joinable(args[0], len(subject) if isinstance(subject, (str, bytes)) else 0),)
            allowance.check_call(name, subject, [*args, *kwargs.values()])
        allowance.step()
        result = super().call(__context, __obj, *args, **kwargs)
        allowance.look(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        allowance = _current()
        if operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise TemplateTooCostly("it formats with a large width")
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
    """Puts the filters that count around what templates do without a call."""

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
        node.expr = _around(node.expr, "_weighed")
        for operand in node.ops:
            operand.expr = _around(operand.expr, "_weighed")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _around(node, "_weighed") if isinstance(node.arg, nodes.Slice) else node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _around(node.iter, "_counted")
        return node


class _GenerationTag(Extension):
    """`{% generation %}`: marks answers for training; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context  # so that nothing is worked out when the template is compiled
def _seen(_context: Context, value: Any) -> Any:
    """Count a value that becomes text as it is."""
    _current().look(value, is_deep=True)
    return value


@pass_context
def _weighed(_context: Context, value: Any) -> Any:
    """Count a value that is compared or was cut out of another."""
    _current().look(value)
    return value


@pass_context
def _counted(_context: Context, items: Iterable[Any]) -> Iterator[Any]:
    """Count the turns of a loop."""
    step = _current().step
    for item in items:
        step()
        yield item


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that counts what goes in and what comes out."""
    num_before = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        allowance = _current()
        before, (subject, *rest) = args[:num_before], args[num_before:]
        if name == "join":
            separator = rest[0] if rest else kwargs.get("d", "")
            subject = _joinable(subject, len(separator) if isinstance(separator, str) else 0)
        allowance.check_call(name, subject, [*rest, *kwargs.values()])
        if name in _DEEP_FILTERS:
            allowance.look(subject, is_deep=True)
        result = function(*before, subject, *rest, **kwargs)
        allowance.look(result)
        return result

    return bounded


def _joinable(items: Any, separator_size: int) -> Any:
    """Return `items` for a join that has been counted."""
    allowance = _current()
    if not isinstance(items, (str, list, tuple, dict, Undefined)):
        items = list(items)
    allowance.look(items, is_deep=True)
    allowance.take(separator_size * len(items) if not isinstance(items, Undefined) else 0)
    return items


def _current() -> Allowance:
    try:
        return _allowance.get()
    except LookupError:  # jinja2 works constants out when it compiles
        return Allowance(0)


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
    # jinja2's own escapes HTML; prompts are none.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


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
