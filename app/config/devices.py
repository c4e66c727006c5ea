"""Selects the device that the model runs on, without loading torch: the defaults of other settings depend on it."""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path

from app.contract.errors import CannotStart

CPU, CUDA = "cpu", "cuda"
_LIBCUDA = "libcuda.so.1"
MIN_CAPABILITY = (8, 0)
"""The lowest compute capability of a GPU that the kernels run on."""
INSTALL_TRITON = (
    "install Quire with its extra `gpu`: `pip install '.[gpu]'` in the checkout, or a wheel file's name and [gpu]"
)
"""Advice where torch has CUDA and Triton is missing."""
NO_ROCM = (
    "this torch is built for AMD GPUs (ROCm), and Quire's kernels are for NVIDIA GPUs; install torch's build for CUDA "
    "on a machine with an NVIDIA GPU, or use --device cpu"
)
"""Advice where torch would call an AMD GPU `cuda` too."""
NO_EXPERTS = "mixtures of experts run on a CPU only; use --device cpu"
"""Advice where a model with experts is to run on a GPU."""
MIN_FP8_CAPABILITY = (8, 9)
"""The lowest compute capability with 8-bit floating-point numbers."""
MIN_DEPENDENT_CAPABILITY = (9, 0)
"""The lowest compute capability with programmatic dependent launch."""
MIN_DEPENDENT_DRIVER = 12030
"""The oldest driver, by the CUDA version that it was made for (12.3), whose graphs keep dependent launches."""
CAPABILITIES = {
    "T4": (7, 5),
    "A10": (8, 6),
    "L4": (8, 9),
    "RTX4090": (8, 9),
    "RTX5090": (12, 0),
    "A100-40GB": (8, 0),
    "L40S": (8, 9),
    "H100": (9, 0),
    "A100-80GB": (8, 0),
    "H200": (9, 0),
    "B200": (10, 0),
}
"""Compute capabilities of NVIDIA GPUs by name, for machines without one."""


def resolve_device(wanted: str, root: Path = Path("/")) -> str:
    """Return `cpu` or `cuda`: `wanted`, or for `auto` a GPU if there is one that torch can use."""
    if wanted != "auto":
        return wanted
    return CUDA if has_nvidia_driver(root) and _shows_a_gpu() and _torch_has("libtorch_cuda.so") else CPU


def check_wanted_gpu(wanted: str, root: Path = Path("/")) -> None:
    """Check that `--device cuda` can be meant on this machine, as far as files tell: torch loads for seconds.

    Raises:
        CannotStart: there is no GPU that torch could find.
    """
    reason = missing_gpu(root) if wanted == CUDA else ""
    if reason:
        raise CannotStart(f"--device cuda is set, but {reason}; use --device cpu, or run `quire doctor` for details.")


def missing_gpu(root: Path = Path("/")) -> str:
    """Return why torch will find no GPU; empty if it may find one. The engine has its own words for AMD's torch."""
    if _torch_has("libtorch_hip.so"):
        return ""
    if not has_nvidia_driver(root):
        return "this machine has no driver of an NVIDIA GPU"
    if not _shows_a_gpu():
        return f"CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']!r}, which hides all GPUs"
    return "" if _torch_has("libtorch_cuda.so") else "this torch is built without CUDA"


def describe_capability(capability: tuple[int, int]) -> str:
    """Return a compute capability and what it allows."""
    allowed = "bfloat16, FP8 KV cache" if capability >= MIN_FP8_CAPABILITY else "bfloat16, no FP8 KV cache"
    if capability < MIN_CAPABILITY:
        allowed = "too old for the kernels"
    return "compute capability {}.{}".format(*capability) + f" ({allowed})"


def gpu_rejection(capability: tuple[int, int], kv_cache_dtype: str) -> str:
    """Return why a GPU of this compute capability cannot be used with this setting; empty if it can."""
    has = "{}.{}".format(*capability)
    if capability < MIN_CAPABILITY:
        return f"the kernels need compute capability 8.0 (Ampere) or higher, and this GPU has {has}"
    if kv_cache_dtype == "fp8" and capability < MIN_FP8_CAPABILITY:
        return f"--kv-cache-dtype fp8 needs compute capability 8.9 or higher, and this GPU has {has}"
    return ""


def has_nvidia_driver(root: Path = Path("/")) -> bool:
    """Return whether the driver of an NVIDIA GPU is installed. Some containers show its library alone."""
    if (root / "proc/driver/nvidia/version").exists() or (root / "dev/nvidiactl").exists():
        return True
    return root == Path("/") and _loads_driver()


def driver_version() -> int:
    """Return the CUDA version that the NVIDIA driver was made for, as 12030 for 12.3; 0 without a driver."""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL(_LIBCUDA).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value


def _loads_driver() -> bool:
    try:
        ctypes.CDLL(_LIBCUDA)
    except OSError:
        return False
    return True


def _shows_a_gpu() -> bool:
    """Return whether the environment leaves at least one GPU visible."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return shown is None or shown.strip() not in ("", "-1")


def _torch_has(library: str) -> bool:
    """Return whether the installed torch was built with a library, as that for GPUs."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    return (Path(spec.origin).parent / "lib" / library).exists()
