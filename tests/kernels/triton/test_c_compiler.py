"""The C compiler is looked for as Triton does, and what is missing is said in a sentence."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from app.contract.errors import CannotStart
from app.kernels.triton import c_compiler
from app.kernels.triton.c_compiler import check_c_compiler, find_c_compiler


def program(folder: Path, name: str, script: str = "exit 0") -> str:
    """A program in a folder of PATH."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


@pytest.fixture(name="path")
def _path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH, empty; and no CC."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    c_compiler._problem.cache_clear()
    return tmp_path


def test_gcc_comes_before_clang_and_cc_before_both(path, monkeypatch):
    clang = program(path, "clang")
    assert find_c_compiler() == clang
    gcc = program(path, "gcc")
    assert find_c_compiler() == gcc
    named = program(path, "tcc")
    monkeypatch.setenv("CC", named)
    assert find_c_compiler() == named


def test_without_a_compiler_it_says_what_to_install(path, monkeypatch):
    with pytest.raises(CannotStart, match=r"looked for CC, gcc, clang\); install one .*apt-get install gcc libc6-dev"):
        check_c_compiler()
    program(path, "gcc")
    monkeypatch.setenv("CC", "missing-cc")  # Triton takes it at its word
    with pytest.raises(CannotStart, match="CC is 'missing-cc'"):
        check_c_compiler()


def test_missing_headers_are_named(path):
    program(path, "gcc", "echo 'x.c:1:10: fatal error: Python.h: No such file or directory' >&2; exit 1")
    with pytest.raises(CannotStart, match=r"gcc fails: .*Python\.h: No such file.*apt-get install libc6-dev"):
        check_c_compiler()
    c_compiler._problem.cache_clear()
    good = program(path, "gcc")
    assert check_c_compiler() == good
