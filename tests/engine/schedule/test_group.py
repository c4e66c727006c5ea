"""Groups: which sequences run while a group is folded, and what `check_integrity` detects."""

import pytest

from app.engine.schedule.sequence import FINISHED, PAUSED, RUNNING, WAITING
from app.engine.schedule.step_plan import Sample
from tests.engine.schedule.fake_groups import make_group, make_running_group


def test_a_new_group_waits_and_is_ready():
    group = make_group(n=2)
    assert group.status is WAITING and group.ready and group.first_scheduled_time is None
    group.check_integrity(4, {})


# --- Folding ----------------------------------------------------------------------------------------------------


def test_only_the_leader_of_a_folded_group_runs():
    group = make_group(n=3)
    assert group.is_folded and group.active == group.open[:1]
    group.unfold()
    assert not group.is_folded and group.active == group.open == group.sequences
    group.fold()
    assert group.active == group.open[:1]


@pytest.mark.parametrize("params", [{}, {"n": 1}, {"use_beam_search": True, "beam_width": 4}])
def test_a_group_of_one_sequence_is_not_folded(params):
    group = make_group(**params)
    assert not group.is_folded and group.active == group.open and len(group.open) == 1


def test_the_next_sequence_leads_when_the_leader_ends():
    group = make_group(n=3)
    first, second, third = group.sequences
    group.close(first)
    assert first.is_finished and group.open == [second, third] and group.active == [second]
    group.close(second)
    assert not group.is_folded and group.active == [third]


def test_a_sequence_that_ends_leaves_the_others_running():
    group = make_running_group(n=3)
    first, second, third = group.sequences
    group.close(second)
    assert second.status is FINISHED and first.status is RUNNING
    assert group.active == group.open == [first, third] and len(group.sequences) == 3


def test_beams_have_seats_before_they_fork_and_choices_while_open():
    assert make_group(use_beam_search=True, beam_width=4).num_seats == 4
    group = make_running_group(n=3)
    assert group.num_seats == 3
    group.close(group.open[0])
    assert group.num_seats == 2


# --- Counts -----------------------------------------------------------------------------------------------------


def test_the_prompt_counts_once_in_computed_tokens():
    group = make_running_group(num_prompt=4, n=3)
    for sequence, count in zip(group.open, (7, 6, 4), strict=True):
        sequence.num_computed = count
        sequence.num_scheduled = count + 1
    assert group.num_prompt == 4
    assert group.num_computed == 4 + 3 + 2
    assert group.num_scheduled == 4 + 4 + 3 + 1


def test_only_the_leader_has_computed_tokens_during_the_prompt():
    group = make_group(num_prompt=8, n=2)
    group.open[0].num_computed = 5
    assert group.num_computed == 5


# --- Integrity --------------------------------------------------------------------------------------------------


def keep_ended(group):
    group.open[1].is_finished = True


def empty(group):
    group.open = []


def run_only_one(group):
    group.active = group.open[:1]


def not_pause(group):
    group.ready = False


def pause_protected(group):
    group.status, group.is_protected = PAUSED, True


def miscount(group):
    group.open[1].num_tokens += 1


@pytest.mark.parametrize(
    "breaking, message",
    [
        (keep_ended, "ended ones are open"),
        (empty, "ended ones are open"),
        (run_only_one, "the wrong ones run"),
        (not_pause, "does not pause"),
        (pause_protected, "its blocks cannot be taken"),
        (miscount, "tokens are miscounted"),
    ],
)
def test_integrity_detects_inconsistent_groups(breaking, message):
    group = make_running_group(n=2)
    for sequence in group.open:
        sequence.block_table = [sequence.id]
    group.check_integrity(4, {})
    breaking(group)
    with pytest.raises(AssertionError, match=message):
        group.check_integrity(4, {})


def test_integrity_counts_promised_tokens_and_samples_of_beams():
    group = make_running_group(n=2)
    one, other = group.open
    for sequence in group.open:
        sequence.block_table = [sequence.id]
        sequence.num_tokens += 1
    group.samples[one.id] = Sample(one.id, 5)
    group.check_integrity(4, {other.id: 1})
    with pytest.raises(AssertionError, match="miscounted"):
        group.check_integrity(4, {})
