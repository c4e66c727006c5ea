"""Answers that go on behind what was told of them: what is told by when, and what comes in all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from app.contract.events import EngineEvent, Finished, TokenDelta
from app.contract.requests import EngineRequest, ToldChoice
from app.engine.engine import Engine
from tests.engine.driving import Run


@dataclass
class Answer:
    """A choice as its reader has it."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    rows: bytes = b""
    end: tuple[object, ...] | None = None
    num_deltas: int = field(default=0, compare=False)

    def take(self, event: EngineEvent) -> None:
        """Take the next event; a delta's number is that of its first token."""
        assert self.end is None, "an event behind the end"
        if isinstance(event, TokenDelta):
            assert event.first == len(self.token_ids) + 1
            self.token_ids += event.token_ids
            self.text += event.text
            self.rows += event.logprobs.rows if event.logprobs is not None else b""
            self.num_deltas += 1
        else:
            assert isinstance(event, Finished), event
            self.end = (event.end, event.usage.prompt_tokens, event.usage.completion_tokens)

    @property
    def told(self) -> ToldChoice:
        """What is told to an engine of it."""
        return ToldChoice(has_ended=True) if self.end is not None else ToldChoice(self.token_ids)


def answers_of(events: Iterable[EngineEvent], n: int, begun: Sequence[Answer] = ()) -> list[Answer]:
    """The choices of one request after `events`, which go on behind those that were `begun`."""
    found = [replace(answer) for answer in begun] or [Answer() for _ in range(n)]
    for event in events:
        assert isinstance(event, TokenDelta | Finished), event
        found[event.choice].take(event)
    return found


def turns_of(engine: Engine, request: EngineRequest) -> list[list[EngineEvent]]:
    """The events of a request that runs alone, by the engine's turns."""
    run, turns = Run(engine), []
    run.add(request)
    while engine.has_ready_work:
        num_before = len(run.events)
        run.step()
        turns.append(run.events[num_before:])
    return turns


def go_on(engine: Engine, request: EngineRequest, beginnings: Sequence[Sequence[Answer]]) -> list[list[Answer]]:
    """The choices of a request that goes on behind each of `beginnings`, all at once."""
    again = [
        replace(request, id=f"again {number}", told=tuple(answer.told for answer in begun))
        for number, begun in enumerate(beginnings)
    ]
    run = Run(engine)
    run.add(*again)
    run.finish()
    return [answers_of(run.of(each.id), request.params.n, begun) for each, begun in zip(again, beginnings, strict=True)]
