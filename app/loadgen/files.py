"""The files of a run: every value as JSON, and a line for each request as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.loadgen.answer import Answer
from app.loadgen.figures import MS, Figures, rate_text

COLUMNS = (
    "rate",
    "sent_s",
    "late_ms",
    "connect_ms",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "prompt_tokens",
    "output_tokens",
    "chunks",
    "status",
    "error",
)


class Result(NamedTuple):
    """A run's figures, its answers, and when it began on their clock."""

    figures: Figures
    answers: Sequence[Answer]
    began: float


def to_json(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return what was asked of whom, the figures of each rate, and every single answer with its chunks' times."""
    runs = [
        result.figures.to_json()
        | {
            "requests": [
                row(result, answer) | {"chunks_ms": [_ms(time - answer.sent) for time in answer.times]}
                for answer in result.answers
            ]
        }
        for result in results
    ]
    return json.dumps({**about, "runs": runs}, indent=1) + "\n"


def to_csv(results: Sequence[Result]) -> str:
    """Return one line for each request of each rate, in the order of sending."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for result in results:
        writer.writerows(row(result, answer) for answer in result.answers)
    return text.getvalue()


def row(result: Result, answer: Answer) -> dict[str, Any]:
    """Return one request by COLUMNS; None where there is no such value."""
    is_completed = answer.status == "completed"
    return {
        "rate": rate_text(result.figures.rate),
        "sent_s": round(answer.sent - result.began, 6),
        "late_ms": _ms(answer.late),
        "connect_ms": _ms(answer.connected - answer.sent) if answer.connected is not None else None,
        "ttft_ms": _ms(answer.ttft),
        "tpot_ms": _ms(answer.tpot) if is_completed else None,
        "e2e_ms": _ms(answer.e2e),
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.num_output,
        "chunks": len(answer.times),
        "status": answer.status,
        "error": answer.error or None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(MS * seconds, 3)
