"""Texts that repeat much are no loop for the rule of repetition; one passage again and again is."""

from __future__ import annotations

import pytest

from app.checkpoint.hub import smollm2
from app.config.settings import make_config
from app.text.entry.opened_model import OpenedModel
from app.text.tokens.tokenizer import Tokenizer
from tests.engine.test_repetition import told_at
from tests.engine.whole_texts import whole_texts


@pytest.fixture(scope="module", params=["guide", pytest.param("smollm2", marks=pytest.mark.real)])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Of a small vocabulary and of a large one."""
    model = request.param
    if model == "smollm2":
        if not smollm2.local_file().exists():
            pytest.skip("there is no real model; run `make real-model`")
        model = str(smollm2.local_file())
    return OpenedModel.open(make_config({"model": model}).model).text.tokenizer


def test_a_hundred_whole_tables_arrays_dumps_and_files_are_no_repetition(tokenizer: Tokenizer):
    texts = whole_texts()
    assert len(texts) == 100
    lengths = {name: len(tokenizer.encode(text)) for name, text in texts.items()}
    assert min(lengths.values()) > 256
    assert {name: found for name, text in texts.items() if (found := told_at(tokenizer.encode(text))) is not None} == {}


ONE_PASSAGE = {
    "an array of zeros": str([0] * 260),
    "a mask with a period": str([float(k % 7 == 0) for k in range(200)]),
    "lines of zeros": "0,0,0,0,0,0,0,0\n" * 40,
    "empty rows of a table": "|     |     |     |\n" * 60,
    "bytes of zeros without addresses": "0000 0000 0000 0000 0000 0000 0000 0000\n" * 40,
    "a refrain": "All work and no play makes Jack a dull boy.\n" * 40,
}


@pytest.mark.parametrize("name", ONE_PASSAGE)
def test_what_is_one_passage_again_and_again_ends(tokenizer: Tokenizer, name: str):
    """Whether it was meant nobody can tell: the field is off by default, and an answer that has ended can go on."""
    assert told_at(tokenizer.encode(ONE_PASSAGE[name])) is not None
