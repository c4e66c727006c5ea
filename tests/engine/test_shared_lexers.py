"""Rows that bring a grammar to the library's limit together, which none comes to alone: none fails, none notices."""

from __future__ import annotations

from typing import Any

import pytest

from app.engine.engine import Engine
from app.text.grammar import compile
from tests.engine.constrained import Answer, Constrained, answer_all
from tests.engine.driving import build
from tests.engine.served import ignore_time, serve

WANTED = {"regex": "(.*a.{100})+WORD"}
"""With the tokens of `guide` a mask makes about 130 states; 50,000 are allowed."""
NUM_ROWS, NUM_TOKENS = 64, 30
PROMPT = [5, 9, 30, 41]


def answers_of(engine: Engine, numbers: range = range(NUM_ROWS)) -> dict[tuple[str, int], Answer]:
    made = Constrained(engine)
    params: dict[str, Any] = {"max_tokens": NUM_TOKENS}
    return answer_all(engine, [made.request(str(number), PROMPT, WANTED, seed=number, **params) for number in numbers])


def engine_for(**settings: Any) -> Engine:
    room = {"max_num_seqs": NUM_ROWS, "max_num_batched_tokens": 256, "max_model_len": 128, "num_kv_blocks": 400}
    return build("guide", **{**room, **settings})


@pytest.fixture(scope="module")
def without_limit() -> dict[tuple[str, int], Answer]:
    """What they answer where there is no such limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(compile.LIMITS, "max_lexer_states", 10**7)
        return answers_of(engine_for())


def test_each_alone_stays_below_the_limit(without_limit: dict):
    assert len(without_limit) == NUM_ROWS and {end for _, _, end in without_limit.values()} == {"length"}
    assert answers_of(engine_for(), range(2)) == {(name, 0): without_limit[name, 0] for name in "01"}


@pytest.mark.parametrize("is_served", [False, True], ids=["here", "served"])
@pytest.mark.parametrize("settings", [{}, {"speculative_ngram": 3}], ids=["plain", "drafts"])
def test_all_together_answer_what_they_would_without_it(
    without_limit: dict, is_served: bool, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    caches = serve(monkeypatch) if is_served else []
    ignore_time(monkeypatch)
    engine = engine_for(**settings)
    assert answers_of(engine) == without_limit
    assert answers_of(engine, range(3)) == {(name, 0): without_limit[name, 0] for name in "012"}, "nothing is left"
    for cache in caches:
        assert cache.num_processes == 1
        cache.close()
