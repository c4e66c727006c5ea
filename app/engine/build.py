"""Puts an engine together from a configuration: checks, weights, KV cache, scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import cast

import torch

from app.checkpoint.hub.fitting_quant import quant_adviser
from app.checkpoint.model_files import GGUF, ModelFiles
from app.checkpoint.names import served_name
from app.checkpoint.sizes import decoded, weight_bytes
from app.checkpoint.spec import ModelSpec
from app.config.chosen_defaults import SampledModel, sampling_defaults
from app.config.devices import CPU, resolve_device
from app.config.settings import Config, tenants
from app.config.step_target import step_target_s
from app.contract.engine_counts import MemoryCounts
from app.contract.engine_status import ModelInfo
from app.contract.errors import CannotStart
from app.contract.model_print import model_print
from app.contract.sampling_defaults import SamplingDefaults
from app.engine.brownout import Brownout
from app.engine.engine import Engine
from app.engine.execute.gpu.kv_calibration import ListingOps, calibrate, calibration_ids
from app.engine.execute.interfaces import Backend, Runner
from app.engine.execute.kv_cache import KVCache
from app.engine.execute.memory_plan import (
    check_activations,
    check_weights,
    free_memory,
    memory_line,
    memory_parts,
    memory_table,
    plan_num_blocks,
    plan_num_host_blocks,
)
from app.engine.execute.selection import select_backend
from app.engine.execute.worker_masks import WorkerMasks
from app.engine.kv_disk.disk_store import KVDisk, StoredCache
from app.engine.output_processor import OutputProcessor
from app.engine.phases import Phases
from app.engine.pinning import pin_prefixes
from app.engine.prefix_file import read_prefixes
from app.engine.recovery import is_out_of_memory
from app.engine.schedule.kv.prefix_cache import ChainContexts
from app.engine.schedule.limits import SchedulerLimits
from app.engine.schedule.policy import make_policy
from app.engine.schedule.scheduler import Scheduler
from app.engine.schedule.step_cost import StepCost
from app.kernels.cpu.library import prepare_library
from app.models.file_source import FileSource
from app.models.kv_scales import read_kv_scales
from app.models.loader import DummySource, load_weights
from app.models.weights import DecoderWeights, Packer
from app.runtime.start_timings import StartTimings
from app.text.entry.opened_model import OpenedModel
from app.text.grammar.cache import GrammarCache
from app.text.tokens.tokenizer import Tokenizer

_log = logging.getLogger("quire.engine")


def build_engine(
    config: Config,
    *,
    progress: Callable[[float], None] = lambda share: None,
    model: OpenedModel | None = None,
    grammars: GrammarCache | None = None,
    is_serving: bool = False,
    timings: StartTimings | None = None,
    kv_disk: KVDisk | None = None,
) -> Engine:
    """Load the configured model and return an engine over it; `progress` gets the loaded share, 0..1.

    The thread that calls this owns the engine. `model` is the configured one, where the caller has opened it already;
    `grammars` gets its vocabulary, and later gives the engine the grammars that requests lease. With `is_serving`
    clients wait for single answers (see Engine). `timings` get the seconds of each phase, `kv_disk` the prefix cache.

    Raises:
        ModelRefused: the model cannot be served.
        ConfigurationError: a prefix cannot be pinned.
        CannotStart: there is not enough memory.
    """
    timings, grammars = timings or StartTimings(), grammars or GrammarCache()
    model = model or OpenedModel.open(config.model)
    files, spec, tokenizer, eos_token_ids = model.files, model.spec, model.text.tokenizer, model.eos_token_ids
    try:
        if resolve_device(config.model.device) == CPU and not config.model.enforce_eager:
            prepare_library(lambda line: None, check=partial(progress, 0.0))
        backend = select_backend(config, files)
        timings.end("prepare_kernels")
        activations = _check_memory(config, files, backend)
        weights = _load(config, files, backend, tokenizer, progress)
        timings.end("load_weights")
        limits, runner, cache, memory, lines = _make_runner(
            config, spec, backend, weights, eos_token_ids, grammars, activations
        )
        timings.end("allocate_cache")
    except (MemoryError, RuntimeError) as error:  # torch reports a failed allocation as RuntimeError
        if not (is_out_of_memory(error) or "overflow" in str(error)):
            raise
        raise CannotStart(f"Not enough memory for {config.model.model}: {error}") from None
    model_info = replace(_model_info(config, model, limits, backend), memory=lines)
    contexts, cost = _contexts(config, model_info, backend, cache, kv_disk), _step_cost(spec, weights)
    scheduler = _make_scheduler(config, limits, runner, eos_token_ids, contexts, kv_disk, cache, cost)
    # Last, while a thread clears the first pages of the cache, for which it needs no interpreter.
    _load_grammars(grammars, tokenizer, spec, eos_token_ids)
    timings.end("read_vocabulary")
    engine = Engine(
        model_info,
        scheduler,
        runner,
        OutputProcessor(scheduler, tokenizer, eos_token_ids),
        grammars,
        brownout=Brownout() if is_serving else None,
        phases=Phases(scheduler.queues) if is_serving else None,
    )
    engine.memory = memory
    if config.cache.pin_prefix:
        pin_prefixes(engine, read_prefixes(config.cache, model.text), tenants(config.server), kv_disk)
        engine.model_info = replace(model_info, kv_capacity_tokens=scheduler.capacity * limits.block_size)
    return engine


def _check_memory(config: Config, files: ModelFiles, backend: Backend) -> int:
    """Refuse weights and activations that do not fit, before they are there; return the bytes of activations."""
    takes_stored = backend.packer.takes_stored and config.model.load_format != "dummy"
    stored_type = files.stored_type if takes_stored else decoded
    advise = quant_adviser(config.model, files, keeps_types=takes_stored)
    weights, free = weight_bytes(files.spec, backend.quantization, stored_type), backend.free_memory()
    check_weights(weights, free, advise)
    activations = backend.planned_activations(stored_type)
    check_activations(activations, weights, free, config.scheduler.max_num_batched_tokens)
    return activations


def _load(
    config: Config, files: ModelFiles, backend: Backend, tokenizer: Tokenizer, progress: Callable[[float], None]
) -> DecoderWeights:
    weights = _read(config, files, backend, progress)
    if config.cache.kv_cache_dtype == "fp8":
        _scale_kv(files, backend, weights, tokenizer)
    return weights


def _read(config: Config, files: ModelFiles, backend: Backend, progress: Callable[[float], None]) -> DecoderWeights:
    how = (progress, backend.packer, backend.allocate)
    if config.model.load_format == "dummy":
        return load_weights(files.spec, DummySource(config.model.seed, backend.device), *how)
    _log_decoding(config, files, backend.packer)
    with FileSource(files) as source:
        return load_weights(files.spec, source, *how)


def _log_decoding(config: Config, files: ModelFiles, packer: Packer) -> None:
    """Say what becomes of weights that are quantized in the files."""
    if files.quantization is None:
        return
    if config.model.quantization is not None:
        _log.warning(
            "The weights are quantized already (%s); quantizing them again to %s makes the answers worse.",
            files.summary,
            config.model.quantization,
        )
        return
    kept = [kind.name for kind in files.matrix_types if kind.is_grouped and packer.takes_stored]
    decoded = [kind.name for kind in files.matrix_types if kind.is_quantized and kind.name not in kept]
    if kept:
        _log.info("Weights of the type %s are used as the file stores them.", " or ".join(kept))
    if decoded:
        _log.info("Weights of the type %s are decoded to %s.", " or ".join(decoded), files.spec.dtype)


def _load_grammars(
    grammars: GrammarCache, tokenizer: Tokenizer, spec: ModelSpec, eos_token_ids: tuple[int, ...]
) -> None:
    """Take the vocabulary for grammars; a server's is read now: all threads wait, which no stream should notice."""
    if (reason := grammars.load(tokenizer, spec.vocab_size, eos_token_ids)) is not None:
        _log.warning("%s", reason)


