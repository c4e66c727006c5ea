"""Policies and their order."""

import random

import pytest

from app.engine.schedule.policy import fcfs, insert_in_order, remove_in_order
from app.engine.schedule.sequence import Sequence
from tests.engine.schedule.fake_model import make_request


def make_sequence(sequence_id: int, arrival_time: float) -> Sequence:
    sequence = Sequence.from_request(sequence_id, make_request(f"r{sequence_id}", arrival_time=arrival_time))
    sequence.sort_key = fcfs(sequence)
    return sequence


def test_fcfs_orders_by_arrival_then_by_id():
    keys = [make_sequence(1, 2.0).sort_key, make_sequence(2, 1.0).sort_key, make_sequence(3, 1.0).sort_key]
    assert sorted(keys) == [keys[1], keys[2], keys[0]]


def test_a_line_stays_in_order_whatever_comes_and_goes():
    rng = random.Random(0)
    sequences = [make_sequence(index, float(rng.randrange(5))) for index in range(40)]
    line: list[Sequence] = []
    for sequence in rng.sample(sequences, 40):
        insert_in_order(line, sequence)
    for sequence in rng.sample(sequences, 20):
        remove_in_order(line, sequence)
        assert sequence not in line
    assert line == sorted(line, key=fcfs) and len(line) == 20


def test_removing_who_is_not_in_line_is_noticed():
    line = [make_sequence(1, 0.0), make_sequence(3, 0.0)]
    with pytest.raises(AssertionError, match="sequence 2"):
        remove_in_order(line, make_sequence(2, 0.0))
