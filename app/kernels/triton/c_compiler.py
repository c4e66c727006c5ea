"""The C compiler that Triton needs to start kernels: it compiles their launchers on the machine where they run.

Needs neither torch nor Triton, because `quire doctor` asks too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from functools import cache

from app.contract.errors import CannotStart

_COMPILERS = ("gcc", "clang")
INSTALL = "install one (`apt-get install gcc libc6-dev`), or name it in the variable CC"
_PROGRAM = b"#include <Python.h>\n#include <stdint.h>\n"


def find_c_compiler() -> str:
    """Return the compiler that Triton will use: `CC`, else gcc, else clang.

    Raises:
        CannotStart: there is none.
    """
    named = os.environ.get("CC")
    if named is not None:  # as Triton does, without a look at the others
        if found := shutil.which(named):
            return found
        raise CannotStart(f"Triton needs a C compiler to start kernels on a GPU, and CC is {named!r}; {INSTALL}.")
    for name in _COMPILERS:
        if found := shutil.which(name):
            return found
    looked = ", ".join(("CC", *_COMPILERS))
    raise CannotStart(f"Triton needs a C compiler to start kernels on a GPU (looked for {looked}); {INSTALL}.")


def check_c_compiler() -> str:
    """Return the compiler, after it has compiled a program with the headers of Python and of the C library.

    Raises:
        CannotStart: there is no compiler, or it misses headers.
    """
    compiler = find_c_compiler()
    problem = _problem(compiler, sysconfig.get_paths()["include"])
    if problem:
        raise CannotStart(
            f"Triton needs a C compiler to start kernels on a GPU, and {compiler} fails: {problem}. Install the "
            "headers of C and of Python (`apt-get install libc6-dev python3-dev`)."
        )
    return compiler


@cache
def _problem(compiler: str, headers: str) -> str:
    """Return the compiler's problem in one line; empty if it has none."""
    command = [compiler, "-fsyntax-only", f"-I{headers}", "-x", "c", "-"]
    try:
        done = subprocess.run(command, input=_PROGRAM, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.decode(errors="replace").splitlines() or [f"exit code {done.returncode}"]
    return "" if done.returncode == 0 else next((line for line in lines if "error" in line), lines[0]).strip(" .")
