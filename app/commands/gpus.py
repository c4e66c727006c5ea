"""Memory of well-known GPUs."""

from __future__ import annotations

from app.config.setting import MIB
from app.config.settings import nearest
from app.contract.errors import ConfigurationError

GPUS = {
    "T4": 15360 * MIB,
    "A10": 23028 * MIB,
    "L4": 23034 * MIB,
    "RTX4090": 24564 * MIB,
    "RTX5090": 32607 * MIB,
    "A100-40GB": 40960 * MIB,
    "L40S": 46068 * MIB,
    "H100": 81559 * MIB,
    "A100-80GB": 81920 * MIB,
    "H200": 143771 * MIB,
    "B200": 183359 * MIB,
    "MI300X": 196592 * MIB,
}
"""Bytes by name, smallest first: the totals of `nvidia-smi` and `rocm-smi`, which differ from the nominal sizes."""


def find_gpu(name: str) -> tuple[str, int]:
    """Return a GPU's name and memory; case, spaces and a leading RTX are ignored.

    Raises:
        ConfigurationError: the GPU is unknown; the message has a suggestion.
    """
    wanted = _plain(name)
    for known, memory in GPUS.items():
        if wanted == _plain(known):
            return known, memory
    raise ConfigurationError(
        f"--gpu is {name!r}{nearest(name.upper(), GPUS)}; it must be one of {', '.join(GPUS)}. "
        "For other GPUs use --gpu-memory SIZE.",
        param="gpu",
    )


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum()).removeprefix("rtx")
