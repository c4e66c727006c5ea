"""Sequence groups as the scheduler makes them, and samples for them, for tests of the output processor."""

from __future__ import annotations

import codecs

from app.contract.requests import EngineRequest
from app.contract.sampling_params import SamplingParams
from app.engine.output_processor import OutputProcessor
from app.engine.schedule.group import SequenceGroup
from app.engine.schedule.search.beam_search import BeamSearch
from app.engine.schedule.sequence import Sequence
from app.engine.schedule.step_plan import Sample, SampleLogprobs
from app.engine.schedule.step_results import StepProgress
from tests.text.toys import toy

TOKENIZER, BACKEND = toy("byte_level")
EOS = TOKENIZER.special_tokens["</s>"]
IDS = {TOKENIZER.token_bytes(token_id): token_id for token_id in reversed(range(TOKENIZER.vocab_size))}
BYTES = [IDS[bytes([byte])] for byte in "🙂".encode()]
TEXT_IDS = sorted(
    {EOS + 1, *BYTES, *TOKENIZER.encode("abc ab é猫🙂👩‍👩‍👧e\u0301 the dog.<think>"), BACKEND.token_to_id("Ģ")}
)


def decode_complete(token_ids: list[int]) -> str:
    """The text of `token_ids`, without an incomplete character at its end."""
    special = set(TOKENIZER.special_tokens.values())
    raw = b"".join(TOKENIZER.token_bytes(token_id) for token_id in token_ids if token_id not in special)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw)


def make_group(
    group_id: int = 1, *, prompt: tuple[int, ...] = (7, 8, 9), is_prompt_only: bool = False, **params
) -> SequenceGroup:
    """The group of a request that arrived at 10.0; the ids of its sequences begin at 100 * `group_id`."""
    params = {"max_tokens": 100, "seed": 0, **params}
    request = EngineRequest(
        f"request-{group_id}", prompt, SamplingParams(**params), 10.0, is_prompt_only=is_prompt_only
    )
    search = BeamSearch(request.params, {EOS}) if request.params.use_beam_search else None
    group = SequenceGroup(group_id, request, context=b"", search=search)
    first = Sequence.first_of(group, 100 * group_id)
    others = range(1, 1 if search else request.params.num_sequences)
    group.begin([first, *(first.fork(first.id + choice, choice) for choice in others)])
    return group


def make_sequence(group_id: int = 1, **params) -> Sequence:
    """The only sequence of a request."""
    return make_group(group_id, **params).sequences[0]


def make_sample(sequence: Sequence, token_id: int, logprob: float | None = None) -> Sample:
    """A sampled token; with a `logprob` also the three most likely tokens."""
    found = None if logprob is None else SampleLogprobs(logprob, 2, (token_id + 1, token_id, 3), (-0.25, logprob, -2.0))
    return Sample(sequence.id, token_id, found)


class FinishRecorder:
    """The part of a scheduler that an output processor calls; records the finished sequences and groups."""

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.groups: list[SequenceGroup] = []

    def finish(self, sequence: Sequence) -> None:
        self.sequences.append(sequence)

    def finish_group(self, group: SequenceGroup) -> None:
        self.groups.append(group)

    def take(self) -> list[Sequence]:
        """Return the sequences that were finished since the last call."""
        ended, self.sequences = self.sequences, []
        return ended


def make_processor(*groups: SequenceGroup, tokenizer=TOKENIZER) -> tuple[OutputProcessor, FinishRecorder]:
    """An output processor with these groups, and the recorder of what it finishes."""
    finishes = FinishRecorder()
    output = OutputProcessor(finishes, tokenizer, {EOS})
    for group in groups:
        assert output.add(group) == []
    return output, finishes


def make_progress(*tokens: tuple, searched: tuple[SequenceGroup, ...] = ()) -> StepProgress:
    """The progress of a step; each of `tokens` is (sequence, token id) or (sequence, token id, log-probability)."""
    gained = [(sequence, make_sample(sequence, *rest)) for sequence, *rest in tokens]
    return StepProgress(gained, list(searched), list(searched))
