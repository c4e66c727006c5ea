"""Makes the output items of a response, and their events, of what the model writes.

The events are the changes of the items, and the JSON body is their end: a response that is streamed and one that is
whole cannot differ.

Rules of this file:
- One item is open at a time. What does not continue it ends it: a text behind a call is another message.
- A message or reasoning begins with its first character, a call with its name. So only calls can be empty.
- A call whose arguments break off is incomplete; so is the item that a limit or an error cuts off.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.api.responses.asked import AskedResponse
from app.api.responses.open_items import OpenItem, OpenMessage, OpenReasoning, OpenSummary, open_call
from app.api.responses.output_items import OutputItem
from app.api.responses.response_events import ResponseEvent
from app.api.responses.text_logprobs import TextLogprobs
from app.contract.packed_logprobs import Logprobs
from app.text.answer.parsed import call_id
from app.text.reading.answer_events import CallBegin, CallEnd, Event, Reasoning, Text


class ResponseAssembler:
    """The output of one response as it grows. One owner; `logprobs` is None if texts have none."""

    def __init__(self, asked: AskedResponse, logprobs: TextLogprobs | None = None) -> None:
        self._asked = asked
        self._logprobs = logprobs
        self._done: list[OutputItem] = []
        self._open: OpenItem | None = None

    @property
    def output(self) -> list[OutputItem]:
        """The items so far; one that is open is incomplete."""
        return self._done if self._open is None else [*self._done, self._open.item("incomplete")]

    def take(self, events: Iterable[Event], logprobs: Logprobs | None = None) -> list[ResponseEvent]:
        """Take what new tokens complete, and their log-probabilities; return the events of it."""
        if logprobs is not None and self._logprobs is not None:
            self._logprobs.wait(logprobs)
        found: list[ResponseEvent] = []
        for event in events:
            self._add(event, found)
        if self._logprobs is not None and not self._is_in_text:
            self._logprobs.drop()
        return found

    def keep_text(self, text: str) -> bool:
        """Take text that goes on with a message, and make no event of it; return whether there is one."""
        if not isinstance(self._open, OpenMessage):
            return False
        self._open.keep(text)
        return True

    def end(self, *, is_cut: bool) -> list[ResponseEvent]:
        """Take the end of the answer, which a limit has cut off or not; return the events of it."""
        found: list[ResponseEvent] = []
        if self._open is not None:
            if self._logprobs is not None and self._logprobs.has_waiting:  # of tokens that have ended the answer
                found += self._open.add("")
            self._open.is_whole &= not is_cut
            self._close(found)
        return found

    @property
    def _is_in_text(self) -> bool:
        """Whether a message is open, or may be the first item."""
        return isinstance(self._open, OpenMessage) or (self._open is None and not self._done)

    def _add(self, event: Event, found: list[ResponseEvent]) -> None:
        """Take one event; add its own to `found`."""
        if isinstance(event, CallBegin):
            self._begin(self._open_call(event), found)
        elif isinstance(event, CallEnd):
            assert self._open is not None, "its call is open"
            self._open.is_whole = True
            self._close(found)
        elif event.text:
            if isinstance(event, Text) and not isinstance(self._open, OpenMessage):
                self._begin(OpenMessage(self._asked.response_id, self._next_index, self._logprobs), found)
            elif isinstance(event, Reasoning) and not isinstance(self._open, OpenReasoning | OpenSummary):
                make = OpenSummary if self._asked.has_summary else OpenReasoning
                self._begin(make(self._asked.response_id, self._next_index), found)
            assert self._open is not None, "a call with arguments has begun"
            found += self._open.add(event.text)

    @property
    def _next_index(self) -> int:
        """The place of an item that begins now."""
        return len(self._done) + (self._open is not None)

    def _open_call(self, event: CallBegin) -> OpenItem:
        response_id = self._asked.response_id
        tool = self._asked.called.of(event.name)
        return open_call(response_id, self._next_index, tool, call_id(response_id, 0, event.call))

    def _begin(self, item: OpenItem, found: list[ResponseEvent]) -> None:
        """End the item that is open, if there is one, and begin another."""
        self._close(found)
        self._open = item
        found += item.begin()

    def _close(self, found: list[ResponseEvent]) -> None:
        if self._open is not None:
            item = self._open.item("completed" if self._open.is_whole else "incomplete")
            found += self._open.end(item)
            self._done.append(item)
            self._open = None
