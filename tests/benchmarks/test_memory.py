"""The memory benchmark: its limits, and its picture."""

from statistics import mean
from xml.etree import ElementTree

from benchmarks import memory
from benchmarks.kv_load import make_requests, make_scheduler, run
from benchmarks.lengths import SHAREGPT, draw
from benchmarks.memory import Figure, waste
from benchmarks.memory_plot import plot


def test_a_figure_misses_its_limit_or_not():
    assert Figure("", "", "", 0.039, at_most=0.04).is_met
    assert not Figure("", "", "", 0.04, at_most=0.04).is_met
    assert Figure("", "", "", 0.061, at_least=0.061).is_met
    assert not Figure("", "", "", 0.06, at_least=0.061).is_met
    assert Figure("", "", "", 0.9, paper=0.1).is_met


def test_the_waste_of_a_small_sharegpt_like_load_is_below_the_limit():
    figures = {(figure.section, figure.load, figure.name): figure for figure in waste(150)}
    ours = figures["waste of what is taken", "ShareGPT-like", "blocks"]
    assert 0 < ours.value < memory.MAX_WASTE == ours.at_most
    assert ours.is_met
    wasted = [figure.value for (section, *_), figure in figures.items() if section == "waste of the whole memory"]
    assert wasted == sorted(wasted, reverse=True), "whole context, power of two, known length, blocks"


def test_the_more_answers_the_more_is_saved():
    loads = {n: make_requests(draw(SHAREGPT, 20), n=n) for n in (1, 2, 4)}
    saved = [mean(usage.saved for usage in run(make_scheduler(), load)) for load in loads.values()]
    assert 0 == saved[0] < saved[1] < saved[2] < 3 / 4


def test_the_picture_shows_every_figure_and_every_mark_of_the_paper(tmp_path):
    figures = [
        Figure("waste of the whole memory", "ShareGPT-like", "blocks", 0.03, paper=0.037),
        Figure("parallel sampling", "Alpaca-like", "n = 2", 0.07, paper=0.061),
        Figure("beam search", "ShareGPT-like", "width 4 & more", 0.7),
        Figure("shared prefix", "ShareGPT-like", "chat", 0.5),
    ]
    root = ElementTree.fromstring(plot(figures))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert [text for text in texts if text.endswith("%")] == ["3.0%", "7.0%", "70.0%", "50.0%"]
    assert "ShareGPT, width 4 & more" in texts
    marks = [element for element in root.iter() if element.get("class") == "paper"]
    assert len(marks) == 2 + 1, "with the legend's"
