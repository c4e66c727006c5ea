"""The server has a core of its own if there are two."""

import os

from benchmarks.streams.pinning import available_cores, pin, share_cores


def test_server_and_clients_have_different_cores():
    assert share_cores([2, 3]) == ((2,), ((3,),))
    assert share_cores([0, 1, 2, 3]) == ((0,), ((1,), (2,), (3,)))
    assert len(share_cores(range(64)).clients) == 4


def test_with_one_core_no_process_is_pinned():
    assert share_cores([0]) == share_cores([]) == ((), ((),))


def test_pinning_to_no_cores_changes_nothing():
    before = available_cores()
    pin([])
    assert available_cores() == before == sorted(os.sched_getaffinity(0))
