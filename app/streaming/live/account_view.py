"""How the watchers of one account see the engine: what the pictures show to others is left out here, and only here.

Of a request of another account there are its state and its number of blocks, never an id, a text or its number of
tokens. Which blocks are whose, and what a step computed of which of them, is shown only if the view is of all. The
figures are totals of the server, for every account the same: where one other client is served, they tell of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import msgspec

from app.contract.engine_figures import EngineFigures
from app.contract.engine_picture import (
    CopyRecord,
    EnginePicture,
    PictureGroup,
    Record,
    StateRecord,
    StepRecord,
    StepShare,
)
from app.contract.live_state import (
    COPIED,
    NO_OWNER,
    LiveChange,
    LiveCopy,
    LiveGroup,
    LiveHost,
    LiveShare,
    LiveState,
    LiveStep,
)
from app.observe.shown_id import shown_id
from app.streaming.live.live_message import LiveMessage
from app.streaming.live.picture_blocks import (
    Cells,
    PictureBlocks,
    num_blocks_of,
    num_host_blocks_of,
    shown_tables,
)

_DIGITS, _MS_DIGITS = 4, 3  # of times in seconds, of durations in milliseconds


class AccountView:
    """The engine as one account sees it; `shows_all` shows whose all blocks are. One thread at a time."""

    def __init__(self, account: str, *, shows_all: bool) -> None:
        self._account = account
        self._shows_all = shows_all
        self._numbers: dict[str, int] = {}
        self._own: set[str] = set()  # the ids of the account's own requests, among those with a number
        self._last_number = 0
        self._last: LiveMessage | None = None
        self._began: float | None = None

    def next_message(
        self, blocks: PictureBlocks, records: Sequence[Record], num_lost: int, figures: EngineFigures
    ) -> LiveMessage:
        """Return the message of a picture, with the `records` of all that happened since the last one."""
        picture = blocks.picture
        if self._began is None:
            self._began = picture.time
        for group in picture.groups:
            self._number_of(group.request_id)
            if group.account == self._account:
                self._own.add(group.request_id)
        # Also those that began and ended since the last picture, and are in none.
        changes = (record for record in records if isinstance(record, StateRecord))
        self._own.update(change.request_id for change in changes if change.account == self._account)
        shown = sorted(filter(self._shows_blocks, picture.groups), key=lambda group: group.request_id in self._own)
        copies = [record for record in records if isinstance(record, CopyRecord)]
        owners = [(self._numbers[group.request_id], group) for group in shown]
        cells = blocks.cells(owners, copies, marks_unowned=self._shows_all)
        state = LiveState(
            time=self._at(picture.time),
            view="all" if self._shows_all else "own",
            block_size=picture.block_size,
            num_blocks=picture.num_blocks,
            blocks=blocks.counts,
            host=LiveHost(
                picture.num_host_blocks,
                picture.num_used_host_blocks,
                [(number, count) for number, group in owners if (count := num_host_blocks_of(group))],
            ),
            groups=[self._group(group) for group in picture.groups],
            records=[*self._records(records, cells, picture)],
            lost=num_lost,
            figures=figures,
        )
        unfinished = _unfinished(picture)
        self._numbers = {name: number for name, number in self._numbers.items() if name in unfinished}
        self._own &= unfinished
        number, before = (1, None) if self._last is None else (self._last.number + 1, self._last.cells)
        self._last = LiveMessage(number, msgspec.json.encode(state), cells, before)
        return self._last

    def _number_of(self, request_id: str) -> int:
        """Return the number of a group; one that is seen for the first time gets the next."""
        if request_id not in self._numbers:
            self._last_number += 1
            self._numbers[request_id] = self._last_number
        return self._numbers[request_id]

    def _shows_blocks(self, group: PictureGroup) -> bool:
        return self._shows_all or group.request_id in self._own

    def _at(self, time: float) -> float:
        return round(time - (self._began or 0.0), _DIGITS)

    def _group(self, group: PictureGroup) -> LiveGroup:
        seen = LiveGroup(
            n=self._numbers[group.request_id],
            own=group.request_id in self._own,
            state=group.state,
            rows=group.num_rows,
            blocks=num_blocks_of(group),
            preemptions=group.num_preemptions,
            swaps=group.num_swaps,
        )
        if not seen.own:
            return seen
        return msgspec.structs.replace(
            seen,
            id=shown_id(group.request_id),
            prompt=group.num_prompt,
            cached=group.num_cached,
            computed=group.num_computed,
            output=group.num_output,
            limit=group.max_tokens,
            tables=shown_tables(group),
        )

    def _records(
        self, records: Sequence[Record], cells: Cells, picture: EnginePicture
    ) -> Iterator[LiveStep | LiveCopy | LiveChange]:
        named = self._own | _unfinished(picture) if self._shows_all else self._own
        for record in records:
            if isinstance(record, StepRecord):
                shares = self._shares(record.shares, named, picture.block_size)
                duration_ms = round(record.duration_s * 1000, _MS_DIGITS)
                yield LiveStep(self._at(record.start_time), duration_ms, record.is_over_target, shares)
            elif not isinstance(record, CopyRecord):
                yield LiveChange(self._at(record.time), self._number_of(record.request_id), record.state)
            elif cells[record.target - 1] & COPIED:
                yield LiveCopy(self._at(record.time), record.source, record.target)

    def _shares(self, shares: Sequence[StepShare], named: Set[str], block_size: int) -> list[LiveShare]:
        """Return who had a part in a step; the parts of those not `named` are one, prompts there in whole blocks.

        A watcher takes a number that is in no group of the message for one of its own requests, which has ended.
        """
        shown, others = [], []
        for share in shares:
            if share.request_id in named:
                number = self._number_of(share.request_id)
                shown.append(LiveShare(number, share.num_prompt, share.num_decode, share.num_accepted))
            else:
                others.append(share)
        if others:
            num_prompt = sum(-(-share.num_prompt // block_size) * block_size for share in others)
            num_decode = sum(share.num_decode for share in others)
            shown.append(LiveShare(NO_OWNER, num_prompt, num_decode, sum(share.num_accepted for share in others)))
        return shown


def _unfinished(picture: EnginePicture) -> set[str]:
    return {group.request_id for group in picture.groups}
