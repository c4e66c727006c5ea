"""The figures of the benchmark `gpu` in the terminal: every row beside its limit, then what was required. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from app.loadgen.table import number, table
from app.observe.terminal import Terminal
from benchmarks.figures import spread
from benchmarks.gpu.bounds import Ceilings
from benchmarks.gpu.claims import Claim, claims
from benchmarks.gpu.figures import Figure, Results, SectionResult
from benchmarks.gpu.sections import SECTIONS, find_section

MAX_SAID = 300


def report(results: Results, terminal: Terminal) -> list[str]:
    """Return the lines of the table, with the sections in their order."""
    lines: list[str] = []
    for section in SECTIONS:
        if section.name in results.sections:
            lines += _section(results.sections[section.name], results.ceilings, terminal)
    if lines:
        head = ["required and predicted", "found", "unit", "verdict", "required", "predicted"]
        lines += ["", *table(terminal, head, [_claim(claim, results) for claim in claims()])]
        state = results.about.get("gpu_state")
        lines += ["", f"{results.about.get('gpu')}; {state}", f"versions: {results.about.get('versions')}"]
    return lines


def _section(found: SectionResult, ceilings: Ceilings, terminal: Terminal) -> Iterator[str]:
    title = f"{found.name}: {find_section(found.name).title} ({found.seconds:.0f} s)"
    yield ""
    head = [title, "median (min-max)", "unit", "limit", "share", "TFLOP/s"]
    yield from table(terminal, head, [_row(figure, ceilings) for figure in found.figures])
    for name, said in (found.failures | found.left_out).items():
        # The last line of a traceback names the exception.
        words = " ".join(said.strip().splitlines()[-1:])[:MAX_SAID]
        yield terminal.text(f"{name}: not measured: {words}")


def _row(figure: Figure, ceilings: Ceilings) -> list[str]:
    limit, share, rate = figure.limit(ceilings), figure.share(ceilings), figure.operations_rate
    of_limit = ["", ""] if limit is None or share is None else [number(limit), f"{share:.0%}"]
    rates = number(rate / 1e12) if rate is not None and rate > 1e12 else ""
    return [figure.name, spread(figure.values), figure.unit, *of_limit, rates, str(figure.about.get("note", ""))]


def _claim(claim: Claim, results: Results) -> list[str]:
    found, verdict, limit = claim.value(results), claim.verdict(results), claim.limit
    word = "not measured" if found is None else "" if verdict is None else "met" if verdict.is_met else "MISSED"
    low, high = claim.predicted or (None, None)
    predicted = "" if low is None or high is None else number(low) + ("" if low == high else f"-{number(high)}")
    required = "" if limit is None else f"{limit.sign.replace('_', ' ')} {number(limit.value)}"
    return [claim.what, "-" if found is None else number(found), claim.unit, word, required, predicted, claim.note]
