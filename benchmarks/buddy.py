"""What the paper compares with: one contiguous reservation per request, as it assumes of Orca (section 6.1).

Memory comes from a buddy allocator. Reserved is the prompt and space for the output: `max` the model's full context,
`pow2` the next power of two of the output's length, `oracle` exactly that length, which is unknown in practice.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from app.loadgen.lengths import Lengths

MAX_CONTEXT = 2048

POLICIES: dict[str, Callable[[Lengths], int]] = {
    "max": lambda lengths: MAX_CONTEXT,
    "pow2": lambda lengths: lengths.num_prompt + power_of_two(lengths.num_answer),
    "oracle": lambda lengths: lengths.num_prompt + lengths.num_answer,
}


class Chunk(NamedTuple):
    """A piece of memory, a power of two long."""

    begin: int
    size: int


class BuddyAllocator:
    """Hands out powers of two of `num_slots` token slots; a freed chunk is united with its buddy."""

    def __init__(self, num_slots: int) -> None:
        self._free: set[Chunk] = set()
        begin = 0
        for bit in reversed(range(num_slots.bit_length())):
            if num_slots >> bit & 1:
                self._free.add(Chunk(begin, 1 << bit))
                begin += 1 << bit

    def allocate(self, size: int) -> Chunk | None:
        """Return the smallest free chunk for `size` slots, split as far as possible; None if there is none."""
        fitting = [chunk for chunk in self._free if chunk.size >= size]
        if not fitting:
            return None
        chunk = min(fitting, key=lambda chunk: (chunk.size, chunk.begin))
        self._free.remove(chunk)
        begin, end = chunk.begin, chunk.size
        while end // 2 >= size:
            end //= 2
            self._free.add(Chunk(begin + end, end))
        return Chunk(begin, end)

    def free(self, chunk: Chunk) -> None:
        """Take a chunk back."""
        begin, size = chunk
        while (buddy := Chunk(begin ^ size, size)) in self._free:
            self._free.remove(buddy)
            begin, size = min(begin, buddy.begin), 2 * size
        self._free.add(Chunk(begin, size))


class _Running:
    def __init__(self, lengths: Lengths, chunk: Chunk) -> None:
        self.lengths = lengths
        self.chunk = chunk
        self.num_generated = 0


class Reservation(NamedTuple):
    """Slots after a step: reserved, holding a token; and the requests that run."""

    num_reserved: int
    num_filled: int
    num_running: int


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less than `number`."""
    return 1 << (number - 1).bit_length()


def run(load: Iterable[Lengths], policy: str, num_slots: int) -> list[Reservation]:
    """Answer all requests in order, a token for each per step; return what is reserved while requests wait."""
    memory, waiting, running = BuddyAllocator(num_slots), list(load)[::-1], []
    steps = []
    while waiting:
        while waiting and (chunk := memory.allocate(POLICIES[policy](waiting[-1]))) is not None:
            running.append(_Running(waiting.pop(), chunk))
        if not waiting:
            break
        steps.append(
            Reservation(
                sum(each.chunk.size for each in running),
                sum(each.lengths.num_prompt + each.num_generated for each in running),
                len(running),
            )
        )
        for each in running:
            each.num_generated += 1
        for each in [each for each in running if each.num_generated == each.lengths.num_answer]:
            memory.free(each.chunk)
            running.remove(each)
    return steps
