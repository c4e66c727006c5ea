"""Writes the masks of sequences into the shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from app.text.grammar.children.mask_memory import MaskMemory
from app.text.grammar.children.mask_messages import Setup
from app.text.grammar.row_mask import Phase, Place, RowMask


class MaskWriter:
    """Writes masks, each by one thread for one sequence at a time. Any mask thread."""

    def __init__(self, memory: MaskMemory, setup: Setup) -> None:
        self._memory = memory
        self._mask_bytes = 4 * setup.num_words
        unending = bytearray(b"\xff" * self._mask_bytes)
        for token_id in setup.eos_token_ids:
            unending[token_id >> 3] &= ~(1 << (token_id & 7)) & 0xFF
        self._unending, self._nothing = bytes(unending), bytes(self._mask_bytes)

    def write(self, mask: RowMask, region: int, place: Place, end: bytes) -> None:
        """Write the mask at one place of a sequence, unless `region` is -1; its matcher may be in error then.

        `end` is the end of the text in the grammar there.
        """
        memory = self._memory
        if region < 0:
            return
        assert mask.matcher is not None
        if place.phase is Phase.THINKING:
            if mask.gate.must_close(place):
                assert mask.gate.marks is not None
                memory.write(region, self._nothing)
                memory.allow(region, mask.gate.marks.close_id)
            else:
                memory.write(region, self._unending)
            return
        mask.matcher.unsafe_compute_mask_ptr(memory.address(region), self._mask_bytes)
        if mask.matcher.is_error():
            return
        mask.limit(memory.mask(region), end)
        if place.phase is Phase.OUTSIDE and mask.gate.marks is not None:
            memory.allow(region, mask.gate.marks.open_id)

    def write_behind(self, mask: RowMask, region: int, first_region: int, token_ids: Sequence[int]) -> tuple[int, bool]:
        """Write the masks behind tokens that may follow, up to the first that is forbidden or ends the answer.

        The sequence's own mask is in `region`. Its matcher may be in error then.

        Returns:
            How many there are, and whether the answer ends with the next token.
        """
        place, end, matcher, num_consumed, count, is_complete = mask.place, mask.end, mask.matcher, 0, 0, False
        if matcher is None:  # it has failed
            return 0, False
        for token_id in token_ids:
            before, place = place, mask.gate.after(place, token_id)
            if before.phase is not Phase.THINKING and place.phase is Phase.ANSWERING:
                # Not by `validate_tokens`, which forbids all without an error where a lexer is spent.
                if not self._memory.allows(region, token_id) or not matcher.consume_token(token_id):
                    break
                num_consumed += 1
                end = mask.behind(end, token_id)
                if is_complete := matcher.is_stopped() and not matcher.is_error():
                    break
            region = first_region + count
            self.write(mask, region, place, end)
            if matcher.is_error():
                break
            count += 1
        if num_consumed:
            matcher.rollback(num_consumed)
        return count, is_complete
