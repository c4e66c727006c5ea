"""The requests: all cases over all transports, no two alike."""

import json

from benchmarks.resuming.asked import CASES, KINDS, requests


def test_every_case_comes_over_every_transport_and_no_request_twice():
    found = [*requests(len(CASES) * len(KINDS), 50)]
    assert {(each.name.rpartition(" ")[0], each.kind) for each in found} == {(c, k) for c in CASES for k in KINDS}
    assert len({json.dumps(each.body) for each in found if "seed" in each.body}) == sum("seed" in e.body for e in found)
    assert {each.num_choices for each in found} == {1, 2}