def _scale_kv(files: ModelFiles, backend: Backend, weights: DecoderWeights, tokenizer: Tokenizer) -> None:
    """Fold the scales of an FP8 cache into the weights: the checkpoint's, else calibrated ones."""
    scales, spec = read_kv_scales(files), files.spec
    if scales is None:
        backend.finish_kernels()  # else this process would compile, one by one, what others compile already
        ops = cast(ListingOps, backend.ops)  # only a GPU has an FP8 cache
        scales = calibrate(spec, weights, ops, backend.device, calibration_ids(tokenizer, spec))
    scales.fold(weights, spec)


def _make_runner(
    config: Config,
    spec: ModelSpec,
    backend: Backend,
    weights: DecoderWeights,
    eos_token_ids: tuple[int, ...],
    grammars: GrammarCache,
    activations: int,
) -> tuple[SchedulerLimits, Runner, KVCache, MemoryCounts, tuple[str, ...]]:
    """Allocate activations, then the cache, which takes its share of the memory that is free then.

    `activations` are the planned bytes, of which the runner allocates some after the cache.
    Returns also the use of memory, of a GPU in lines, too; a CPU's is logged in one line.
    """
    scheduler = config.scheduler
    max_model_len = config.model.max_model_len or spec.max_position
    num_bytes = backend.prepare(max_model_len, eos_token_ids)
    cache = _make_cache(config, backend, max_model_len, max(0, activations - num_bytes))
    limits = SchedulerLimits(
        num_blocks=cache.num_blocks,
        block_size=config.cache.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=max_model_len,
        run_ahead=backend.run_ahead,
        num_host_blocks=cache.num_host_blocks,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        itl_target=step_target_s(scheduler),
        speculative_ngram=scheduler.speculative_ngram,
    )
    runner = backend.make_runner(weights, cache, limits, grammars)
    # On the host blocks take their memory when they are first used; until then the system reports it as free.
    untouched = cache.num_bytes if backend.is_on_host else 0
    memory = MemoryCounts(
        weights=weights.num_bytes,
        kv_cache=cache.num_blocks * cache.layout.bytes_per_block,
        activations=num_bytes + backend.activation_memory,
        graphs=backend.graph_memory,
        kv_host=cache.num_host_blocks * cache.layout.bytes_per_block,
    )
    free = max(0, backend.free_memory() - backend.graph_memory - untouched)
    parts = memory_parts(memory, num_tokens=cache.num_blocks * cache.layout.block_size, free=free)
    if backend.is_on_host:
        _log.info(memory_line(parts))
        return limits, runner, cache, memory, ()
    return limits, runner, cache, memory, tuple(memory_table(parts))


