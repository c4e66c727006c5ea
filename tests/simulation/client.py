"""A client of the simulated server: its request, its tokens so far, and its next actions."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.contract.sampling_params import SamplingParams
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.search.beam_search import BeamSearch, Hypothesis
from app.engine.schedule.sequence import FINISHED, Sequence
from tests.engine.schedule.fake_tokens import EOS_TOKEN_ID, draw, logprobs_after, num_words, prefix_hash
from tests.simulation.workload import Wish


@dataclass(slots=True, eq=False)
class Client:
    """One accepted request, followed token by token against the reference; `contents` is each choice's hash so far."""

    wish: Wish
    group: SequenceGroup
    is_poisoned: bool = False
    is_ready: bool = True
    num_gained: int = 0
    num_gained_at_restart: int = -1
    waiting_since: int = 0  # step
    contents: dict[int, int] = field(default_factory=dict)
    answers: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        content = prompt_hash(self.wish.request.prompt_token_ids, self.wish.request.params)
        for sequence in self.group.sequences:
            self.contents[sequence.choice] = content
            self.answers[sequence.choice] = []

    @property
    def id(self) -> str:
        """Of the request."""
        return self.wish.request.id

    @property
    def is_open(self) -> bool:
        """Whether any of it is unfinished."""
        return self.group.status is not FINISHED

    def gain(self, sequence: Sequence, token_id: int) -> str | None:
        """Take in a token of one answer; return why the answer ends with it, if it does.

        S4: it is the next token of the reference, and of the sequence's. S11: its end has not come.
        """
        choice, answer = sequence.choice, self.answers[sequence.choice]
        content = self.contents[choice]
        assert choice not in self.ends, f"{self.id}: a token after the end of choice {choice}"
        params = self.wish.request.params
        right = draw(content, choice, num_words(params))
        assert token_id == right, f"{self.id}: token {len(answer) + 1} of choice {choice} is wrong"
        answer.append(token_id)
        assert sequence.output_token_ids[len(answer) - 1] == token_id
        self.contents[choice] = prefix_hash(token_id, content)
        self.num_gained += 1
        if len(answer) == params.max_tokens:
            return "length"
        # Where there are few words, they say too little.
        number = self.contents[choice] if params.top_k else token_id
        return "stop" if number % 1000 < 1000 * self.wish.ends_early else None

    def end(self, sequence: Sequence, reason: str) -> None:
        """Note the end of one answer, which comes once."""
        assert sequence.choice not in self.ends, f"{self.id}: choice {sequence.choice} ends twice"
        self.ends[sequence.choice] = reason
        answer, output = self.answers[sequence.choice], sequence.output_token_ids
        # A guess may have led beyond the end.
        assert answer == output[: len(answer)], f"{self.id}: tokens lost or doubled"
        assert answer == output or (reason == "stop" and self.wish.request.params.top_k), f"{self.id}: tokens are lost"


def prompt_hash(prompt: tuple[int, ...], params: SamplingParams) -> int:
    """The content of the last slot of a prompt."""
    content = params.seed or 0
    for token_id in prompt:
        content = prefix_hash(token_id, content)
    return content


def search_alone(prompt: tuple[int, ...], params: SamplingParams) -> list[Hypothesis]:
    """Search beams without a scheduler: what any schedule must find."""
    search, beams = BeamSearch(params, (EOS_TOKEN_ID,)), [prompt_hash(prompt, params)]
    while True:
        found = [logprobs_after(content, params.num_sampled_logprobs or 0) for content in beams]
        moves = search.advance([list(zip(each.top_token_ids, each.top_logprobs, strict=True)) for each in found])
        if moves is None:
            return search.results()
        beams = [prefix_hash(move.token_id, beams[move.parent]) for move in moves]
