"""`quire warm [MODEL]`: fills the caches of compiled kernels, so that no later start compiles any."""

from __future__ import annotations

import argparse
import re
import time
from importlib.util import find_spec

from app.checkpoint.inspection import inspect_headers
from app.checkpoint.model_files import ModelFiles
from app.checkpoint.names import resolve
from app.commands.options import Parser, add_settings, read_config
from app.config.devices import CPU, CUDA, INSTALL_TRITON, MIN_CAPABILITY
from app.config.settings import Config, settings
from app.contract.errors import CannotStart, ConfigurationError
from app.runtime.torch_needs import load_torch

SETTINGS = {
    "model", "dtype", "deterministic", "max_model_len", "block_size", "kv_cache_dtype", "swap_space",
    "max_num_seqs", "max_num_batched_tokens", "speculative_ngram",
}  # fmt: skip
"""The settings that decide which kernels there are."""
PROCESSORS = {
    (8, 0): (56, 108),  # A30, A100
    (8, 6): (72, 82, 84),  # A10, RTX 3090, A40
    (8, 9): (58, 128, 142),  # L4, RTX 4090, L40S
    (9, 0): (114, 132),  # H100 PCIe; H100, H200
    (10, 0): (148,),  # B200
    (12, 0): (170, 188),  # RTX 5090, RTX PRO 6000
}
"""Multiprocessors of GPUs by compute capability: some kernels are made for their number."""
_CAPABILITY = re.compile(r"(\d+)\.(\d)")


def add_options(parser: Parser) -> None:
    """Add the model, the GPU, and the settings that change kernels."""
    parser.usage = "quire warm [MODEL] [OPTIONS]"
    parser.add_argument("served", nargs="?", metavar="MODEL", help="Same as --model; config.json is enough.")
    parser.add_argument(
        "--capability",
        metavar="X.Y",
        help="Compute capability of the GPU to compile for, for example 9.0 for H100 and H200. By default that of this "
        "machine's GPU. No GPU is needed.",
    )
    parser.add_argument(
        "--processors",
        metavar="N",
        type=int,
        help="Number of multiprocessors of that GPU; by default those of all well-known GPUs of its capability.",
    )
    others = {item.name for item in settings()} - SETTINGS
    add_settings(parser, "model", "cache", "scheduler", without=others)


def run(args: argparse.Namespace) -> int:
    """Compile what is not in the caches; say what, for how long, and where it is."""
    load_torch()
    capability, processors = _target(args)
    args.device = CPU if capability is None else CUDA
    config = read_config(args, model=args.served)
    _warm_cpu()
    if capability is None:
        print("GPU kernels: left out, torch finds no GPU; --capability 9.0 compiles for H100 and H200")
    else:
        path = resolve(config.model.model, config.model.revision)
        _warm_gpu(config, inspect_headers(config.model, path), capability, processors)
    return 0


def _target(args: argparse.Namespace) -> tuple[tuple[int, int] | None, tuple[int, ...]]:
    """Return the compute capability, None without a GPU, and the numbers of processors.

    Raises:
        ConfigurationError: they are unknown, or the kernels do not support the GPU.
    """
    if args.processors is not None and args.processors < 1:
        raise ConfigurationError(f"--processors is {args.processors}; it must be at least 1.", param="processors")
    given = () if args.processors is None else (args.processors,)
    if args.capability is None:
        return _found(given)
    match = _CAPABILITY.fullmatch(args.capability)
    if match is None:
        raise ConfigurationError(
            f"--capability is {args.capability!r}; it must be a compute capability such as 9.0.", param="capability"
        )
    capability = (int(match[1]), int(match[2]))
    if capability < MIN_CAPABILITY:
        raise ConfigurationError(
            f"--capability is {args.capability}; the kernels need 8.0 (Ampere) or more.", param="capability"
        )
    if not given and capability not in PROCESSORS:
        known = ", ".join("{}.{}".format(*known) for known in PROCESSORS)
        raise ConfigurationError(
            f"--capability {args.capability} needs --processors, the number of the GPU's multiprocessors; they are "
            f"known for {known}.",
            param="capability",
        )
    return capability, given or PROCESSORS[capability]


def _found(given: tuple[int, ...]) -> tuple[tuple[int, int] | None, tuple[int, ...]]:
    import torch

    if not torch.cuda.is_available():
        return None, ()
    properties = torch.cuda.get_device_properties(0)
    return (properties.major, properties.minor), given or (properties.multi_processor_count,)


def _warm_cpu() -> None:
    """Compile the CPU kernels for this machine."""
    from app.kernels.cpu.compiling import CannotCompile, supported_sets
    from app.kernels.cpu.library import existing_file, library_file

    name = next(iter(supported_sets()), None)
    if name is None:
        print("CPU kernels: none; they need Linux on x86-64 with AVX2")
        return
    begin = time.perf_counter()
    try:
        was_there = existing_file(name) is not None
        file = library_file(name)
    except CannotCompile as error:
        print(f"CPU kernels: none, the slower torch path will be used: {error}")
        return
    print(f"CPU kernels for {name}: {_done(was_there, begin)}\n  {file}", flush=True)


def _warm_gpu(config: Config, files: ModelFiles, capability: tuple[int, int], processors: tuple[int, ...]) -> None:
    """Compile the kernels of a model.

    Raises:
        CannotStart: Triton or a C compiler is missing, or kernels do not compile.
        ConfigurationError: the GPU does not support a setting.
    """
    if find_spec("triton") is None:
        raise CannotStart(f"Triton, which compiles the GPU kernels, is missing: {INSTALL_TRITON}.")
    from app.engine.execute.gpu.backend import GpuBackend
    from app.engine.execute.gpu.dry_run import DryDevice
    from app.engine.execute.gpu.precompilation import Precompilation
    from app.kernels.triton.specializations import cache_folder

    begin = time.perf_counter()
    GpuBackend(config, files.spec, DryDevice(capability, processors[0]))  # rejects what the GPU does not support
    compilation = Precompilation(config, files, capability, processors)
    was_there = compilation.is_done
    compilation.start()
    problems = compilation.wait()
    if problems:
        raise CannotStart(f"{len(problems)} of {compilation.num_kernels} GPU kernels failed: {problems[0]}")
    count = "" if was_there else f"{compilation.num_kernels}, by {compilation.num_workers} processes, "
    name = "{}.{}".format(*capability)
    print(f"GPU kernels for compute capability {name}: {count}{_done(was_there, begin)}")
    print(f"  {cache_folder()} (TRITON_CACHE_DIR)")


def _done(was_there: bool, begin: float) -> str:
    return "were there" if was_there else f"in {time.perf_counter() - begin:.1f} s"
