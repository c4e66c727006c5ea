"""Limits: each has a reason, and verdicts say by how much one is missed."""

import tomllib

import pytest

from benchmarks.__main__ import BENCHMARKS
from benchmarks.limits import FILE, Limit, Verdict, conclude, judge, limits

LIMIT = Limit("cost", "at_most", 25.0, "us", "because")


def test_every_limit_has_a_reason_and_belongs_to_a_benchmark():
    names = tomllib.loads(FILE.read_text(encoding="utf-8"))
    assert set(names) <= set(BENCHMARKS)
    assert [limit.name for name in names for limit in limits(name).values() if not limit.why] == []


@pytest.mark.parametrize(
    ("sign", "figures"),
    [("at_most", (True, True, False)), ("less_than", (True, False, False)), ("at_least", (False, True, True))],
)
def test_a_limit_allows_figures_by_its_sign(sign, figures):
    limit = Limit("x", sign, 2.0, "", "")
    assert tuple(map(limit.allows, (1.0, 2.0, 3.0))) == figures


def test_a_verdict_says_by_how_much_the_limit_is_missed():
    assert str(Verdict(LIMIT, 30.25, "sse")) == "sse: cost is 30.25 us, at most 25 us: MISSED by 5.25 us"
    assert str(Verdict(LIMIT, 20.0)) == "cost is 20 us, at most 25 us: met"
    assert "taken is 4.1 %, less than 4 %: MISSED" in str(judge("memory", "waste of what is taken", 0.041))
    assert "at least 25,000 tok/s" in str(judge("gpu", "Qwen3-0.6B, 256 requests", 28_500.4))


def test_a_figure_that_is_not_judged_is_not_missed():
    verdict = Verdict(LIMIT, 30.0, excuse="too small to judge")
    assert not verdict.is_met and not verdict.is_missed
    assert str(verdict).endswith("at most 25 us: too small to judge")


def test_missed_limits_are_printed_and_exit_with_1(capsys):
    assert conclude([Verdict(LIMIT, 20.0), Verdict(LIMIT, 90.0, excuse="small")]) == 0
    assert capsys.readouterr().out == ""
    assert conclude([Verdict(LIMIT, 30.0)], ["it died"]) == 1
    assert capsys.readouterr().out == "missed: cost is 30 us, at most 25 us: MISSED by 5 us\nmissed: it died\n"
