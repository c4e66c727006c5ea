"""Requests with grammars, and what they answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from app.contract.admission import admit
from app.contract.events import Finished, TokenDelta
from app.contract.grammar import ReasoningMarks, StructuredOutputs
from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.engine import Engine
from app.text.grammar.grammar_entries import Lease
from app.text.grammar.grammar_sources import grammar_of
from tests.engine.driving import Run

Answer = tuple[tuple[int, ...], str, str]
"""The tokens of a choice, its text, and how it ended."""


class Constrained:
    """Makes requests with grammars for an engine, and holds their leases."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.leases: list[Lease] = []

    def request(
        self,
        request_id: str,
        prompt: Sequence[int],
        outputs: dict[str, Any] | None = None,
        *,
        marks: ReasoningMarks | None = None,
        **params: Any,
    ) -> EngineRequest:
        """A request whose answer satisfies `outputs`; with `marks` after its reasoning."""
        given = {"max_tokens": 60, "seed": 1, "temperature": 1.0, **params}
        wanted = None if outputs is None else StructuredOutputs(**outputs)
        resolved = admit(prompt, SamplingParams(structured_outputs=wanted, **given), self.engine.model_info)
        grammar = None if wanted is None else grammar_of(wanted)
        if grammar is not None:
            self.leases.append(self.engine.grammars.lease(grammar))
        return EngineRequest(request_id, tuple(prompt), resolved, 0.0, grammar=grammar, reasoning=marks)


def answers(run: Run) -> dict[tuple[str, int], Answer]:
    """What each choice of a run's requests answered."""
    tokens: dict[tuple[str, int], list[int]] = {}
    texts: dict[tuple[str, int], str] = {}
    ends: dict[tuple[str, int], str] = {}
    for event in run.events:
        if isinstance(event, TokenDelta):
            key = (event.request_id, event.choice)
            tokens.setdefault(key, []).extend(event.token_ids)
            texts[key] = texts.get(key, "") + event.text
        elif isinstance(event, Finished):
            ends[event.request_id, event.choice] = str(event.reason)
    return {key: (tuple(tokens.get(key, ())), texts.get(key, ""), end) for key, end in ends.items()}


def answer_all(
    engine: Engine, requests: Iterable[EngineRequest], *, steps_between: int = 0
) -> dict[tuple[str, int], Answer]:
    """Run requests that arrive `steps_between` steps apart until all have ended."""
    run = Run(engine)
    for each in requests:
        run.add(each)
        run.step(steps_between)
    run.finish()
    return answers(run)
