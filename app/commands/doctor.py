"""`quire doctor`: checks whether this machine can run a server with the given settings."""

from __future__ import annotations

import argparse
import platform
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from app.checkpoint.inspection import inspect
from app.checkpoint.model_files import ModelFiles
from app.commands.options import Parser, add_settings, read_config
from app.config.devices import (
    CUDA,
    INSTALL_TRITON,
    MIN_CAPABILITY,
    NO_ROCM,
    describe_capability,
    gpu_rejection,
    has_nvidia_driver,
    missing_gpu,
    resolve_device,
)
from app.config.setting import GIB, MIB
from app.config.settings import Config
from app.contract.errors import CannotStart, QuireError
from app.runtime.lazy_property import lazy_property
from app.runtime.torch_needs import load_torch

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
MIN_DISK_BYTES = GIB
MIN_OPEN_FILES = 1024


class Mark(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


class Finding(NamedTuple):
    """One line of the table."""

    name: str
    mark: Mark
    text: str


class Subject:
    """The subject of the checks: settings, and the files of their model, which the first who asks has inspected."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def files(self) -> ModelFiles:
        """The inspected files of the model.

        Raises:
            QuireError: it cannot be served, or not be downloaded.
        """
        if isinstance(self._inspected, QuireError):
            raise self._inspected
        return self._inspected

    @lazy_property
    def _inspected(self) -> ModelFiles | QuireError:
        try:
            return inspect(self.config.model)
        except QuireError as error:
            return error


def add_options(parser: Parser) -> None:
    """Add the model and the settings of the server to check for."""
    parser.usage = "quire doctor [MODEL] [OPTIONS]"
    parser.add_argument("served", nargs="?", metavar="MODEL", help="Same as --model.")
    add_settings(parser, "model", "sampling", "cache", "scheduler", "server")


def run(args: argparse.Namespace) -> int:
    """Print one line per check; return 1 if a check failed."""
    load_torch()
    config = read_config(args, model=args.served)
    marks = set()
    for finding in findings(config):
        marks.add(finding.mark)
        print(f"{finding.mark:<5} {finding.name:<8} {finding.text}", flush=True)
    return int(Mark.FAIL in marks)


def findings(config: Config) -> Iterator[Finding]:
    """Run every check, also after one has failed."""
    subject = Subject(config)
    server, said = config.server, None
    kept = [*([_journal] if server.journal else []), *([_kv_disk] if server.kv_disk else [])]
    for check in (_python, _cpu, _torch, _kernels, _gpu, _model, _memory, _disk, *kept, _files, _port):
        name = check.__name__.removeprefix("_")
        try:
            yield Finding(name, *check(subject))
        except QuireError as error:
            is_told = error is said
            said = error
            yield Finding(name, Mark.FAIL, "as for the model" if is_told else error.message)


def _python(subject: Subject) -> tuple[Mark, str]:
    tested = platform.system() == "Linux" and platform.machine() == "x86_64"
    where = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return (Mark.OK, where) if tested else (Mark.WARN, f"{where}; Quire is tested on Linux x86_64 only")


def _cpu(subject: Subject) -> tuple[Mark, str]:
    from app.commands.measuring.machine import cpu_features, cpu_name
    from app.runtime.cores import num_cores

    features = cpu_features()
    found = [name for name in FEATURES if name in features]
    text = f"{cpu_name()}, {num_cores()} cores, {' '.join(found) or 'no vector features known'}"
    return (Mark.OK, text) if "avx2" in found else (Mark.WARN, f"{text}; without AVX2 inference is slow")


def _torch(subject: Subject) -> tuple[Mark, str]:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Mark.FAIL, f"cannot be imported ({error}); run `make setup`"
    return Mark.OK, f"{torch.__version__}, {torch.get_num_threads()} threads"


def _kernels(subject: Subject) -> tuple[Mark, str]:
    from app.kernels.cpu.compiling import CannotCompile, find_compiler, supported_sets
    from app.kernels.cpu.library import NativeLibrary, existing_file

    if subject.config.model.enforce_eager:
        return Mark.OK, "not used: --enforce-eager"
    name = next(iter(supported_sets()), None)
    if name is None:
        return Mark.WARN, "none, the slower torch path is used; native kernels need Linux on x86-64 with AVX2"
    try:
        file = existing_file(name)
        if file is None:
            return Mark.OK, f"{name}, compiled once with {find_compiler()} at the first start"
    except CannotCompile as error:
        return Mark.WARN, f"none, the slower torch path is used: {error}"
    try:
        NativeLibrary(file, name)
    except (OSError, AttributeError) as error:
        return Mark.WARN, f"{name} cannot be loaded, a slower path is used: {error}; remove the file {file}"
    return Mark.OK, f"{name}, from {file}"


def _gpu(subject: Subject) -> tuple[Mark, str]:
    config = subject.config
    try:
        import torch
    except (ImportError, OSError):
        return Mark.WARN, "unknown without torch"
    if torch.version.hip is not None:
        return (Mark.FAIL if config.model.device == CUDA else Mark.WARN), NO_ROCM
    if not torch.cuda.is_available():
        if config.model.device == CUDA:
            return Mark.FAIL, f"--device cuda is set, but {missing_gpu() or 'torch finds no GPU'}"
        has_driver = has_nvidia_driver()
        text = "an NVIDIA driver is installed, but torch finds no GPU" if has_driver else "none"
        return (Mark.WARN if has_driver else Mark.OK), f"{text}; the model runs on the CPU"
    properties = torch.cuda.get_device_properties(0)
    capability = (properties.major, properties.minor)
    text = f"{properties.name}, {properties.total_memory / GIB:.0f} GiB, {describe_capability(capability)}"
    if resolve_device(config.model.device) != CUDA:
        return Mark.OK, f"{text}, not used: --device {config.model.device}"
    if find_spec("triton") is None:
        return Mark.FAIL, f"{text}, but Triton is missing: {INSTALL_TRITON}"
    if capability < MIN_CAPABILITY:
        return Mark.WARN, f"{text}; the kernels need 8.0 or higher, the model runs on the CPU"
    if rejection := gpu_rejection(capability, config.cache.kv_cache_dtype):
        return Mark.FAIL, f"{text}; {rejection}"
    return _launchers(subject, text, capability, properties.multi_processor_count)


def _launchers(subject: Subject, text: str, capability: tuple[int, int], num_processors: int) -> tuple[Mark, str]:
    """Check that kernels can be started: by a C compiler, or because all is in Triton's cache."""
    from app.kernels.triton.c_compiler import check_c_compiler

    try:
        return Mark.OK, f"{text}, kernels compiled with {check_c_compiler()}"
    except CannotStart as error:
        from app.engine.execute.gpu.precompilation import Precompilation  # loads Triton

        if Precompilation(subject.config, subject.files, capability, [num_processors]).is_done:
            return Mark.OK, f"{text}, all kernels compiled"
        if subject.config.model.device == CUDA:
            return Mark.FAIL, f"{text}; {error.message}"
        return Mark.WARN, f"{text}, not used, the model runs on the CPU: {error.message}"


def _model(subject: Subject) -> tuple[Mark, str]:
    from app.engine.prefix_file import read_prefixes
    from app.text.entry.opened_model import OpenedModel

    settings, files = subject.config.model, subject.files
    read_prefixes(subject.config.cache, OpenedModel.of(settings, files).text)
    spec = files.spec
    size = f"{spec.num_parameters() / 1e6:,.0f} M weights, {spec.dtype} ({files.summary})"
    return Mark.OK, f"{settings.model}: {spec.architecture}, {size}, context {spec.max_position:,} tokens"


def _memory(subject: Subject) -> tuple[Mark, str]:
    from app.checkpoint.hub.fitting_quant import quant_adviser
    from app.checkpoint.sizes import decoded, kv_bytes_per_token
    from app.commands.budget import KVBlock, has_kernels, host_activations, weight_bytes_by_kind
    from app.engine.execute.memory_plan import check_activations, check_weights, free_memory, plan_num_blocks

    config, files = subject.config, subject.files
    spec = files.spec
    is_gpu = resolve_device(config.model.device) == CUDA
    stored_type = decoded if is_gpu else files.stored_type
    weights = sum(weight_bytes_by_kind(config, spec, stored_type).values())
    if is_gpu:
        return Mark.OK, f"weights {weights / MIB:,.0f} MiB; the server prints the uses of the GPU's memory at startup"
    layout = KVBlock(config.cache.block_size, kv_bytes_per_token(spec, config.cache.kv_cache_dtype))
    free = free_memory()
    max_model_len = config.model.max_model_len or spec.max_position
    advise = quant_adviser(config.model, files, keeps_types=has_kernels(config))
    activations = host_activations(config, spec, stored_type)
    try:
        check_weights(weights, free, advise)
        check_activations(activations, weights, free, config.scheduler.max_num_batched_tokens)
        num_blocks = plan_num_blocks(config, layout, max_model_len, free - weights - activations)
    except CannotStart as error:
        return Mark.FAIL, error.message
    cache = num_blocks * layout.bytes_per_block
    tokens = num_blocks * layout.block_size
    text = (
        f"{free / GIB:.1f} GiB free; weights {weights / MIB:,.0f} MiB, "
        f"KV cache {cache / MIB:,.0f} MiB ({tokens:,} tokens)"
    )
    if tokens < max_model_len:
        return Mark.WARN, f"{text}; this is less than the context of {max_model_len:,} tokens"
    return Mark.OK, text


def _disk(subject: Subject) -> tuple[Mark, str]:
    free = shutil.disk_usage(Path.home()).free
    text = f"{free / GIB:.1f} GiB free in {Path.home()}"
    return (Mark.OK, text) if free >= MIN_DISK_BYTES else (Mark.WARN, f"{text}; models from the hub need more")


def _journal(subject: Subject) -> tuple[Mark, str]:
    from app.journal.journal_file import check
    from app.server.run import state_path

    path = state_path("journal", subject.config.server.journal or "")
    try:
        check(path)
    except sqlite3.DatabaseError:
        return Mark.WARN, f"{path} is damaged; a server moves it aside and begins a new one"
    return Mark.OK, f"{path} can be used"


def _kv_disk(subject: Subject) -> tuple[Mark, str]:
    from app.engine.kv_disk.block_folder import check_folder
    from app.server.run import state_path

    path = state_path("kv_disk", subject.config.server.kv_disk or "")
    check_folder(path)
    return Mark.OK, f"{path} can be used"


def _files(subject: Subject) -> tuple[Mark, str]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{hard} open files allowed, one per connection"
    is_enough = hard == resource.RLIM_INFINITY or hard >= MIN_OPEN_FILES
    return (Mark.OK, text) if is_enough else (Mark.WARN, f"{text}; raise it with ulimit -Hn")


def _port(subject: Subject) -> tuple[Mark, str]:
    from app.server.sockets import listen

    server = subject.config.server
    listen(server.host, server.port).close()
    return Mark.OK, f"{server.port} on {server.host} is free"
