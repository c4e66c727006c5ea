"""The corpus knows what the product has, by name, and denies nothing by accident."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.house.source import ROOT
from training.guide.corpus import Corpus, Topic, load_corpus
from training.guide.product_names import MAX_WAITING, problems_of_names, product_names


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus()


def _with(corpus: Corpus, answer: str, *denies: str) -> Corpus:
    topic = Topic("extra", answer, ("Is it so?",), denies=frozenset(denies))
    return dataclasses.replace(corpus, topics=(*corpus.topics, topic))


def _without(corpus: Corpus, name: str) -> Corpus:
    spelt = re.compile("|".join(map(re.escape, product_names()[name])))
    topics = [
        dataclasses.replace(
            topic,
            answer=spelt.sub("it", topic.answer),
            keywords=tuple(spelt.sub("it", phrase) for phrase in topic.keywords),
        )
        for topic in corpus.topics
    ]
    return dataclasses.replace(corpus, topics=tuple(topics))


def test_the_corpus_knows_every_name(corpus: Corpus) -> None:
    assert problems_of_names(corpus) == []


@pytest.mark.parametrize("name", ["max_queue", "quire doctor", "/v1/embeddings", "SmolLM3", "Q5_K"])
def test_a_name_that_no_answer_has_is_found(corpus: Corpus, name: str) -> None:
    assert any(line.startswith(f"{name}: no answer has it") for line in problems_of_names(_without(corpus, name)))


@pytest.mark.parametrize("answer", ["GGUF files are never read.", "It works. `--port` cannot be set:\nso be it."])
def test_a_denial_needs_a_mark(corpus: Corpus, answer: str) -> None:
    (line,) = problems_of_names(_with(corpus, answer))
    assert line.startswith("extra: ")
    name = "gguf" if "GGUF" in answer else "port"
    assert problems_of_names(_with(corpus, answer, name)) == []


def test_a_denial_without_a_name_needs_none(corpus: Corpus) -> None:
    assert problems_of_names(_with(corpus, "I am not a person. `--port` sets the port.")) == []


def test_few_names_may_wait(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"name{number}" for number in range(MAX_WAITING + 1)]
    lists = {"excluded_names": [], "waiting_names": [f"{name}: it is new" for name in names]}
    monkeypatch.setattr("training.guide.product_names.read_words", lambda name, separator: lists[name])
    assert f"{len(names)} names wait for the next training; at most {MAX_WAITING} may." in problems_of_names(corpus)


def test_guide_names_the_figures_and_signs_that_the_live_view_shows():
    """Who renames one there changes the answer, too."""
    live, answers = ROOT / "app" / "static" / "live", load_corpus().answers
    told = answers["live-figures"] + answers["live-view"]
    figures = re.findall(r'<\$\{Figure\} name="([^"]+)"', (live / "engine_figures.js").read_text())
    signs = re.findall(r'name: "(\w+)", meaning', (live / "legend.js").read_text())
    assert len(figures) == 6 and signs
    assert [name for name in [*figures, *signs] if name not in told] == []
