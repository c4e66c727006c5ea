"""A client of the simulated server: its request and its tokens so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.contract.sampling_params import SamplingParams
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.search.beam_search import BeamSearch, Hypothesis
from app.engine.schedule.sequence import FINISHED, Sequence
from tests.engine.schedule.fake_tokens import EOS_TOKEN_ID, logprobs_after, num_words, prefix_hash, sample_token
from tests.simulation.workload import ClientScript


@dataclass(slots=True, eq=False)
class Client:
    """An accepted request, compared with the reference token by token; `contents` is the last hash of each choice."""

    script: ClientScript
    group: SequenceGroup
    is_culprit: bool = False
    is_ready: bool = True
    num_gained: int = 0
    num_gained_at_restart: int = -1
    waiting_since: int = 0  # step
    contents: dict[int, int] = field(default_factory=dict)
    answers: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        content = prompt_hash(self.script.request.prompt_token_ids, self.script.request.params)
        for sequence in self.group.sequences:
            self.contents[sequence.choice] = content
            self.answers[sequence.choice] = []

    @property
    def id(self) -> str:
        """The id of the request."""
        return self.script.request.id

    @property
    def is_open(self) -> bool:
        """Whether the request has unfinished choices."""
        return self.group.status is not FINISHED

    def gain(self, sequence: Sequence, token_id: int) -> str | None:
        """Process a token of one choice; return the finish reason if the choice ends with it.

        S4: it is the next token of the reference and of the sequence. S11: the choice has not ended before.
        """
        choice, answer = sequence.choice, self.answers[sequence.choice]
        content = self.contents[choice]
        assert choice not in self.ends, f"{self.id}: a token after the end of choice {choice}"
        params = self.script.request.params
        expected = sample_token(content, choice, num_words(params))
        assert token_id == expected, f"{self.id}: token {len(answer) + 1} of choice {choice} is wrong"
        answer.append(token_id)
        assert sequence.output_token_ids[len(answer) - 1] == token_id
        self.contents[choice] = prefix_hash(token_id, content)
        self.num_gained += 1
        if len(answer) == params.max_tokens:
            return "length"
        # With few different tokens, the ids alone would end too many choices at the same place.
        number = self.contents[choice] if params.top_k else token_id
        return "stop" if number % 1000 < 1000 * self.script.ends_early else None

    def end(self, sequence: Sequence, reason: str) -> None:
        """Record the end of one choice, which must end once."""
        assert sequence.choice not in self.ends, f"{self.id}: choice {sequence.choice} ends twice"
        self.ends[sequence.choice] = reason
        answer, output = self.answers[sequence.choice], sequence.output_token_ids
        # Accepted draft tokens may go beyond the end.
        assert answer == output[: len(answer)], f"{self.id}: tokens lost or doubled"
        assert answer == output or (reason == "stop" and self.script.request.params.top_k), (
            f"{self.id}: tokens are lost"
        )


def prompt_hash(prompt: tuple[int, ...], params: SamplingParams) -> int:
    """The content of a prompt's last slot."""
    content = params.seed or 0
    for token_id in prompt:
        content = prefix_hash(token_id, content)
    return content


def search_alone(prompt: tuple[int, ...], params: SamplingParams) -> list[Hypothesis]:
    """Run a beam search without a scheduler: any schedule must give the same result."""
    search, beams = BeamSearch(params, (EOS_TOKEN_ID,)), [prompt_hash(prompt, params)]
    while True:
        candidates = [logprobs_after(content, params.num_sampled_logprobs or 0) for content in beams]
        moves = search.advance([list(zip(each.top_token_ids, each.top_logprobs, strict=True)) for each in candidates])
        if moves is None:
            return search.results()
        beams = [prefix_hash(move.token_id, beams[move.parent]) for move in moves]
