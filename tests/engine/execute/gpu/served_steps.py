"""Whether steps of a server launch anything that was not compiled before it was ready, without a GPU.

    python -m tests.engine.execute.gpu.served_steps FOLDER SETTINGS STEPS

FOLDER holds a config.json, SETTINGS is JSON. First what `quire warm` and a start find to compile is noted; then a whole
engine, with another number of blocks, serves a script of mixed requests over tensors of no memory for STEPS steps.
Every launch goes through Triton's own binder. Writes JSON: the specializations found before the start, by the start
(new ones), and by the steps (new ones), and how often the script met what it is there for.
"""

from __future__ import annotations

import os

os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported

import json
import random
import sys
from collections import Counter
from unittest.mock import patch

import torch

from app.checkpoint.inspection import inspect
from app.config.settings import Config, make_config
from app.contract.events import Finished, RequestFailed
from app.engine.build import build_engine
from app.engine.engine import Engine
from app.engine.execute.gpu import kv_calibration
from app.engine.execute.gpu.backend import GpuBackend
from app.engine.execute.gpu.dry_run import DryDevice, NoWeights, dry_calibration, dry_run
from app.engine.execute.gpu.kv_calibration import MAX_TOKENS
from app.engine.execute.gpu.precompilation import calibrates
from app.engine.execute.gpu.runner import GpuRunner
from app.kernels.triton.specializations import Specializations
from tests.engine.driving import request

GPU = ((9, 0), 132)
FEATURES = (
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.8, "min_p": 0.01, "seed": 4},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.1},
    {"logprobs": 5},
    {"logprobs": 20, "repetition_penalty": 1.1, "temperature": 0.5, "seed": 5},
    {"logit_bias": {11: 4.0, 12: -9.0}, "min_tokens": 6, "max_tokens": 12},
    {"n": 3, "temperature": 1.0, "seed": 6},
    {"n": 2, "use_beam_search": True, "beam_width": 3},
)
# (a share of the steps, how often a step brings requests, how many at most): alone, a trickle, a flood, nobody new.
WAVES = ((0.2, 0.0, 0), (0.2, 0.05, 2), (0.1, 0.1, 60), (0.3, 0.0, 0), (0.2, 0.2, 1))


def compute_text(files, backend, weights, tokenizer) -> None:
    """What calibrating the scales of an FP8 cache launches; there are no numbers to calibrate them by."""
    num_tokens = min(MAX_TOKENS, files.spec.max_position)
    kv_calibration.compute_text(files.spec, weights, backend.ops, backend.device, [0] * num_tokens)


def build(config: Config) -> Engine:
    """An engine over no memory."""
    with (
        patch("app.text.entry.opened_model.check_wanted_gpu"),
        patch("app.engine.build.select_backend", lambda config, files: GpuBackend(config, files.spec, DryDevice(*GPU))),
        patch("app.engine.build.DummySource", lambda seed, device: NoWeights()),
        patch("app.engine.build._scale_kv", compute_text),
    ):
        return build_engine(config)


class Script:
    """Requests of every kind in waves: lengths from one token to the context, shared prefixes, aborts and pauses."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.rng, self.counts = engine, random.Random(7), Counter()
        self._prefix = [self.rng.randrange(1000) for _ in range(700)]
        self._open: list[str] = []

    def run(self, num_steps: int) -> None:
        """Serve until so many steps were made, then abort what is left."""
        done = 0.0
        for share, often, most in WAVES:
            done += share
            while self.engine.num_steps < done * num_steps:
                if self.rng.random() < often:
                    for _ in range(self.rng.randint(1, most)):
                        self._ask()
                if self.engine.has_ready_work:
                    self._step()
                else:
                    while self.rng.random() < 0.7 and self.engine.work_idly():
                        pass
                    self._ask()
        for name in self._open:
            self.engine.abort(name, 0.0)
        while self.engine.has_ready_work:
            self._step()
        stats = self.engine.stats()
        preempted, faults = stats.preemption.num_preemptions, stats.recovery.num_faults
        self.counts.update(steps=self.engine.num_steps, preemptions=preempted, faults=faults)

    def _ask(self) -> None:
        rng, name = self.rng, f"request {self.counts['requests']}"
        self.counts["requests"] += 1
        longest = self.engine.model_info.max_model_len
        length = min(int(rng.choice((1, 3, 3, 20, 20, 60, 60, 200, 900, 3000)) * rng.uniform(1, 2)), longest - 70)
        prompt = [rng.randrange(1000) for _ in range(length)]
        if rng.random() < 0.3:
            prompt = (self._prefix + prompt)[: longest - 70]
        params = {"max_tokens": rng.choice((1, 8, 30, 60)), "ignore_eos": True, **rng.choice(FEATURES)}
        events = self.engine.add(request(self.engine, name, prompt, **params))
        assert not any(isinstance(event, RequestFailed) for event in events), events
        self._open.append(name)

    def _step(self) -> None:
        for event in self.engine.step(0.0):
            self.counts["finished"] += isinstance(event, Finished)
            assert not isinstance(event, RequestFailed), event
        dice = self.rng.random()
        if not self._open or dice > 0.04:
            return
        if dice < 0.02:
            self.engine.abort(self.rng.choice(self._open), 0.0)
        else:
            self.engine.pause(name := self.rng.choice(self._open))
            self.engine.resume(name)


def main() -> None:
    """Compare, and report."""
    values = {"model": sys.argv[1], "device": "cuda", "load_format": "dummy", **json.loads(sys.argv[2])}
    torch.set_num_threads(1)
    config = make_config(values)
    files = inspect(config.model)
    counts: Counter[str] = Counter()
    transfer, compute = GpuRunner._transfer, GpuRunner._compute
    shapes = set()

    def count_transfer(runner: GpuRunner, plan) -> None:
        counts["blocks copied"] += len(plan.copies)
        counts["blocks swapped"] += len(plan.swap_outs) + len(plan.swap_ins)
        transfer(runner, plan)

    def count_step(runner: GpuRunner, plan, shape, *rest):
        counts["decode steps" if shape.is_decode else "mixed steps"] += 1
        counts["samples of drafts"] += len(plan.sampled) - len({row for row, _ in plan.sampled})
        shapes.add(shape)
        return compute(runner, plan, shape, *rest)

    with Specializations(GPU[0]) as specializations:
        found = specializations.found
        dry_run(config, files.spec, DryDevice(*GPU))
        if calibrates(config, files):
            dry_calibration(config, files.spec, DryDevice(*GPU))
        compiled = set(found)
        engine = build(config)
        started = set(found)
        script = Script(engine)
        with patch.multiple(GpuRunner, _transfer=count_transfer, _compute=count_step):
            script.run(int(sys.argv[3]))
        served = set(found)
    print(json.dumps({
        "compiled": sorted(compiled), "by the start": sorted(started - compiled), "by steps": sorted(served - started),
        "counts": {**script.counts, **counts, "shapes": len(shapes)},
    }))  # fmt: skip


if __name__ == "__main__":
    main()
