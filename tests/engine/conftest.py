"""Where masks are made: in this process, or by another one, as a server has it."""

from collections.abc import Iterator

import pytest

from app.engine.execute import worker_masks
from tests.engine.served import ignore_time, serve


@pytest.fixture(params=["local", "worker", "late"])
def masks_everywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Masks of this process; of another one; and of one where each sequence sits steps out whenever it can."""
    if request.param == "local":
        yield "local"
        return
    made = serve(monkeypatch)
    ignore_time(monkeypatch)
    if request.param == "late":
        monkeypatch.setattr(worker_masks, "WAIT_S", 0.0)
    yield request.param
    for each in made:
        assert each.num_processes <= 1, "a process has ended by itself"
        each.close()
