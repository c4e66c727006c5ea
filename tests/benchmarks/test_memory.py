"""The benchmark `memory`: verdicts, and small runs."""

from statistics import mean

from benchmarks.kv_load import answer, make_requests, make_scheduler
from benchmarks.lengths import SHAREGPT, draw
from benchmarks.limits import limits
from benchmarks.memory import Figure, waste


def test_a_figure_is_judged_by_its_limit():
    assert not Figure("", "", "", 0.04, limit="waste of what is taken").verdict.is_met
    assert Figure("", "", "", 0.061, limit="parallel sampling, Alpaca-like").verdict.is_met
    assert Figure("", "", "", 0.9, paper=0.1).verdict is None
    assert Figure("", "", "", 0.9, paper=0.1).to_json() == {
        "section": "", "load": "", "name": "", "value": 0.9, "paper": 0.1, "limit": {}, "is_met": True,
    }  # fmt: skip


def test_the_waste_of_a_small_sharegpt_like_load_is_below_the_limit():
    figures = {(figure.section, figure.load, figure.name): figure for figure in waste(150)}
    ours = figures["waste of what is taken", "ShareGPT-like", "blocks"]
    assert 0 < ours.value < limits("memory")["waste of what is taken"].value
    assert ours.verdict.is_met
    wasted = [figure.value for (section, *_), figure in figures.items() if section == "waste of the whole memory"]
    assert wasted == sorted(wasted, reverse=True), "full context, power of two, known length, blocks"


def test_more_choices_save_more():
    loads = {n: make_requests(draw(SHAREGPT, 20), n=n) for n in (1, 2, 4)}
    saved = [mean(usage.saved for usage in answer(make_scheduler(), load)) for load in loads.values()]
    assert 0 == saved[0] < saved[1] < saved[2] < 3 / 4
