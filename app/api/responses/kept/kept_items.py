"""The items of kept responses: what a conversation goes on from, and the list of an input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec
import orjson

from app.api.body.tool_messages import MAX_ID_CHARS
from app.api.responses.answered_response import AnsweredResponse
from app.api.responses.asked import AskedResponse
from app.api.responses.item_kinds import MAX_CONVERSATION_BYTES, MAX_ITEMS, READ_FIELDS
from app.api.responses.open_items import ID_BYTES
from app.api.wire.resumable_answer import Resumable
from app.contract.errors import InvalidValue, PreviousResponseNotFound, ResponseInProgress, StreamNotFound
from app.streaming.kept.kept_streams import KeptStreams
from app.streaming.kept.live_stream import LiveStream, State

MAX_HOPS = 1024  # of a conversation
_PARAM = "previous_response_id"
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_TEXT_TYPES = {"assistant": "output_text"}


def asked_of(stream: LiveStream) -> AskedResponse | None:
    """Return the part of the request that a kept response needs; None if the stream is no response. Any thread."""
    asked = Resumable.of(stream).request.asked
    return asked if isinstance(asked, AskedResponse) else None


class Conversations:
    """Implements `KeptResponses` over those of the key named `tenant`. Any thread: what has ended does not change.

    With `is_lenient` a conversation whose beginning is gone is that of its rest.
    """

    def __init__(self, kept: KeptStreams, tenant: str | None, *, is_lenient: bool = False) -> None:
        self._kept = kept
        self._tenant = tenant
        self._is_lenient = is_lenient

    def num_bytes_of(self, response_id: str) -> int:
        with suppress(PreviousResponseNotFound):  # `items_of` tells it
            return sum(_num_input_bytes(stream) + stream.told_bytes for stream in self.streams_to(response_id))
        return 0

    def items_of(self, response_id: str) -> Sequence[object]:
        """Return all items of the conversation up to a response.

        Raises:
            PreviousResponseNotFound: one of its responses is unknown, of another key, or not kept any longer.
            ResponseInProgress: the response has not ended.
            InvalidValue: it has failed, or the conversation is too long.
        """
        parts: list[list[object]] = []
        num_bytes = num_items = 0
        try:
            for stream in self.streams_to(response_id):
                num_bytes += _num_input_bytes(stream)
                _check_length(num_bytes, MAX_CONVERSATION_BYTES, "bytes")  # before these are read
                parts.append(_items_of(stream))
                num_items += len(parts[-1])
                _check_length(num_items, MAX_ITEMS, "items")
        except PreviousResponseNotFound:
            if not self._is_lenient:
                raise
        return [item for part in reversed(parts) for item in part]

    def begin(self, response_id: str, items: Sequence[object]) -> None:
        """Do nothing: the request of a response that is kept has its items."""

    def streams_to(self, response_id: str | None) -> Iterator[LiveStream]:
        """Yield the responses of a conversation, the newest first.

        Raises:
            PreviousResponseNotFound, InvalidValue: see `items_of`.
        """
        first, num_hops = response_id, 0
        while response_id is not None:
            stream, asked = None, None
            try:
                stream = self._kept.find(response_id, self._tenant)
                asked = asked_of(stream)
            except StreamNotFound:
                pass
            if stream is None or asked is None:
                raise PreviousResponseNotFound(
                    f"Previous response with id {(first or '')[:100]!r} not found: it, or one before it, is not kept; "
                    "send the whole conversation as input.",
                    param=_PARAM,
                )
            num_hops += 1
            if num_hops > MAX_HOPS:
                raise InvalidValue(
                    f"previous_response_id names a conversation of more than {MAX_HOPS} responses; send its items as "
                    "input, without it.",
                    param=_PARAM,
                )
            yield stream
            response_id = asked.previous_response_id


def _check_length(length: int, limit: int, unit: str) -> None:
    if length > limit:
        raise InvalidValue(
            f"{_PARAM} names a conversation of more than {limit} {unit}; send its last items as input, without it.",
            param=_PARAM,
        )


def _num_input_bytes(stream: LiveStream) -> int:
    asked = asked_of(stream)
    assert asked is not None
    return len(asked.own_items)


def _items_of(stream: LiveStream) -> list[object]:
    """Return the items of a response: its own input, and its output."""
    asked = asked_of(stream)
    assert asked is not None
    if stream.state is State.RUNNING:
        raise ResponseInProgress(
            f"The response {stream.id} has not ended; go on from it when it has, or cancel it.", param=_PARAM
        )
    if stream.state is State.FAILED:
        raise InvalidValue(f"The response {stream.id} has failed; go on from the one before it.", param=_PARAM)
    request = replace(Resumable.of(stream).request, stream=True)
    answered = AnsweredResponse(request, replace(asked, has_logprobs=False, background=False))
    [transcript] = stream.transcripts
    position = 0
    while position < transcript.last:  # the text at once, and then its tail
        delta = transcript.cut(position, transcript.last)
        answered.add(delta)
        position += len(delta.token_ids) or 1
    if 0 in stream.ends:
        answered.finish(stream.ends[0].reason)
    return [*map(_read_fields, orjson.loads(asked.own_items)), *msgspec.to_builtins(answered.output)]


def _read_fields(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an item that was checked when it came, with the fields that are read: those of all items are many."""
    names = READ_FIELDS.get(item.get("type") or "message", ("type",))
    return {name: item[name] for name in names if name in item}


def listed_items(stream: LiveStream) -> list[dict[str, Any]]:
    """Return the items of a response's own input as clients list them, each with an id of its own. Any thread."""
    asked = asked_of(stream)
    assert asked is not None
    items: list[Mapping[str, Any]] = orjson.loads(asked.own_items)
    taken = set[str]()
    return [_listed(asked.response_id, index, item, taken) for index, item in enumerate(items)]


def _listed(response_id: str, index: int, item: Mapping[str, Any], taken: set[str]) -> dict[str, Any]:
    """Return an item with its id or, if it has none or an earlier one has it, with one that is made of its place."""
    kind, item_id = item.get("type") or "message", item.get("id")
    if not isinstance(item_id, str) or not 0 < len(item_id) <= MAX_ID_CHARS or item_id in taken:
        digest = blake2b(f"{response_id} input {index}".encode(), digest_size=ID_BYTES).hexdigest()
        item_id = f"{_PREFIXES.get(kind, 'item')}_{digest}"
    taken.add(item_id)
    listed = {**item, "type": kind, "id": item_id}
    if kind == "message":
        listed["status"] = item.get("status") or "completed"
        content = item.get("content")
        if isinstance(content, str):
            text = {"type": _TEXT_TYPES.get(str(item.get("role")), "input_text"), "text": content}
            listed["content"] = [{**text, "annotations": []} if text["type"] == "output_text" else text]
    return listed
