"""Runs everything that a step may launch, over padding, before the server is ready.

Loading a compiled kernel takes milliseconds and compiling one takes seconds; no request waits for either.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import triton
from triton.runtime.errors import OutOfResources

from app.contract.errors import CannotStart
from app.engine.execute.gpu.device import Device
from app.engine.execute.gpu.graphs import DeviceStep
from app.engine.execute.gpu.memory import Staging
from app.engine.execute.gpu.shapes import StepShape
from app.engine.execute.kv_cache import KVCache
from app.engine.schedule.step_plan import BlockCopy

# Block 0 holds nothing: it pads block tables, on the device and in host memory.
_PADDING = [BlockCopy(0, 0)]


def warm_up(device: Device, step: DeviceStep, staging: Staging, cache: KVCache, shapes: Sequence[StepShape]) -> None:
    """Run a step of each shape, send a change of the memory, and copy blocks. Engine thread only; waits.

    Afterwards the memory's inputs are padding, and its counter is the host's again.

    Raises:
        CannotStart: a kernel does not fit this GPU.
    """
    memory = step.memory
    for shape in shapes:
        device.run(memory.pad)
        try:
            device.run(partial(step.run, shape))
        except OutOfResources as error:  # fewer stages would fit, but their speed was never looked at
            raise CannotStart(
                f"Triton {triton.__version__} compiles a GPU kernel that does not fit this GPU ({error}). Install the "
                "Triton that your version of torch names, or use --device cpu."
            ) from None
        device.synchronize()  # what fails is then known by its shape
    step.sampler.rings.correct_counter()
    staging.flush()
    device.run(partial(cache.copy_blocks, _PADDING))
    if cache.num_host_blocks:
        device.run(partial(cache.swap_out, _PADDING))
        device.run(partial(cache.swap_in, _PADDING))
    device.synchronize()
