"""`quire plan [MODEL]`: the memory that a model needs, how many sequences fit in the rest, and the speed at best."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial

from app.checkpoint.expert_sizes import active_parameters
from app.checkpoint.hub.fitting_quant import FittingQuant, fitting_quant, known_files
from app.checkpoint.hub.hub_cache import HubName
from app.checkpoint.hub.repo_files import RepoFile
from app.checkpoint.model_files import GGUF, ModelFiles
from app.checkpoint.names import hub_name, resolve, served_name
from app.checkpoint.sizes import item_bytes, kv_item_bytes, kv_scale_bytes
from app.checkpoint.spec import ModelSpec
from app.commands.best_speed import BestSpeed, best_speed
from app.commands.budget import (
    PROCESS_BYTES,
    Budget,
    Memory,
    active_weight_bytes,
    context,
    gpu,
    grammar_process_bytes,
    has_kernels,
    known_gpu,
    make_budget,
    stored_tokens,
    weights_by_kind,
)
from app.commands.options import Parser, add_settings, read_config
from app.commands.plan_page import Beside, page
from app.config.devices import CPU, CUDA
from app.config.setting import Setting
from app.config.settings import Config, settings
from app.contract.errors import ConfigurationError, QuireError
from app.engine.execute.memory_plan import free_memory
from app.observe.console import Console
from app.observe.terminal import own_terminal
from app.text.entry.opened_model import check_headers

SETTINGS = {
    "model", "dtype", "quantization", "enforce_eager", "max_model_len", "kv_cache_dtype", "block_size",
    "num_kv_blocks", "kv_cache_memory", "gpu_memory_utilization", "swap_space",
    "max_num_seqs", "max_num_batched_tokens", "chat_template", "kv_disk_space",
}  # fmt: skip
"""The settings that change the plan, or whether the model can be served."""

LENGTHS = tuple(512 * 4**step for step in range(12))
_RAM = Setting("plan", "ram", None, "Plan for this much free RAM instead of this machine's.", "bytes", minimum=1)
_GPU_MEMORY = Setting("plan", "gpu_memory", None, "Plan for a GPU with this much memory.", "bytes", minimum=1)
_LENGTH = Setting("plan", "length", None, "Also show how many sequences of N tokens fit.", "integer", minimum=1)


def add_options(parser: Parser) -> None:
    """Add the model, the memory, and the settings that change the plan."""
    parser.usage = "quire plan [MODEL] [OPTIONS]"
    parser.add_argument("served", nargs="?", metavar="MODEL", help="Same as --model; a folder may lack the weights.")
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument("--gpu", metavar="NAME", help="Plan for a GPU, for example H200, H100, L40S, L4, T4 or MI300X.")
    memory.add_argument(_GPU_MEMORY.option, metavar="SIZE", help=_GPU_MEMORY.help)
    memory.add_argument(_RAM.option, metavar="SIZE", help=_RAM.help)
    parser.add_argument(_LENGTH.option, metavar="N", help=_LENGTH.help)
    parser.add_argument("--json", action="store_true", help="Print the plan as JSON.")
    others = {item.name for item in settings()} - SETTINGS
    add_settings(parser, "model", "cache", "scheduler", "server", without=others)


def run(args: argparse.Namespace) -> int:
    """Print the plan. The exit code is 0 also for a model that does not fit, but not for one that is refused."""
    args.device = CUDA if args.gpu is not None or args.gpu_memory is not None else CPU
    config = read_config(args, model=args.served)
    memory = _memory(args, config)
    files = _read_model(config)
    spec = files.spec
    lengths = _lengths(args, context(config, spec))
    budget = make_budget(config, spec, memory, files.stored_type)
    beside = Beside(files.summary, _speed(config, spec, budget), _fitting_quant(config, files, budget))
    if args.json:
        print(json.dumps(figures(config, spec, budget, lengths) | _figures_beside(beside), indent=2))
        return 0
    print("\n".join(page(own_terminal(), config, spec, budget, lengths, beside)))
    return 0


def _speed(config: Config, spec: ModelSpec, budget: Budget) -> BestSpeed | None:
    """Return the best speed if the plan is for this machine."""
    if not budget.memory.is_here:
        return None
    return best_speed(active_weight_bytes(config, spec, budget.stored_type))


def _fitting_quant(config: Config, files: ModelFiles, budget: Budget) -> FittingQuant | None:
    """Return the quant that would fit instead of a GGUF model that does not."""
    if files.format != GGUF or not budget.missing_bytes or budget.memory.is_gpu or not has_kernels(config):
        return None
    name = hub_name(config.model.model)
    listed = [] if name is None else _listed(name, config.model.revision)
    return fitting_quant(files.spec.num_parameters(), budget.weight_bytes - budget.missing_bytes, name, listed)


def _listed(name: HubName, revision: str | None) -> list[RepoFile]:
    """Return the files of a repository: those that the hub lists, or those that were listed before."""
    from app.checkpoint.hub.hub_listing import list_files  # only hub names need what it imports

    try:
        return list_files(name, revision).files
    except QuireError:
        return known_files(name, revision)


def _read_model(config: Config) -> ModelFiles:
    """Inspect the model; of a hub's model that is not on this machine, only what says its shape is downloaded.

    Raises:
        ModelRefused: the model cannot be served.
        CannotStart: the hub cannot be reached.
    """
    model, revision = config.model.model, config.model.revision
    name = hub_name(model)
    if name is None:
        return check_headers(config.model, resolve(model, revision))
    from app.checkpoint.hub import hub_headers  # only hub names need what it imports
    from app.checkpoint.hub.hub_listing import list_files

    if (path := hub_headers.find_downloaded(name, revision)) is not None:
        return check_headers(config.model, path)
    files = hub_headers.check_headers(name, list_files(name, revision), partial(check_headers, config.model))
    unchecked = "" if files.tensors is not None else ", and its tokenizer and chat template are not checked"
    text = f"{name} is not on this machine; its weights are not downloaded for a plan{unchecked}."
    Console(sys.stderr).print_line(text)
    return files


def _figures_beside(beside: Beside) -> dict[str, object]:
    speed, quant = beside.speed, beside.quant
    return {
        "files": beside.stored,
        "read_bytes_per_second": speed and round(speed.bytes_per_second),
        "max_tokens_per_second": speed and speed.tokens_per_second,
        "fitting_quant": quant and {"name": quant.name, "bytes": quant.num_bytes, "listed": quant.is_listed},
    }


def figures(config: Config, spec: ModelSpec, budget: Budget, lengths: list[int]) -> dict[str, object]:
    """Return the plan's numbers; sizes in bytes."""
    capability, experts = budget.memory.capability, spec.experts
    return {
        "model": served_name(config.model),
        "architecture": spec.architecture,
        "dtype": spec.dtype,
        "max_model_len": context(config, spec),
        "memory": {"name": budget.memory.name, "is_gpu": budget.memory.is_gpu, "bytes": budget.memory.num_bytes},
        "compute_capability": None if capability is None else "{}.{}".format(*capability),
        "refusal": budget.memory.rejection or None,
        "fits": budget.fits,
        "missing_bytes": budget.missing_bytes,
        "too_small": budget.too_small or None,
        "parameters": weights_by_kind(spec),
        "bytes_per_parameter": item_bytes(spec),
        "quantization": config.model.quantization,
        "weight_bytes_by_kind": budget.weight_bytes_by_kind,
        "weight_bytes": budget.weight_bytes,
        "experts": experts and {"total": experts.count, "per_token": experts.per_token},
        "active_parameters": active_parameters(spec),
        "active_bytes": active_weight_bytes(config, spec, budget.stored_type),
        "activation_bytes": budget.activation_bytes,
        "process_bytes": budget.memory.process_bytes,
        "grammar_process_bytes": grammar_process_bytes(spec.vocab_size),
        "reserved_bytes": budget.memory.reserved_bytes,
        "kv_cache_bytes": budget.cache_bytes,
        "swap_space_bytes": budget.host_cache_bytes,
        "kv_disk_tokens": 0 if budget.memory.is_gpu else stored_tokens(config, budget.block),
        "kv_bytes_per_token": budget.block.bytes_per_token,
        "kv_formula": {
            "keys_and_values": 2,
            "layers": spec.num_layers,
            "kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "bytes": kv_item_bytes(spec, config.cache.kv_cache_dtype),
            "scale_bytes": kv_scale_bytes(config.cache.kv_cache_dtype),
        },
        "windows": [layer.window for layer in spec.layers],
        "block_size": budget.block.block_size,
        "num_blocks": budget.num_blocks,
        "capacity_tokens": budget.capacity_tokens,
        "max_num_seqs": config.scheduler.max_num_seqs,
        "sequences": [{"length": length, "fit": budget.num_sequences(length)} for length in lengths],
    }


def _memory(args: argparse.Namespace, config: Config) -> Memory:
    if args.gpu is not None:
        return known_gpu(config, args.gpu)
    if args.gpu_memory is not None:
        return gpu(config, "one GPU", _checked(_GPU_MEMORY, args.gpu_memory))
    if args.ram is not None:
        return Memory("free RAM", _checked(_RAM, args.ram), is_gpu=False, process_bytes=PROCESS_BYTES)
    name, num_bytes = "free RAM of this machine", free_memory()
    return Memory(name, num_bytes, is_gpu=False, is_here=True, process_bytes=PROCESS_BYTES)


def _lengths(args: argparse.Namespace, longest: int) -> list[int]:
    """List the lengths of the table: 512 times powers of 4 below the context, the context, and `--length`."""
    lengths = {length for length in LENGTHS if length < longest} | {longest}
    if args.length is not None:
        length = _checked(_LENGTH, args.length)
        if length > longest:
            raise ConfigurationError(f"--length is {length}; the context has only {longest} tokens.", param="length")
        lengths.add(length)
    return sorted(lengths)


def _checked(item: Setting, text: str) -> int:
    value = item.check(item.parse(text), item.option)
    assert isinstance(value, int)
    return value
