"""The files of a benchmark: every value as JSON, and a line for each request as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.loadgen.answer import Answer
from app.loadgen.figures import MS, Figures, rate_text


class Result(NamedTuple):
    """The figures of a run, its answers, and when it began (`time.perf_counter`)."""

    figures: Figures
    answers: Sequence[Answer]
    began: float


def to_json(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return `about`, and for each run its figures and its requests with the times of their chunks."""
    runs = []
    for result in results:
        requests = [
            row(result, answer) | {"chunks_ms": [_ms(time - answer.sent) for time in answer.times]}
            for answer in result.answers
        ]
        runs.append(result.figures.to_json() | {"requests": requests})
    return json.dumps({**about, "runs": runs}, indent=1) + "\n"


def to_csv(results: Sequence[Result]) -> str:
    """Return one line for each request of each run, in the order of sending; at least one."""
    rows = [row(result, answer) for result in results for answer in result.answers]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def row(result: Result, answer: Answer) -> dict[str, Any]:
    """Return one request by column; None is an unknown value."""
    return {
        "rate": rate_text(result.figures.rate),
        "sent_s": round(answer.sent - result.began, 6),
        "late_ms": _ms(answer.late),
        "connect_ms": _ms(answer.connected - answer.sent) if answer.connected is not None else None,
        "ttft_ms": _ms(answer.ttft),
        "tpot_ms": _ms(answer.tpot) if answer.status == "completed" else None,
        "e2e_ms": _ms(answer.e2e),
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens,
        "output_tokens": answer.num_output,
        "chunks": len(answer.times),
        "status": answer.status,
        "error": answer.error or None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(MS * seconds, 3)
