"""What is required of Quire on a GPU, and what was predicted before the first run. No torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.gpu.figures import Figure, Results
from benchmarks.gpu.sections import CONTINUOUS, FLAGSHIP, ONE_BY_ONE, REQUESTS, SMALL, STREAMS, UNIFORM

BIG_BATCH_TOKENS = 64 * 1024
"""Batch x context from which decode attention must reach its share."""

Value = Callable[[Results], float | None]


class Claim(NamedTuple):
    """A promise or a prediction about one number; where `required` is None, it is only predicted."""

    what: str
    unit: str
    value: Value
    is_at_least: bool
    required: float | None = None
    predicted: tuple[float, float] | None = None
    note: str = ""

    def is_met(self, results: Results) -> bool | None:
        """Whether it is kept; None where nothing was measured, or nothing is required."""
        found = self.value(results)
        if found is None or self.required is None:
            return None
        return found >= self.required if self.is_at_least else found <= self.required


def claims() -> list[Claim]:
    """Return all of them, in the order of the sections."""
    return [*_decode_claims(), *_offline_claims(), *_kernel_claims(), *_serving_claims()]


def missed(results: Results) -> list[Claim]:
    """Return the promises that were measured and not kept."""
    return [claim for claim in claims() if claim.is_met(results) is False]


def step_name(model: str, batch: int, how: str) -> str:
    """The name of a figure of S3; `how` is `graph` (replays alone) or `engine` (all of it)."""
    return f"{model} B={batch} {how}"


def _decode_claims() -> list[Claim]:
    latencies = {
        SMALL: (0.75, 0.73),
        "Llama-3.2-1B": (0.9, 0.89),
        "Qwen3-4B": (2.7, 2.66),
        FLAGSHIP: (4.5, 4.44),
        "Qwen3-14B": (None, 7.99),
    }
    found = [Claim("one node of a CUDA graph", "us", _value("S0", "graph node"), False, predicted=(1.3, 1.6))]
    found += [
        Claim(
            f"{model}: time per token, batch 1, 1k",
            "ms",
            _value("S3", step_name(model, 1, "engine")),
            is_at_least=False,
            required=required,
            predicted=(predicted, predicted),
        )
        for model, (required, predicted) in latencies.items()
    ]
    return found + [
        Claim(
            f"{model}: decode step, batch 256, 1k",
            "% of limit",
            _share("S3", step_name(model, 256, "graph")),
            is_at_least=True,
            predicted=(75, 85),
        )
        for model in latencies
    ]


def _offline_claims() -> list[Claim]:
    small, flagship = f"{SMALL}, {REQUESTS}", f"{FLAGSHIP}, {REQUESTS}"
    return [
        Claim(small, "tok/s", _value("S4", small), True, 25_000, (28_000, 31_000)),
        Claim(flagship, "tok/s", _value("S4", flagship), True, 10_200, (10_200, 10_200)),
        Claim(
            f"Qwen3-8B, {UNIFORM}", "s", _value("S4", f"Qwen3-8B, {UNIFORM}"), False, 29, (26, 29),
            "SGLang's published best: 30.85",
        ),
        Claim(f"Qwen3-4B, {REQUESTS}", "tok/s", _value("S4", f"Qwen3-4B, {REQUESTS}"), True, None, (14_000, 16_000)),
        Claim(
            f"{SMALL}: times {CONTINUOUS}", "x", _ratio(small, f"{SMALL}, {CONTINUOUS}"), True, 3.0,
            note="which attention it used stands in its row",
        ),
        Claim(f"{SMALL}: times {ONE_BY_ONE}", "x", _ratio(small, f"{SMALL}, {ONE_BY_ONE}"), True, 24.0),
        Claim(
            f"{FLAGSHIP}: cost of deterministic mode", "%", _cost(flagship, f"{flagship}, deterministic"), False, 15.0
        ),
    ]  # fmt: skip


def _kernel_claims() -> list[Claim]:
    return [
        Claim("one launch against two, and repeats: differences", "", _value("S1", "differences"), False, 0),
        Claim("races and bad accesses found", "", _sum("S1", ("racecheck", "memcheck")), False, 0),
        Claim(
            "decode attention, bf16, D = 128, 64k tokens and more: worst", "% of copy",
            _worst_attention(128, "bf16"), True, 75, (80, 80),
        ),
        Claim("decode attention, bf16, D = 64: worst", "% of copy", _worst_attention(64, "bf16"), True, None, (60, 70)),
        Claim("decode attention, FP8, D = 128: worst", "% of copy", _worst_attention(128, "fp8"), True, None, (60, 70)),
        Claim("prefill attention, causal, 8k, D = 128", "TFLOP/s", _prefill_rate, True, 350, (350, 450)),
    ]  # fmt: skip


def _serving_claims() -> list[Claim]:
    return [
        Claim(
            f"{model}: {STREAMS} keep of offline throughput", "%",
            _served_share(f"{model}, {STREAMS}", f"{model}, {REQUESTS}"), True, required, (95, 100),
        )
        for model, required in ((FLAGSHIP, 95.0), (SMALL, None))
    ] + [
        Claim(f"{FLAGSHIP}: process start to first token", "s", _value("S5", f"{FLAGSHIP}, start"), False, 10.0)
    ]  # fmt: skip


def _value(section: str, name: str) -> Value:
    return lambda results: results.value(section, name)


def _share(section: str, name: str) -> Value:
    def value(results: Results) -> float | None:
        figure = results.figure(section, name)
        share = None if figure is None else figure.share(results.ceilings)
        return None if share is None else 100 * share

    return value


def _ratio(ours: str, theirs: str) -> Value:
    def value(results: Results) -> float | None:
        mine, other = results.value("S4", ours), results.value("S4", theirs)
        return mine / other if mine and other else None

    return value


def _cost(plain: str, other: str) -> Value:
    def value(results: Results) -> float | None:
        before, after = results.value("S4", plain), results.value("S4", other)
        return 100 * (1 - after / before) if before and after else None

    return value


def _served_share(served: str, offline: str) -> Value:
    def value(results: Results) -> float | None:
        over, alone = results.value("S5", served), results.value("S4", offline)
        return 100 * over / alone if over and alone else None

    return value


def _sum(section: str, names: tuple[str, ...]) -> Value:
    def value(results: Results) -> float | None:
        found = [value for name in names if (value := results.value(section, name)) is not None]
        return sum(found) if found else None

    return value


def _worst_attention(head_dim: int, kv: str) -> Value:
    def value(results: Results) -> float | None:
        shares = [figure.share(results.ceilings) for figure in _figures(results, "decode_attention", head_dim, kv)]
        found = [share for share in shares if share is not None]
        return 100 * min(found) if found else None

    return value


def _figures(results: Results, operation: str, head_dim: int, kv: str) -> list[Figure]:
    section = results.sections.get("S2")
    return [
        figure
        for figure in (section.figures if section else [])
        if figure.about.get("operation") == operation
        and figure.about.get("head_dim") == head_dim
        and figure.about.get("kv") == kv
        and figure.about.get("tokens", 0) >= BIG_BATCH_TOKENS
    ]


def _prefill_rate(results: Results) -> float | None:
    section = results.sections.get("S2")
    rates = [
        figure.operations_rate
        for figure in (section.figures if section else [])
        if figure.about.get("operation") == "prefill_attention"
        and figure.about.get("head_dim") == 128
        and figure.about.get("prompt") == 8192
        and figure.about.get("by") == "quire"
    ]
    found = [rate for rate in rates if rate is not None]
    return min(found) / 1e12 if found else None