def _step_cost(spec: ModelSpec, weights: DecoderWeights) -> StepCost:
    if spec.experts is None:
        return StepCost()
    return StepCost(weights.expert_share, spec.experts.per_token / spec.experts.count)


def _make_scheduler(
    config: Config,
    limits: SchedulerLimits,
    runner: Runner,
    eos_token_ids: tuple[int, ...],
    contexts: ChainContexts,
    kv_disk: KVDisk | None,
    cache: KVCache,
    cost: StepCost,
) -> Scheduler:
    policy = make_policy(config.scheduler.scheduling_policy)
    forced = runner.masks if config.scheduler.speculative_grammar else None
    late = runner.masks if isinstance(runner.masks, WorkerMasks) else None
    scheduler = Scheduler(
        limits,
        policy=policy,
        eos_token_ids=eos_token_ids,
        contexts=contexts,
        connector=kv_disk,
        forced=forced,
        late=late,
        cost=cost,
    )
    if kv_disk is not None:
        kv_disk.connect(_stored_cache(scheduler, cache, contexts))
    return scheduler


def _contexts(
    config: Config, info: ModelInfo, backend: Backend, cache: KVCache, kv_disk: KVDisk | None
) -> ChainContexts:
    if kv_disk is None:
        return ChainContexts(info.revision)
    # Equal where equal tokens have the same bits in the KV cache, also in another process.
    what = (model_print(info, config), backend.kernels, cache.layout)
    return kv_disk.contexts(blake2b(repr(what).encode(), digest_size=16).hexdigest(), config.server)


def _stored_cache(scheduler: Scheduler, cache: KVCache, contexts: ChainContexts) -> StoredCache:
    tables = scheduler.tables
    return StoredCache(
        block_size=tables.block_size,
        bytes_per_block=cache.layout.bytes_per_block,
        contexts=contexts,
        device=tables.cache,
        host=tables.swap.cache,
        export=cache.export_blocks,
        rates=scheduler.budget.cost.rates,
    )


def _make_cache(config: Config, backend: Backend, max_model_len: int, later: int) -> KVCache:
    """Allocate the KV cache, smaller than planned if the device has less memory than expected.

    `later` are the bytes that are allocated after it.
    """
    layout, free = backend.kv_layout(), max(0, backend.free_memory() - later)
    num_blocks = plan_num_blocks(config, layout, max_model_len, free, backend.cache_memory(free))
    beside = free - num_blocks * layout.bytes_per_block if backend.is_on_host else free_memory()
    num_host_blocks = plan_num_host_blocks(config, layout, beside)
    while True:
        try:
            cache = KVCache(
                layout, num_blocks, num_host_blocks, backend.ops, backend.device, backend.pin, backend.synchronize
            )
            break
        except torch.OutOfMemoryError:  # other processes use the device too, or its memory is fragmented
            smaller = num_blocks * 9 // 10
            if not smaller:
                raise
            _log.warning("Not enough memory for a KV cache of %d blocks; trying %d.", num_blocks, smaller)
            num_blocks = smaller
    if num_blocks * layout.block_size < max_model_len:
        _log.warning(
            "The KV cache holds %d tokens, fewer than the context of %d; longer requests will be rejected.",
            num_blocks * layout.block_size,
            max_model_len,
        )
    return cache


def _model_info(config: Config, model: OpenedModel, limits: SchedulerLimits, backend: Backend) -> ModelInfo:
    files, spec = model.files, model.spec
    return ModelInfo(
        name=served_name(config.model),
        revision=files.revision,
        max_model_len=limits.max_model_len,
        kv_capacity_tokens=limits.num_blocks * limits.block_size,
        vocab_size=spec.vocab_size,
        eos_token_ids=model.eos_token_ids,
        defaults=_sampling_defaults(config, model),
        created=files.created,
        block_size=limits.block_size,
        max_num_seqs=limits.max_running,
        format=files.format,
        quantization=config.model.quantization or files.quantization,
        is_text_only=files.is_text_only,
        hidden_size=spec.hidden_size if backend.is_on_host else 0,
        pooling=files.pooling,
        answer_tokens=files.answer_tokens,
        experts=None if spec.experts is None else (spec.experts.count, spec.experts.per_token),
        kernels=backend.kernels if backend.is_on_host or config.model.deterministic else None,
    )


def _sampling_defaults(config: Config, model: OpenedModel) -> SamplingDefaults:
    known = SampledModel(
        model.spec.architecture,
        model.files.names,
        model.spec.defaults,
        is_gguf=model.files.format == GGUF,
        can_chat=model.text.chat_template is not None,
    )
    return sampling_defaults(config.sampling, known)
