"""The benchmark of isolation itself: what it calls a miss, and that its attacks reach a server."""

from benchmarks.attacks import ATTACKS
from benchmarks.isolation import Row, judge, lag_quantile, main, quantile


def row(itl_p99_s: float, livez_p99_s: float = 0.01) -> Row:
    return Row(itl_p99_s, 1.0, livez_p99_s, 0.0, 100, {})


def test_a_row_is_held_against_twice_the_quiet_one_and_one_and_a_half_targets():
    quiet = [row(0.01), row(0.02), row(0.5)]
    assert judge([row(0.1), row(0.114), row(9.0)], quiet).is_within
    assert not judge([row(0.0), row(0.116), row(0.116)], quiet).is_within
    assert not judge([row(0.01, livez_p99_s=0.11)], quiet).is_within
    assert judge([row(0.04)], quiet).itl_factor == 2


def test_lags_are_those_between_two_looks():
    before, after = [(0.01, 5.0), (0.1, 5.0), (float("inf"), 6.0)], [(0.01, 5.0), (0.1, 104.0), (float("inf"), 106.0)]
    assert lag_quantile(before, after, 0.99) == 0.1
    assert lag_quantile(before, before, 0.99) == 0.0
    assert quantile([3, 1, 2], 0.99) == 3


def test_it_measures_a_server_beside_a_client_that_attacks(monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["isolation", "--models", "long", "--only", "brackets", "--rounds", "1", "--seconds", "1"]
    )
    assert main() in (0, 1)  # how fast this machine is now, nobody knows
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[2].split(":")[0].strip() for line in lines[2:]] == ["idle", "brackets"]
    assert not any("FAILED" in line for line in lines)
    assert set(ATTACKS) > {"idle", "brackets"}
