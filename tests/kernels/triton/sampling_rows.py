"""State rows for the tests of the sampling kernels, and the tokens of the host sampler for the same rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from app.contract.grammar import Constraint, Grammar, GrammarKind
from app.contract.sampling_defaults import SamplingDefaults
from app.contract.sampling_params import SamplingParams
from app.engine.execute.host_sampler import Sampler, token_logprobs
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import RowStart, SampleLogprobs
from app.kernels.triton import row_layout

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EOS = (1,)
UNWRITTEN = -77_777_777  # the value of memory that a kernel must overwrite, or must not read


def start(row, *, prompt=(5, 6), output=(), choice=0, has_masks=False, **params) -> RowStart:
    """The start of a row, with parameters as after admission; greedy by default. `has_masks`: draws may have some."""
    given = SamplingParams(**{"seed": 0, "max_tokens": None, "temperature": 0.0, **params})
    constraint = Constraint(Grammar(GrammarKind.REGEX, "a")) if has_masks else None
    sampling = RowSampling.of(given.with_defaults(SamplingDefaults()), constraint)
    return RowStart(row, row, choice, sampling, tuple(prompt), tuple(output))


def bits(value: float) -> int:
    """The bits of a float32 as an int32."""
    return int(np.float32(value).view(np.int32))


def signed(value: int) -> int:
    """The low 32 bits of an integer as an int32."""
    return int(np.uint32(value & 0xFFFF_FFFF).view(np.int32))


def write_row(state_SW: Tensor, seen_SV: Tensor, given: RowStart) -> None:
    """Write everything that the kernels read of a row, and nothing else."""
    sampling, row, num_prompt = given.sampling, state_SW[given.row], len(given.prompt_token_ids)
    stop_ids = sorted({*EOS, *sampling.stop_token_ids}) if sampling.min_tokens else []
    has_penalties = sampling.presence or sampling.frequency or sampling.repetition != 1.0
    columns = {
        row_layout.TOKEN: (given.prompt_token_ids + given.output_token_ids)[-1],
        row_layout.POSITION: num_prompt + len(given.output_token_ids) - 1,
        row_layout.FLAGS: row_layout.CHANGES_LOGITS
        * bool(sampling.logit_bias or has_penalties or sampling.min_tokens or sampling.constraint)
        | row_layout.MASKS * (sampling.constraint is not None)
        | row_layout.PENALIZES * bool(has_penalties)
        | row_layout.FILTERS * (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)
        | row_layout.LOGPROBS * (sampling.num_logprobs is not None),
        row_layout.CHOICE: given.choice,
        row_layout.SEED_LOW: signed(sampling.seed),
        row_layout.SEED_HIGH: signed(sampling.seed >> 32),
        row_layout.TEMPERATURE: bits(sampling.temperature),
        row_layout.TOP_K: sampling.top_k,
        row_layout.TOP_P: bits(sampling.top_p),
        row_layout.MIN_P: bits(sampling.min_p),
        row_layout.REPETITION: bits(sampling.repetition),
        row_layout.PRESENCE: bits(sampling.presence),
        row_layout.FREQUENCY: bits(sampling.frequency),
        row_layout.NUM_PROMPT: num_prompt,
        row_layout.MIN_TOKENS: sampling.min_tokens,
        row_layout.NUM_LOGPROBS: -1 if sampling.num_logprobs is None else sampling.num_logprobs,
        row_layout.NUM_BIASES: len(sampling.logit_bias),
        row_layout.NUM_ENDINGS: len(stop_ids),
    }
    for index, (token, bias) in enumerate(sampling.logit_bias.items()):
        columns |= {row_layout.BIAS_IDS + index: token, row_layout.BIASES + index: bits(bias)}
    columns |= {row_layout.ENDINGS + index: token for index, token in enumerate(stop_ids)}
    row[list(columns)] = torch.tensor(list(columns.values()), dtype=torch.int32, device=row.device)
    if has_penalties:
        counts = seen_SV[given.row].cpu().numpy()
        counts[:] = 0
        np.add.at(counts, list(given.output_token_ids), row_layout.SEEN_ONCE)
        counts[list(given.prompt_token_ids)] |= row_layout.SEEN_IN_PROMPT
        seen_SV[given.row] = torch.from_numpy(counts)


@dataclass
class SampleBatch:
    """Logits [R, V] and the row start that samples from each, in shuffled state rows; None is padding."""

    logits_RV: Tensor
    starts: Sequence[RowStart | None]
    positions: Sequence[int] = ()  # of the rows whose logits these are; by default those of the last known tokens
    state_SW: Tensor = field(init=False)
    seen_SV: Tensor = field(init=False)
    sampled_rows_R: Tensor = field(init=False)
    logit_rows_R: Tensor = field(init=False)
    positions_T: Tensor = field(init=False)

    def __post_init__(self) -> None:
        count, width = self.logits_RV.shape
        rng = random.Random(count)
        rows = rng.sample(range(1, count + 3), count)
        self.starts = [given and given._replace(row=row) for given, row in zip(self.starts, rows, strict=True)]
        self.positions = list(self.positions) or [
            len(given.prompt_token_ids + given.output_token_ids) - 1 if given else -1 for given in self.starts
        ]
        offsets = rng.sample(range(count + 3), count)
        self.state_SW = torch.full((count + 3, row_layout.row_width(8)), UNWRITTEN, dtype=torch.int32, device=DEVICE)
        self.seen_SV = torch.full((count + 3, width), -7, dtype=torch.int16, device=DEVICE)
        positions = torch.full((count + 3,), UNWRITTEN, dtype=torch.int32)
        positions[offsets] = torch.tensor(self.positions, dtype=torch.int32)
        for given in filter(None, self.starts):
            write_row(self.state_SW, self.seen_SV, given)
        self.logits_RV = self.logits_RV.to(DEVICE)
        self.sampled_rows_R, self.logit_rows_R = (
            torch.tensor(numbers, dtype=torch.int32, device=DEVICE)
            for numbers in ([given.row if given else 0 for given in self.starts], offsets)
        )
        self.positions_T = positions.to(DEVICE)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """State rows, sampled rows, logit rows and positions, as the kernels read them."""
        return self.state_SW, self.sampled_rows_R, self.logit_rows_R, self.positions_T

    def sampled(self) -> list[int]:
        """The tokens of the host sampler, row by row; 0 for padding."""
        sampler, logits_RV, result = Sampler(EOS), self.logits_RV.cpu(), []
        for index, given in enumerate(self.starts):
            if given is None:
                result.append(0)
                continue
            sampler.start(given)
            position = [self.positions[index] + 1]
            [(token_id, _)] = sampler.sample(logits_RV[index : index + 1], [given.row], position)
            result.append(token_id)
        return result

    def reported(self, token_ids: Sequence[int]) -> list[SampleLogprobs | None]:
        """The log-probabilities of the host sampler for these tokens, row by row; None if not requested."""
        result: list[SampleLogprobs | None] = []
        for logits_V, given, token_id in zip(self.logits_RV.cpu(), self.starts, token_ids, strict=True):
            count = None if given is None else given.sampling.num_logprobs
            result.append(None if count is None else token_logprobs(logits_V, token_id, count))
        return result
