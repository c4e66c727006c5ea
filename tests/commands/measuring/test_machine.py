"""The description of a benchmark run: time, machine and versions."""

import datetime

from app import __version__
from app.commands.measuring.machine import describe_run
from app.runtime.cores import num_cores


def test_a_run_is_described_by_time_machine_and_versions():
    found = describe_run(("torch", "no-such-package"))
    assert datetime.datetime.fromisoformat(found["started"]).tzinfo is not None
    assert found["machine"]["cores"] == num_cores()
    assert found["versions"]["quire"] == __version__
    assert found["versions"]["torch"] and found["versions"]["no-such-package"] is None
