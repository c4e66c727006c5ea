"""The last responses of one connection, which the next ones may go on from, kept ones or not.

It is gone with the connection. A response that went on from another one refers to it, so the
items of a conversation are there once. They are kept as JSON, which takes an eighth of the memory of objects.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import orjson

from app.api.http.byte_budget import ByteBudget
from app.api.responses.item_kinds import MAX_CONVERSATION_BYTES
from app.api.responses.output_items import OutputItem
from app.api.responses.parse_response import NOTHING_KEPT, KeptResponses
from app.contract.errors import InvalidValue, PreviousResponseNotFound

MAX_RESPONSES = 16
MAX_HOPS = 1024  # of a conversation
RESPONSE_BYTES = 256  # of the objects of a response, beside its items
_PARAM = "previous_response_id"


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """A response: the one that it went on from, and the JSON of its own items, those of its output at last."""

    previous: Remembered | None
    items: bytes
    output: bytes

    @property
    def num_bytes(self) -> int:
        """The memory that it takes without the one that it went on from."""
        return RESPONSE_BYTES + len(self.items) + len(self.output)

    def conversation(self) -> list[Remembered]:
        """Return the responses up to this one, the newest first.

        Raises:
            PreviousResponseNotFound: there are too many.
            InvalidValue: their inputs are too large.
        """
        found: list[Remembered] = []
        response: Remembered | None = self
        num_bytes = 0
        while response is not None:
            found.append(response)
            num_bytes += len(response.items)
            if num_bytes > MAX_CONVERSATION_BYTES:
                raise InvalidValue(
                    f"{_PARAM} names a conversation of more than {MAX_CONVERSATION_BYTES} bytes; send its last items "
                    "as input, without it.",
                    param=_PARAM,
                )
            if len(found) > MAX_HOPS:
                raise PreviousResponseNotFound(
                    f"Previous response not found: the conversation has more than {MAX_HOPS} responses, which is as "
                    "far as this connection remembers; send the whole conversation as input.",
                    param=_PARAM,
                )
            response = response.previous
        return found


class ResponseMemory:
    """The responses of one connection. `budget` is shared with all others. Loop only, but for those of `next`."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._num_bytes = 0  # taken of the budget
        self._responses: OrderedDict[str, Remembered] = OrderedDict()

    def __len__(self) -> int:
        return len(self._responses)

    def next(self, kept: KeptResponses = NOTHING_KEPT) -> NextResponse:
        """Return the reader of this memory, and then of what is `kept`, for one request; it remembers its response."""
        return NextResponse(self, kept)

    def find(self, response_id: str) -> Remembered | None:
        """Return a response; None if it is not one of the last ones. Any thread."""
        return self._responses.get(response_id)

    def add(self, response_id: str, response: Remembered) -> None:
        """Remember a response if there is memory for it, and forget the oldest of too many."""
        self._responses[response_id] = response
        if len(self._responses) > MAX_RESPONSES:
            self._responses.popitem(last=False)
        if not self._settle():
            del self._responses[response_id]
            self._settle()

    def clear(self) -> None:
        """Forget all responses. Idempotent."""
        self._responses.clear()
        self._settle()

    def _settle(self) -> bool:
        """Take or give back the difference to what is remembered now; return whether there is so much."""
        seen: set[Remembered] = set()
        for response in self._responses.values():
            found: Remembered | None = response
            while found is not None and found not in seen:
                seen.add(found)
                found = found.previous
        num_bytes = sum(each.num_bytes for each in seen)
        if num_bytes > self._num_bytes and not self._budget.take(num_bytes - self._num_bytes):
            return False
        self._budget.give_back(max(0, self._num_bytes - num_bytes))
        self._num_bytes = num_bytes
        return True


class NextResponse:
    """Implements `KeptResponses` for one request, and remembers its response at the end. One owner at a time."""

    def __init__(self, memory: ResponseMemory, kept: KeptResponses) -> None:
        self._memory = memory
        self._kept = kept
        self._previous: Remembered | None = None
        self._num_before = 0
        self._response_id = ""
        self._items = b"[]"

    def num_bytes_of(self, response_id: str) -> int:
        found = self._memory.find(response_id)
        if found is None:
            return self._kept.num_bytes_of(response_id)
        return sum(response.num_bytes for response in found.conversation())

    def items_of(self, response_id: str) -> Sequence[object]:
        self._previous = self._memory.find(response_id)
        if self._previous is None:
            return self._kept.items_of(response_id)  # they become items of the new one: it has all before it
        items: list[object] = []
        for response in reversed(self._previous.conversation()):
            items += [*orjson.loads(response.items), *orjson.loads(response.output)]
        self._num_before = len(items)
        return items

    def begin(self, response_id: str, items: Sequence[object]) -> None:
        self._response_id = response_id
        self._items = msgspec.json.encode([*items[self._num_before :]])  # bytes of orjson keep 4 KiB each

    def end(self, output: Sequence[OutputItem]) -> None:
        """Remember the response, with its output. Loop only."""
        if self._response_id:
            remembered = Remembered(self._previous, self._items, msgspec.json.encode(output))
            self._memory.add(self._response_id, remembered)
