"""Selects the backend: the fastest one that this machine and the settings allow."""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.util import find_spec

import torch

from app.checkpoint.model_files import ModelFiles
from app.config.checks import check_device
from app.config.devices import CPU, CUDA, MIN_DEPENDENT_DRIVER, NO_EXPERTS, NO_ROCM, driver_version, resolve_device
from app.config.settings import Config
from app.contract.errors import CannotStart
from app.engine.execute.cpu.backend import EagerBackend, NativeBackend
from app.engine.execute.interfaces import Backend
from app.kernels.cpu.library import load_library

_log = logging.getLogger("quire.engine")


def _gpu_backend(config: Config, files: ModelFiles) -> Backend:
    if files.spec.experts is not None:
        raise CannotStart(f"No GPU can be used: {NO_EXPERTS}.")
    if torch.version.hip is not None:
        raise CannotStart(f"No GPU can be used: {NO_ROCM}.")
    if not torch.cuda.is_available():
        raise CannotStart("torch finds no GPU; run `quire doctor` for details.")
    if find_spec("triton") is None:
        raise CannotStart(
            "A GPU needs Triton. Install Quire with its extra `gpu` (`pip install '.[gpu]'` in the checkout), or use "
            "--device cpu."
        )
    from app.engine.execute.gpu.backend import GpuBackend  # loads Triton
    from app.engine.execute.gpu.device import Device
    from app.engine.execute.gpu.precompilation import Precompilation

    if driver_version() < MIN_DEPENDENT_DRIVER:
        config = replace(config, model=replace(config.model, dependent_launches=False))
    device = Device(dependent_launches=config.model.dependent_launches)
    compilation = Precompilation(config, files, device.capability, [device.num_processors])
    backend = GpuBackend(config, files.spec, device, compilation.finish)
    compilation.start()  # beside the loading of the weights
    return backend


def select_backend(config: Config, files: ModelFiles) -> Backend:
    """Return the fastest backend that this machine and the settings allow.

    Raises:
        CannotStart: the settings require a GPU that cannot be used.
        ConfigurationError: the GPU does not support a setting.
    """
    if resolve_device(config.model.device) == CUDA:
        try:
            return _gpu_backend(config, files)
        except CannotStart as error:
            if config.model.device == CUDA:
                raise
            check_device(config, CPU)
            _log.warning("Not using the GPU, the model runs on the CPU: %s", error)
    library = None if config.model.enforce_eager else load_library()
    if library is None:
        if config.model.quantization:
            _log.warning("--quantization saves neither memory nor time without the native kernels.")
        return EagerBackend(config, files.spec)
    return NativeBackend(config, files.spec, library)
