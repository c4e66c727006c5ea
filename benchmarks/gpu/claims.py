"""The limits of Quire on a GPU, and the predictions made before the first run. No torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.gpu.figures import Figure, Results
from benchmarks.gpu.sections import CONTINUOUS, FLAGSHIP, ONE_BY_ONE, REQUESTS, SMALL, STREAMS, UNIFORM
from benchmarks.limits import Limit, Verdict, limits

BIG_BATCH_TOKENS = 64 * 1024
"""Batch x context from which decode attention must reach its share."""

Value = Callable[[Results], float | None]


class Claim(NamedTuple):
    """A number that has a limit (in `limits.toml`), a prediction, or both."""

    what: str
    unit: str
    value: Value
    predicted: tuple[float, float] | None = None
    note: str = ""

    @property
    def limit(self) -> Limit | None:
        """The limit; None if there is only a prediction."""
        return limits("gpu").get(self.what)

    def verdict(self, results: Results) -> Verdict | None:
        """Judge the measured value by the limit; None without a value or a limit."""
        found = self.value(results)
        return None if found is None or self.limit is None else Verdict(self.limit, found)


def claims() -> list[Claim]:
    """Return all of them, in the order of the sections."""
    return [*_decode_claims(), *_offline_claims(), *_kernel_claims(), *_serving_claims(), *_sweep_claims()]


def verdicts(results: Results) -> list[Verdict]:
    """Return the verdicts on all measured claims."""
    return [verdict for claim in claims() if (verdict := claim.verdict(results)) is not None]


def step_name(model: str, batch: int, how: str) -> str:
    """The name of a figure of S3; `how` is `graph` (replays alone) or `engine` (all of it)."""
    return f"{model} B={batch} {how}"


def _decode_claims() -> list[Claim]:
    latencies = {SMALL: 0.73, "Llama-3.2-1B": 0.89, "Qwen3-4B": 2.66, FLAGSHIP: 4.44, "Qwen3-14B": 7.99}
    return [
        Claim("one node of a CUDA graph", "us", _value("S0", "graph node"), (1.3, 1.6)),
        *(
            Claim(f"{model}: time per token, batch 1, 1k", "ms", _value("S3", step_name(model, 1, "engine")), (ms, ms))
            for model, ms in latencies.items()
        ),
        *(
            Claim(
                f"{model}: decode step, batch 256, 1k", "% of limit", _share("S3", step_name(model, 256, "graph")),
                (75, 85),
            )
            for model in latencies
        ),
    ]  # fmt: skip


def _offline_claims() -> list[Claim]:
    small, flagship, uniform = f"{SMALL}, {REQUESTS}", f"{FLAGSHIP}, {REQUESTS}", f"Qwen3-8B, {UNIFORM}"
    note = "which attention it used stands in its row"
    return [
        Claim(small, "tok/s", _value("S4", small), (28_000, 31_000)),
        Claim(flagship, "tok/s", _value("S4", flagship), (10_200, 10_200)),
        Claim(uniform, "s", _value("S4", uniform), (26, 29), "SGLang's published best: 30.85"),
        Claim(f"Qwen3-4B, {REQUESTS}", "tok/s", _value("S4", f"Qwen3-4B, {REQUESTS}"), (14_000, 16_000)),
        Claim(f"{SMALL}: times {CONTINUOUS}", "x", _ratio(small, f"{SMALL}, {CONTINUOUS}"), note=note),
        Claim(f"{SMALL}: times {ONE_BY_ONE}", "x", _ratio(small, f"{SMALL}, {ONE_BY_ONE}")),
        Claim(f"{FLAGSHIP}: cost of deterministic mode", "%", _cost(flagship, f"{flagship}, deterministic")),
    ]


def _kernel_claims() -> list[Claim]:
    worst = "decode attention, bf16, D = 128, 64k tokens and more: worst"
    return [
        Claim("one launch against two, and repeats: differences", "", _value("S1", "differences")),
        Claim("bad accesses and barriers found", "", _sum("S7", ("memcheck", "synccheck"))),
        Claim(worst, "% of copy", _worst_attention(128, "bf16"), (80, 80)),
        Claim("decode attention, bf16, D = 64: worst", "% of copy", _worst_attention(64, "bf16"), (60, 70)),
        Claim("decode attention, FP8, D = 128: worst", "% of copy", _worst_attention(128, "fp8"), (60, 70)),
        Claim("prefill attention, causal, 8k, D = 128", "TFLOP/s", _prefill_rate, (350, 450)),
    ]


def _serving_claims() -> list[Claim]:
    return [
        *(
            Claim(
                f"{model}: {STREAMS} keep of offline throughput", "%",
                _served_share(f"{model}, {STREAMS}", f"{model}, {REQUESTS}"), (95, 100),
            )
            for model in (FLAGSHIP, SMALL)
        ),
        Claim(f"{FLAGSHIP}: process start to first token", "s", _value("S5", f"{FLAGSHIP}, start")),
    ]  # fmt: skip


def _sweep_claims() -> list[Claim]:
    """What was expected of the questions; the answers decide what is built."""
    decode, mixed = "B=256 1024 D128 G4", "mixed step 64 tokens, room for"
    times = {
        "a kernel behind another one": ("launches plain launch", (1.3, 1.6)),
        "the same, launched before that one's end": ("launches dependent launch", (0.5, 0.8)),
        "attention of a 64-token prompt, room for 256 chunks": (f"{mixed} 256 chunks", (45.0, 45.0)),
        "attention of a 64-token prompt, room for 1 chunk": (f"{mixed} 1 chunks", (4.0, 8.0)),
        "attention of 20 tokens behind 32k": ("long prefix 20 tokens behind 32768", (500.0, 500.0)),
    }
    ratios = {
        f"products of a layer of {SMALL}, 1 row: plain launches, times dependent ones": (
            f"layer {SMALL} M=1", ("plain launches", "dependent launches"), (1.15, 1.4),
        ),
        f"LM head of {SMALL}, 1 row: cuBLAS, times matvec": (f"LM head {SMALL} M=1", ("cuBLAS", "quire"), (1.0, 1.3)),
        "decode attention of 256 x 1k: 4 splits, times 1": (f"splits {decode},", ("4", "1"), (1.05, 1.1)),
        "decode attention of 256 x 1k: deterministic, times plain": (
            f"deterministic {decode},", ("fixed splits", "as it is fastest"), (1.25, 1.5),
        ),
    }  # fmt: skip
    return [
        *(Claim(what, "us", _value("S6", name), predicted) for what, (name, predicted) in times.items()),
        *(
            Claim(what, "x", _times(f"{name} {one}", f"{name} {other}"), predicted)
            for what, (name, (one, other), predicted) in ratios.items()
        ),
    ]


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


def _times(one: str, other: str) -> Value:
    def value(results: Results) -> float | None:
        first, second = results.value("S6", one), results.value("S6", other)
        return first / second if first and second else None

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
