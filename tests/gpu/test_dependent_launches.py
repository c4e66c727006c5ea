"""Dependent launches change no bit: each kernel waits for the one before, in a stream and in a graph."""

import pytest
import torch

from app.config.devices import MIN_DEPENDENT_CAPABILITY, MIN_DEPENDENT_DRIVER, driver_version
from app.kernels.triton.dependent import launches
from app.kernels.triton.layers import gate, matvec, norm
from benchmarks.gpu.timing import capture
from tests.checkpoints import tiny
from tests.gpu.driving import CUDA, build, capture_all, noise, request, run_requests
from tests.gpu.test_engine import prompts

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available()
    and (torch.cuda.get_device_capability() < MIN_DEPENDENT_CAPABILITY or driver_version() < MIN_DEPENDENT_DRIVER),
    reason="this GPU or its driver has no dependent launches",
)
WIDTH, LINKS = 1024, 100


class Chain:
    """Kernels of few instructions, each of which reads what the one before wrote, and overwrites what that one read."""

    def __init__(self, num_rows: int) -> None:
        self.first = [noise(num_rows, WIDTH) for _ in range(2)]
        self.weight = noise(WIDTH)
        self.matrix = noise(2 * WIDTH, WIDTH, scale=WIDTH**-0.5)
        self.x, self.residual = (each.clone() for each in self.first)
        self.y, self.wide = (
            torch.empty_like(self.x),
            torch.empty(num_rows, 2 * WIDTH, dtype=torch.bfloat16, device=CUDA),
        )

    def run(self) -> None:
        """Launch all, from the same numbers each time."""
        self.x.copy_(self.first[0])
        self.residual.copy_(self.first[1])
        for _ in range(LINKS):
            norm.add_rms_norm(self.x, self.residual, self.weight, 1e-6, out=self.y)
            if matvec.serves(len(self.x), self.x.dtype):
                matvec.linear(self.y, self.matrix, None, out=self.wide)
            else:
                torch.mm(self.y, self.matrix.t(), out=self.wide)
            gate.gate_mul(self.wide, "silu", out=self.x)
            norm.rms_norm(self.x, self.weight, 1e-6, out=self.y)
            norm.rms_norm(self.y, self.weight, 1e-6, out=self.x)

    def results(self) -> list[torch.Tensor]:
        """What has been computed."""
        return [each.clone() for each in (self.x, self.y, self.residual, self.wide)]


@pytest.mark.parametrize("num_rows", [1, 8, 16, 300, 5000])
def test_a_chain_of_kernels_that_overwrite_each_others_inputs_repeats_bit_for_bit(num_rows):
    chain = Chain(num_rows)
    chain.run()
    wanted = chain.results()
    assert all(each.isfinite().all() for each in wanted)
    with launches(is_dependent=True):
        chain.run()
        graph = capture(chain.run)
        for number in range(50):
            (graph.replay if number % 2 else chain.run)()
            got = chain.results()
            assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True)), f"run {number}"


@pytest.mark.parametrize("settings", [{}, {"deterministic": True}, {"kv_cache_dtype": "fp8"}, {"enforce_eager": True}])
def test_dependent_launches_change_no_token(settings):
    """With bfloat16 and sampling, a single different bit changes some of the tokens."""
    folder, given = tiny("Qwen3", head_dim=128), prompts(7, 24)
    every = []
    for dependent_launches in (False, True, True):
        engine = build(folder, dtype="bfloat16", dependent_launches=dependent_launches, **settings)
        capture_all(engine)
        requests = [
            request(engine, str(i), ids, seed=i, temperature=1.0, top_p=0.9, max_tokens=64)
            for i, ids in enumerate(given)
        ]
        every.append(run_requests(engine, requests, apart=1))
    assert every[0] == every[1] == every[2]
