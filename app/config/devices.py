"""Selects the device that the model runs on, without loading torch: the defaults of other settings depend on it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

CPU, CUDA = "cpu", "cuda"
MIN_CAPABILITY = (8, 0)
"""The lowest compute capability of a GPU that the kernels run on."""
INSTALL_TRITON = (
    "install Quire with its extra `gpu`: `pip install '.[gpu]'` in the checkout, or a wheel file's name and [gpu]"
)
"""Advice where torch has CUDA and Triton is missing."""
MIN_FP8_CAPABILITY = (8, 9)
"""The lowest compute capability with 8-bit floating-point numbers."""


def resolve_device(wanted: str, root: Path = Path("/")) -> str:
    """Return `cpu` or `cuda`: `wanted`, or for `auto` a GPU if there is one that torch can use."""
    if wanted != "auto":
        return wanted
    return CUDA if has_nvidia_driver(root) and _shows_a_gpu() and _torch_has_cuda() else CPU


def has_nvidia_driver(root: Path = Path("/")) -> bool:
    """Whether the driver of an NVIDIA GPU is installed."""
    return (root / "proc/driver/nvidia/version").exists() or (root / "dev/nvidiactl").exists()


def _shows_a_gpu() -> bool:
    """Whether the environment leaves at least one GPU visible."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return shown is None or shown.strip() not in ("", "-1")


def _torch_has_cuda() -> bool:
    """Whether the installed torch was built for GPUs."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    return (Path(spec.origin).parent / "lib" / "libtorch_cuda.so").exists()
