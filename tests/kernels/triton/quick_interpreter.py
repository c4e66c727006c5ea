"""Triton's interpreter in a third of the time: the same functions on the same tiles, without what is done twice.

What took most of the time of a test, and what is done instead:

- It adds, subtracts and multiplies integers a second time, with 64 bits, to see whether they overflow, and drops the
  answer unless a kernel is compiled for debugging, as none is here. The options say that it shall not.
- It makes each shape of a tensor from tuples with types of their own. A shape is made once.
- Before every launch, and before every call of a function that a kernel calls, it searches `triton.language` for the
  functions that it replaces. They are searched for once, and replaced once for each launch.
- For every operation it makes the table of numpy's types. The types are remembered.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from triton import language
from triton.runtime import interpreter

core = language.core


class Shape:
    """What a block type and the tensors of this type know of their shape."""

    def __init__(self, block: core.block_type) -> None:
        self.of_block = block.shape
        self.size = block.numel
        self.text = str(block.shape)
        tensor = core.tensor.__new__(core.tensor)
        make_tensor(tensor, None, block)
        self.of_tensor = tensor.shape
        self.size_of_tensor = tensor.numel


SHAPES: dict[tuple[int, ...], Shape] = {}
NO_SHAPE: tuple[Any, Any] = (core.tuple([]), core.constexpr(1))
make_block, make_tensor = core.block_type.__init__, core.tensor.__init__
type_of_array, patch_lang = interpreter._get_np_dtype, interpreter._patch_lang
broadcast = interpreter.TritonSemantic.broadcast_impl_value


def init_block(self: core.block_type, element_ty: core.dtype, shape: Any) -> None:
    """See `block_type.__init__`."""
    sizes = tuple(size.value if isinstance(size, core.constexpr) else size for size in shape)
    known = SHAPES.get(sizes)
    if known is None:
        make_block(self, element_ty, shape)
        SHAPES[sizes] = Shape(self)
    else:
        self.element_ty, self.shape, self.numel = element_ty, known.of_block, known.size
        self.name = f"<{known.text}, {element_ty}>"


def init_tensor(self: core.tensor, handle: object, type: core.dtype) -> None:
    """See `tensor.__init__`."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    if type.is_block():
        known = SHAPES[tuple(type.shape.values)]
        self.shape, self.numel = known.of_tensor, known.size_of_tensor
    else:
        self.shape, self.numel = NO_SHAPE


def broadcast_impl_value(self: object, lhs: core.tensor, rhs: core.tensor) -> tuple[core.tensor, core.tensor]:
    """See `TritonSemantic.broadcast_impl_value`; two blocks of one shape are returned as they are."""
    left, right = lhs.type, rhs.type
    if left.is_block() and right.is_block() and left.shape is right.shape:
        return lhs, rhs
    result: tuple[core.tensor, core.tensor] = broadcast(self, lhs, rhs)
    return result


@cache
def np_dtype_of_scalar(dtype: core.dtype) -> np.dtype:
    """Return the type of numpy that the interpreter holds a type in."""
    return type_of_array(dtype)


def get_np_dtype(dtype: core.dtype) -> np.dtype:
    """See `_get_np_dtype`."""
    scalar = dtype.scalar
    return np.dtype(np.uint64) if isinstance(scalar, core.pointer_type) else np_dtype_of_scalar(scalar)


@cache
def names_of_builtins(package: object) -> list[str]:
    """The functions of a module or class that the interpreter replaces; first asked for before it replaces them."""
    return [name for name, member in inspect.getmembers(package) if core.is_builtin(member)]


@cache
def replacement(package: object, name: str, builder: object) -> object:
    """What the interpreter has instead of a function."""
    scope = interpreter._LangPatchScope()
    interpreter._patch_attr(package, name, getattr(package, name), builder, scope)
    made = getattr(package, name)
    scope.restore()
    return made


def patch_builtin(package: object, builder: object, scope: Any) -> None:
    """See `_patch_builtin`."""
    for name in names_of_builtins(package):
        if core.is_builtin(getattr(package, name)):
            scope.set_attr(package, name, replacement(package, name, builder))


@cache
def languages_of(function: Callable[..., object]) -> list[ModuleType]:
    """The modules of Triton's language that a function knows."""
    return [module for module in function.__globals__.values() if module is language or module is core]


def patch_lang_once(function: Callable[..., object]) -> object:
    """See `_patch_lang`; while a launch runs, what it has replaced is not replaced again."""
    used = languages_of(function)
    functions = [core.tensor.__add__, *(module.load for module in used)]
    if used and not any(map(core.is_builtin, functions)):
        return interpreter._LangPatchScope()
    return patch_lang(function)


def install() -> None:
    """Use this for all launches of the process, where Triton is the version whose interpreter is known to work so."""
    if hasattr(interpreter, "_LangPatchScope") and core.block_type.__init__ is make_block:
        interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
        core.block_type.__init__, core.tensor.__init__ = init_block, init_tensor
        interpreter.TritonSemantic.broadcast_impl_value = broadcast_impl_value
        interpreter._get_np_dtype = get_np_dtype
        interpreter._patch_builtin, interpreter._patch_lang = patch_builtin, patch_lang_once
