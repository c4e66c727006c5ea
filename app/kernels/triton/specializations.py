"""Notes which kernels some work launches, in which specializations, and compiles them without launching anything.

Triton compiles a kernel anew for every combination of types, constants and alignments that a launch brings. Work over
meta tensors brings the same combinations as in a step, so what is compiled here lies in Triton's cache under the very
names that a launch on the device asks for.
"""

from __future__ import annotations

import ctypes
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from app.kernels.triton.c_compiler import check_c_compiler

# Of shared memory, KiB that a program can have, by compute capability (CUDA's programming guide).
SHARED_KIB = {
    (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227, (10, 3): 227, (12, 0): 99, (12, 1): 99,
}  # fmt: skip
_DEVICE = 0
_LIBCUDA = "libcuda.so.1"


class CompileOnlyDriver:
    """Stands in for a GPU's driver, of a compute capability: what Triton asks it before it compiles."""

    def __init__(self, capability: tuple[int, int]) -> None:
        major, minor = capability
        self._target = GPUTarget("cuda", 10 * major + minor, 32)

    def get_current_device(self) -> int:
        """Return the only device."""
        return _DEVICE

    def get_current_stream(self, device: int) -> int:
        """Return any stream."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """Return the target to compile for."""
        return self._target


class Specializations(TorchDispatchMode):
    """While entered, no kernel is launched and torch computes nothing; `found` gets each new specialization by its key.

    Calling one compiles it, or finds it in Triton's cache. One thread of a process that has no other use for Triton.
    """

    def __init__(self, capability: tuple[int, int]) -> None:
        super().__init__()
        self.found: dict[str, Callable[[], Any]] = {}
        self._launch: Callable[..., Any] = JITFunction.run
        triton.runtime.driver.set_active(CompileOnlyDriver(capability))
        fix_cache_keys()

    def __enter__(self) -> Specializations:
        JITFunction.run = lambda kernel, *args, **kwargs: self._note(kernel, *args, **kwargs)
        super().__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        JITFunction.run = self._launch
        super().__exit__(*exception)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable and not func.is_view:
            return kwargs.get("out", args[0])
        return func(*args, **kwargs)

    def _note(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        binder = kernel.device_caches[_DEVICE][-1]
        _, specialization, options = binder(*args, **kwargs, debug=False, instrumentation_mode="")
        key = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__} {specialization} {options}"
        self.found.setdefault(key, partial(self._launch, kernel, *args, grid=grid, warmup=True, **kwargs))


def fix_cache_keys() -> None:
    """Compute the keys of all kernels in Triton's cache, in one order, before any kernel is launched or compiled.

    Triton's key of a kernel depends on which of the functions that it calls have had theirs computed, so two processes
    that begin with different kernels would look for the same one under two names.
    """
    below = pkgutil.walk_packages([str(Path(__file__).parent)], f"{__package__}.")
    for name in sorted(found.name for found in below):
        module = import_module(name)
        for value in vars(module).values():
            if isinstance(value, JITFunction) and value.__module__ == module.__name__:
                value.cache_key  # noqa: B018


def check_shared_memory(kernel: Any, capability: tuple[int, int]) -> None:
    """Check that a compiled kernel fits GPUs of a compute capability; of unknown ones nothing is said.

    Raises:
        OutOfResources: as launching it would.
    """
    taken, limit = kernel.metadata.shared, 1024 * SHARED_KIB.get(capability, 1 << 20)
    if taken > limit:
        raise OutOfResources(taken, limit, "shared memory")


def build_launcher(kernel: Any) -> None:
    """Compile the C code through which Python launches a compiled kernel, unless Triton's cache has it.

    Triton 3.6 has one for each signature, 3.7 one for all kernels.
    """
    from triton.backends.nvidia import driver

    sys.setdlopenflags(os.RTLD_LAZY)  # an empty driver lacks functions, which nobody calls here
    # Whatever is loaded has been put into the cache before.
    with suppress(ImportError):
        if not hasattr(driver.CudaUtils, "instance"):
            driver.CudaUtils()
    with suppress(ImportError):
        if hasattr(driver, "make_launcher") and not hasattr(driver, "make_kernel_signature"):
            driver.CudaLauncher(kernel.src, kernel.metadata)


def libcuda_environment(folder: Path) -> dict[str, str]:
    """Return the variables with which launchers can be compiled: without a GPU's driver, an empty one in `folder`.

    The launchers load the real driver where there is one.

    Raises:
        CannotStart: there is no C compiler.
    """
    compiler = check_c_compiler()
    try:
        ctypes.CDLL(_LIBCUDA)
        return {}
    except OSError:
        link = [compiler, "-shared", "-x", "c", os.devnull, f"-Wl,-soname,{_LIBCUDA}", "-o", str(folder / _LIBCUDA)]
        subprocess.run(link, check=True, capture_output=True)
        path = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {"TRITON_LIBCUDA_PATH": str(folder), "LD_LIBRARY_PATH": os.pathsep.join(path)}


def cache_folder() -> Path:
    """Return Triton's cache."""
    return Path(triton.knobs.cache.dir)


def compiler_version() -> str:
    """Return the versions that compiled kernels depend on."""
    return f"triton {triton.__version__}, torch {torch.__version__}, {sys.implementation.cache_tag}"
