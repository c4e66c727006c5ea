"""A sequence group: all sequences of one request, and the state they share.

`ready` says whether the request's readers take tokens. A group that is not ready is not scheduled: WAITING,
PREEMPTED, SWAPPED and PAUSED ones keep their state. A RUNNING group that is not ready is about to pause: the group was
preempted and first has to gain the token that makes it a possible victim again, or a PAUSED group could hold blocks
that cannot be taken.

While a group is *folded* only its first open sequence, the leader, runs: the others wait until the leader has computed
the prompt and then fork from it. A group starts folded, and is folded again when it loses its blocks. Sequences that
have tokens of their answers by then cannot fork: they share only the blocks of the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.contract.requests import EngineRequest
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.search.beam_search import BeamSearch
from app.engine.schedule.sequence import PAUSED, RUNNING, WAITING, Sequence, SequenceStatus
from app.engine.schedule.step_plan import Sample
from app.observe.shown_id import shown_id


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The sequences of one request; made and changed by the scheduler alone.

    `sequences` are the initial ones, until the request ends, and `sequence_ids` theirs; `open` the unfinished ones, in
    the order of their choices (beams: best first), those without a token before the others; `active` the open ones that
    run when the group runs: the leader while the group is folded, else all.
    """

    id: int
    request: EngineRequest
    context: bytes  # what the KV blocks depend on besides token ids (see prefix_cache.chain_context)
    search: BeamSearch | None = None
    sampling: RowSampling = field(init=False)
    account: str = field(init=False)  # for the policy `fair`
    num_prompt: int = field(init=False)
    sort_key: tuple[float, ...] = ()
    sequences: list[Sequence] = field(default_factory=list)
    sequence_ids: tuple[int, ...] = ()
    open: list[Sequence] = field(default_factory=list)
    active: list[Sequence] = field(default_factory=list)
    samples: dict[int, Sample] = field(default_factory=dict)  # of beams, until all are sampled, by sequence id
    is_folded: bool = False
    status: SequenceStatus = WAITING
    ready: bool = True
    is_protected: bool = False  # lost its blocks, and has gained no token since
    last_step: int = 0  # the newest step that any of its sequences was part of
    turn_since: int = 0  # the step in which it took its seats, or gained a token after it had lost its blocks
    place: float = 0.0  # in virtual time, behind those that it waits for since it last gave way (see shares)
    next_since: int = 0  # the step in which it became the next to start, among prompts (0: none since it ran)
    first_scheduled_time: float | None = None
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache, or loaded, when it first started
    num_loaded_tokens: int = 0  # those of `num_cached_tokens` that came from a store outside of the process
    num_preemptions: int = 0
    num_swaps: int = 0  # those of `num_preemptions` that kept the blocks in host memory
    num_lost_tokens: int = 0  # computed, dropped, not found in the cache, and so computed again
    dropped: range = range(0)  # num_computed to num_scheduled when it last lost its blocks

    def __post_init__(self) -> None:
        self.sampling = RowSampling.of(self.request.params, self.request.constraint, self.request.account)
        self.account = self.request.account
        self.num_prompt = len(self.request.prompt_token_ids)

    def begin(self, sequences: list[Sequence]) -> None:
        """Take the initial sequences."""
        self.sequences, self.open = sequences, list(sequences)
        self.sequence_ids = tuple(sequence.id for sequence in sequences)

    def end(self) -> None:
        """Let go of the sequences, which refer to their group: the prompt would stay until cycles are collected."""
        self.sequences, self.open, self.active = [], [], []

    @property
    def num_seats(self) -> int:
        """How many running sequences the group counts for; beams that will fork count from the start."""
        return len(self.open) if self.search is None else self.request.params.num_sequences

    @property
    def num_computed(self) -> int:
        """Tokens that were computed for the group; the prompt counts once."""
        return self._total([sequence.num_computed for sequence in self.open])

    @property
    def num_scheduled(self) -> int:
        """Tokens that were computed or are in steps in flight; the prompt counts once."""
        return self._total([sequence.num_scheduled for sequence in self.open])

    def _total(self, counts: list[int]) -> int:
        return counts[0] + sum(max(0, count - self.num_prompt) for count in counts[1:])

    def fold(self) -> None:
        """Run only the leader, until `unfold`."""
        self.is_folded = len(self.open) > 1
        self.active = self.open[:1]

    def unfold(self) -> None:
        """Run all open sequences."""
        self.is_folded = False
        self.active = self.open

    def close(self, sequence: Sequence) -> None:
        """Take an ended sequence out; in a folded group the next one becomes the leader."""
        sequence.is_finished = True
        self.open.remove(sequence)
        if self.is_folded:
            self.fold()

    def check_integrity(self, block_size: int, promised: dict[int, int]) -> None:
        """Assert that an unfinished group is consistent; steps in flight sample `promised` tokens, by sequence id."""
        name = f"request {shown_id(self.request.id)}"
        assert self.open and not any(sequence.is_finished for sequence in self.open), f"{name}: ended ones are open"
        assert self.active == (self.open[:1] if self.is_folded else self.open), f"{name}: the wrong ones run"
        assert self.ready or self.status is not RUNNING or self.is_protected, f"{name}: does not pause"
        assert not (self.status is PAUSED and self.is_protected), f"{name}: paused, and its blocks cannot be taken"
        for sequence in self.open:
            num_promised = promised.get(sequence.id, 0) + (sequence.id in self.samples)
            sequence.check_integrity(num_promised, block_size)
