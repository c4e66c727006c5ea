"""Lines: every unfinished sequence stands in exactly one, by its state and by whether its readers want tokens.

Each line is in the policy's order. The rows are here too, because having one is part of a state: only RUNNING
sequences have a row, from the first step they are part of until they stop running.
"""

from __future__ import annotations

from app.engine.schedule.policy import insert_in_order, remove_in_order
from app.engine.schedule.rows import RowPool
from app.engine.schedule.sequence import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING, Sequence, SequenceStatus


class SequenceLines:
    """Keeps sequences in line and moves them between states. Engine thread only.

    `resuming` holds the PAUSED sequences whose readers want tokens again, `paused` the others.
    """

    def __init__(self, num_rows: int) -> None:
        self.rows = RowPool(num_rows)
        self.running: list[Sequence] = []
        self.paused: list[Sequence] = []
        self.resuming: list[Sequence] = []
        self._preempted: list[Sequence] = []
        self._waiting: list[Sequence] = []
        self._lines: dict[tuple[SequenceStatus, bool], list[Sequence]] = {
            (WAITING, True): self._waiting,
            (WAITING, False): [],
            (RUNNING, True): self.running,
            (RUNNING, False): self.running,
            (PAUSED, True): self.resuming,
            (PAUSED, False): self.paused,
            (PREEMPTED, True): self._preempted,
            (PREEMPTED, False): [],
        }

    @property
    def has_ready(self) -> bool:
        """Whether any sequence runs or could run."""
        return bool(self.running or self.resuming or self._preempted or self._waiting)

    @property
    def next_to_start(self) -> Sequence | None:
        """The ready sequence without blocks whose turn it is: preempted ones stand at the head of the line."""
        line = self._preempted or self._waiting
        return line[0] if line else None

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence in its line."""
        insert_in_order(self._line_of(sequence), sequence)

    def move(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Change the state of `sequence`; a FINISHED one leaves, and who no longer runs gives its row back.

        Raises:
            ValueError: `TRANSITIONS` has no such way; nothing was changed.
        """
        line = self._line_of(sequence)
        sequence.move_to(status)
        remove_in_order(line, sequence)
        if status is not FINISHED:
            insert_in_order(self._line_of(sequence), sequence)
        if sequence.row is not None:
            self.rows.release(sequence.row)
            sequence.row = None

    def set_ready(self, sequence: Sequence, ready: bool) -> None:
        """Note whether the readers of an unfinished sequence want tokens."""
        remove_in_order(self._line_of(sequence), sequence)
        sequence.ready = ready
        insert_in_order(self._line_of(sequence), sequence)

    def check_integrity(self) -> list[Sequence]:
        """Check lines, states and rows against each other and return all sequences in line.

        Raises:
            AssertionError: a sequence is in the wrong line or out of order, or a row is lost or doubled.
        """
        sequences: dict[int, Sequence] = {}
        for (status, ready), line in self._lines.items():
            assert line == sorted(line, key=lambda sequence: sequence.sort_key), f"{status}: out of order"
            for sequence in line:
                assert sequence.status is status, f"sequence {sequence.id} is in the line of {status}"
                assert sequence.ready is ready or status is RUNNING, f"sequence {sequence.id} is in the wrong line"
                assert sequence.row is None or status is RUNNING, f"sequence {sequence.id} has a row"
                assert sequences.setdefault(sequence.id, sequence) is sequence, "two sequences have one id"
        rows = [sequence.row for sequence in self.running if sequence.row is not None]
        self.rows.check_integrity(rows)
        num_lined = sum(len(line) for key, line in self._lines.items() if key != (RUNNING, False))
        assert num_lined == len(sequences), "a sequence is in two lines"
        return list(sequences.values())

    def _line_of(self, sequence: Sequence) -> list[Sequence]:
        if sequence.status is FINISHED:
            return []
        return self._lines[sequence.status, sequence.ready]
