"""The figures of the benchmark `gpu` in the terminal: every row beside its limit, then what was required. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from app.observe.terminal import Colour, Terminal
from benchmarks.gpu.claims import Claim, claims
from benchmarks.gpu.figures import Figure, Results, SectionResult
from benchmarks.gpu.limits import Ceilings
from benchmarks.gpu.sections import SECTIONS, find_section

NAME, CLAIM = 52, 58  # columns of names
MAX_SAID = 300


def report(results: Results, terminal: Terminal) -> list[str]:
    """Return the lines of the whole table, sections by their value."""
    lines: list[str] = []
    for section in SECTIONS:
        if section.name in results.sections:
            lines += _section(results.sections[section.name], results.ceilings, terminal)
    if lines:
        lines += ["", terminal.paint(f"{'required and predicted':{CLAIM}}{'found':>12}  verdict", Colour.BOLD)]
        lines += [terminal.text(_claim(claim, results)) for claim in claims()]
        state = results.about.get("gpu_state")
        lines += ["", f"{results.about.get('gpu')}; {state}", f"versions: {results.about.get('versions')}"]
    return lines


def number(value: float) -> str:
    """Write a number with as many digits as mean something."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if value >= 1 else f"{value:.3g}"


def _section(found: SectionResult, ceilings: Ceilings, terminal: Terminal) -> Iterator[str]:
    title = f"{found.name}: {find_section(found.name).title} ({found.seconds:.0f} s)"
    yield ""
    yield terminal.paint(f"{title:{NAME}}{'median (min-max)':>27}  {'unit':9}{'limit':>9}{'share':>7}", Colour.BOLD)
    for figure in found.figures:
        yield terminal.text(_row(figure, ceilings))
    for name, said in (found.failures | found.left_out).items():
        # The last line of a traceback says what happened.
        words = " ".join(said.strip().splitlines()[-1:])[:MAX_SAID]
        yield terminal.text(f"{name:{NAME}} not measured: {words}")


def _row(figure: Figure, ceilings: Ceilings) -> str:
    limit, share = figure.limit(ceilings), figure.share(ceilings)
    spread = f"{number(figure.median)} ({number(min(figure.values))}-{number(max(figure.values))})"
    line = f"{figure.name:{NAME}}{spread:>27}  {figure.unit:9}"
    line += f"{'':16}" if limit is None or share is None else f"{number(limit):>9}{share:>7.0%}"
    rate = figure.operations_rate
    if rate is not None and rate > 1e12:
        line += f"  {rate / 1e12:.0f} TFLOP/s"
    note = figure.about.get("note")
    return f"{line}  {note}" if note else line.rstrip()


def _claim(claim: Claim, results: Results) -> str:
    found, met = claim.value(results), claim.is_met(results)
    value = "-" if found is None else number(found)
    verdict = "not measured" if found is None else {True: "met", False: "MISSED", None: ""}[met]
    line = f"{claim.what:{CLAIM}}{value:>12} {claim.unit:10} {verdict:13}"
    if claim.required is not None:
        line += f" required {'>=' if claim.is_at_least else '<='} {number(claim.required)}"
    if claim.predicted is not None:
        low, high = claim.predicted
        line += f" predicted {number(low)}" + ("" if low == high else f"-{number(high)}")
    return f"{line} {claim.note}".rstrip()
