"""Without a GPU these tests need Triton's interpreter, which takes most of their time."""

from app.kernels.triton.interpreter import is_interpreting

if is_interpreting():
    from tests.kernels.triton import quick_interpreter

    quick_interpreter.install()
