"""`python -m benchmarks live`: its parts, its file, and its exit code."""

import json
from argparse import Namespace

import pytest

from benchmarks.live import command
from benchmarks.live.engine_cells import Found
from benchmarks.live.served import CHROMIUM, WATCHER, Pair, Served, Turn
from benchmarks.live.spent import Spent
from benchmarks.live.unit_costs import UnitCosts
from benchmarks.live.watching import Watched

COSTS = UnitCosts(0.2, {WATCHER: 0.3}, {"1,000": 0.1})


def found(share: float) -> Found:
    return Found(shares=[share, share, -share], token_us=[10.0], watched_s=1.0)


def beside(share: float) -> dict[str, Served]:
    on, off = (Turn(Spent(seconds, 1.0), 100.0, 5.0, 2.0, Watched(50, 500, 50)) for seconds in (9 + 10 * share, 9.0))
    return {WATCHER: Served(1, [Pair([on, on], [off, off])])}


@pytest.mark.parametrize(("share", "served_share", "code"), [(0.004, 0.004, 0), (0.02, 0.004, 1), (0.004, 0.02, 1)])
def test_a_cost_above_the_limit_is_missed(share, served_share, code, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "measure_cells", lambda names, repeats: {name: found(share) for name in names})
    monkeypatch.setattr(command, "measure_served", lambda repeats: (beside(served_share), COSTS))
    assert command.run(Namespace(repeat=1, only=None)) == code
    printed = capsys.readouterr().out
    assert "a picture, ms" in printed and "loop, ms a message" in printed
    written = {file.stem: json.loads(file.read_text()) for file in tmp_path.iterdir()}
    assert [*written["live"]["cells"]] == ["guide", "s135", "pool"]
    assert [*written["live_served"]["beside"]] == [WATCHER]
    assert written["live_served"]["picture"] == COSTS._asdict()


def test_a_large_pool_may_not_take_too_much_of_the_loop(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    costs = COSTS._replace(pool_loop_ms={"1,000": 0.1, "100,000": 1.2})
    monkeypatch.setattr(command, "measure_served", lambda repeats: (beside(0.0), costs))
    assert command.run(Namespace(repeat=1, only="served")) == 1
    printed = capsys.readouterr().out
    assert "a pool of 100,000 blocks: 1.20 ms of the loop" in printed
    assert "100,000 blocks: processor time of the event loop for a message is 1.2 ms, at most 1 ms: MISSED" in printed


def test_parts_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "measure_cells", lambda names, repeats: {name: found(0.0) for name in names})
    monkeypatch.setattr(command, "measure_served", lambda repeats: pytest.fail("it was not asked for"))
    assert command.run(Namespace(repeat=1, only="pool")) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["live.json"]


def test_a_missing_chromium_is_said(monkeypatch, capsys):
    monkeypatch.setattr(command.served, "find_chromium", lambda: None)
    monkeypatch.setattr(command.served, "measure", lambda names, repeats, folder: dict.fromkeys(names))
    monkeypatch.setattr(command.unit_costs, "measure", lambda folder: COSTS)
    found, costs = command.measure_served(1)
    assert CHROMIUM not in found and costs is COSTS
    assert f"{CHROMIUM} is left out" in capsys.readouterr().out
