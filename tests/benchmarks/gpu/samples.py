"""Sample results of the benchmark `gpu`."""

from benchmarks.gpu.bounds import Work, decode_work, load_work
from benchmarks.gpu.claims import step_name
from benchmarks.gpu.figures import COPY, PRODUCT, Figure, Results, SectionResult
from benchmarks.gpu.loads import load_256
from benchmarks.gpu.models import SHAPES
from benchmarks.gpu.sections import CONTINUOUS, FLAGSHIP, ONE_BY_ONE, REQUESTS, SMALL, STREAMS

LOAD = load_256()


def sample_results() -> Results:
    """Figures of all sections: most meet their limits; the 8B model and one attention kernel are too slow."""
    results = Results(
        {"gpu": "NVIDIA H200 <test>", "gpu_state": {"clocks.sm": "1980 MHz"}, "versions": {"torch": "2.11"}}
    )
    lengths = [len(prompt) for prompt in LOAD.prompts]

    def offline(name: str, model: str, *rates: float) -> Figure:
        work = load_work(SHAPES[model], lengths, LOAD.num_new_tokens)
        return Figure(name, "tok/s", rates, work, sum(LOAD.num_new_tokens), {"note": "two turns"})

    ceilings = [Figure(COPY, "GB/s", (4200.0, 4400.0)), Figure(PRODUCT, "TFLOP/s", (790.0, 790.0))]
    step = Figure(
        step_name(SMALL, 1, "engine"), "ms", (0.7, 0.72), decode_work(SHAPES[SMALL], [1024]), about={"nodes": 170}
    )
    attention = [
        Figure(f"decode_attention B={batch}", "us", (each,), (Work(4.3e9, 1e10),), about=about)
        for batch, each, about in (
            (256, 1250.0, {"operation": "decode_attention", "head_dim": 128, "kv": "bf16", "tokens": 262144}),
            (64, 2000.0, {"operation": "decode_attention", "head_dim": 128, "kv": "bf16", "tokens": 65536}),
            (1, 9000.0, {"operation": "decode_attention", "head_dim": 128, "kv": "bf16", "tokens": 1024}),
        )
    ]
    prefill = Figure(
        "prefill_attention 1 x 8192", "us", (1375.0,), (Work(1e8, 5.5e11),),
        about={"operation": "prefill_attention", "head_dim": 128, "prompt": 8192, "by": "quire"},
    )  # fmt: skip
    sweep = {
        "launches plain launch": 1.5,
        "launches dependent launch": 0.6,
        "splits B=256 1024 D128 G4, 4": 330.0,
        "splits B=256 1024 D128 G4, 1": 300.0,
    }
    found = {
        "S0": ceilings,
        "S3": [step],
        "S4": [
            offline(f"{SMALL}, {REQUESTS}", SMALL, 28_000, 29_000),
            offline(f"{FLAGSHIP}, {REQUESTS}", FLAGSHIP, 9_000),
            offline(f"{FLAGSHIP}, {REQUESTS}, deterministic", FLAGSHIP, 8_100),
            Figure(f"{SMALL}, {CONTINUOUS}", "tok/s", (5_700.0,), about={"note": "attention paged|sdpa"}),
            Figure(f"{SMALL}, {ONE_BY_ONE}", "tok/s", (40.0, 41.0)),
        ],
        "S1": [Figure("differences", "", (0.0,))],
        "S2": [*attention, prefill],
        "S5": [
            Figure(f"{FLAGSHIP}, start", "s", (9.5,)),
            Figure(f"{FLAGSHIP}, {STREAMS}", "tok/s", (8_700.0,)),
        ],
        "S6": [Figure(name, "us", (each,)) for name, each in sweep.items()],
        "S7": [],
    }
    left_out = {"S7": {"memcheck": "compute-sanitizer is not installed here"}}
    results.sections = {
        name: SectionResult(name, figures, {}, left_out.get(name, {}), 1.0) for name, figures in found.items()
    }
    return results
