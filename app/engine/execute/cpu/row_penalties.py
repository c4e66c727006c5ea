"""A sequence's changes to its logits before sampling: biases, penalties, a minimum length, as the kernels read them.

Only the listed ids are touched, so the cost of a step is the number of biases and different tokens. The entries of seen
tokens grow with the output, one for each different token.

A chunk has the tokens from its start on, draft tokens included. They replace those counted from that position on:
rejected draft tokens, and those that are computed again after a preemption. The kernel does not count the tokens after
the one that it samples from.
"""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect_left
from collections.abc import Collection, Sequence

import numpy as np

from app.engine.schedule.step_plan import RowStart
from app.kernels.cpu import records

# Of an entry: in the prompt, and once in the output.
IN_PROMPT, ONCE = 1, 2


class PromptIds:
    """The different tokens of the latest prompt, cached: the choices of one prompt start one after another."""

    def __init__(self) -> None:
        self._prompt: Sequence[int] = ()
        self._ids = np.empty(0, np.int32)

    def of(self, prompt_token_ids: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Return the different tokens in ascending order; the caller must not change the array."""
        if prompt_token_ids is not self._prompt:
            tokens = np.fromiter(prompt_token_ids, np.int32, len(prompt_token_ids))
            is_in_prompt = np.zeros(1 + int(tokens.max(initial=-1)), np.bool_)  # sorting 250,000 tokens takes longer
            is_in_prompt[tokens] = True
            self._prompt, self._ids = prompt_token_ids, np.flatnonzero(is_in_prompt).astype(np.int32)
        return self._ids


class RowPenalties:
    """The penalties of one running sequence. Engine thread only; `address` is where the kernels read them."""

    def __init__(self, start: RowStart, eos_token_ids: Collection[int], prompt_ids: PromptIds) -> None:
        sampling, biases = start.sampling, start.sampling.logit_bias
        endings = sampling.endings(eos_token_ids) if sampling.min_tokens else []
        self._num_prompt = len(start.prompt_token_ids)
        self._output: list[int] = []
        self._entries: dict[int, int] = {}  # the indices in `_seen` of the output's tokens
        self._seen_ids, self._seen = array("i"), array("i")
        if sampling.repetition != 1.0:
            self._seen_ids.frombytes(prompt_ids.of(start.prompt_token_ids).tobytes())
            self._seen.frombytes(np.full(len(self._seen_ids), IN_PROMPT, np.int32).tobytes())
        self._num_prompt_ids = len(self._seen_ids)
        self._fixed = (array("i", biases), array("f", biases.values()), array("i", endings))
        bias_ids, bias_values, ending_ids = (each.buffer_info()[0] for each in self._fixed)
        self._fields = records.Penalties(
            bias_ids=bias_ids,
            biases=bias_values,
            endings=ending_ids,
            num_biases=len(biases),
            num_endings=len(endings),
            repetition=sampling.repetition,
            presence=sampling.presence,
            frequency=sampling.frequency,
            num_prompt=self._num_prompt,
            min_tokens=sampling.min_tokens,
        )
        self.address = ctypes.addressof(self._fields)  # the record never moves
        self._update_pointers()
        self._count(start.output_token_ids if sampling.has_penalties else ())

    def replace_tokens(self, first: int, token_ids: Sequence[int]) -> None:
        """Replace the counted tokens from position `first` on by `token_ids`."""
        num_kept = first - self._num_prompt
        if num_kept < 0:
            token_ids, num_kept = token_ids[-num_kept:], 0
        while len(self._output) > num_kept:
            self._seen[self._entries[self._output.pop()]] -= ONCE
        self._count(token_ids)

    def _count(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            entry = self._entries.get(token_id)
            if entry is None:
                entry = self._entries[token_id] = self._find_entry(token_id)
            self._seen[entry] += ONCE
        self._output += token_ids
        self._fields.num_tokens = self._num_prompt + len(self._output)

    def _find_entry(self, token_id: int) -> int:
        """Return the index of the entry for a token that is new to the output: of the prompt, or appended."""
        entry = bisect_left(self._seen_ids, token_id, 0, self._num_prompt_ids)
        if entry < self._num_prompt_ids and self._seen_ids[entry] == token_id:
            return entry
        self._seen_ids.append(token_id)
        self._seen.append(0)
        self._update_pointers()
        return len(self._seen) - 1

    def _update_pointers(self) -> None:
        """Write the addresses of the entries, which may have moved, into the record."""
        self._fields.seen_ids, self._fields.num_seen = self._seen_ids.buffer_info()
        self._fields.seen = self._seen.buffer_info()[0]
