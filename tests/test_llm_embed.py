"""`LLM.embed`: the vectors of the embedded model."""

import math

import pytest

from app import LLM
from app.contract.errors import ContextLengthExceeded, InvalidValue


@pytest.fixture(scope="module")
def llm():
    llm = LLM("guide")
    yield llm
    llm.close()


def vectors_of(llm, prompts, **options):
    """The vectors of prompts."""
    return [output.outputs.embedding for output in llm.embed(prompts, **options)]


def test_vectors_have_length_1_and_do_not_depend_on_the_batch(llm):
    texts = ["What is Quire?", "Does it need a GPU?", "a"]
    vectors = vectors_of(llm, texts)
    assert {len(vector) for vector in vectors} == {llm.engine.model_info.hidden_size}
    assert all(math.isclose(math.hypot(*vector), 1, rel_tol=1e-5) for vector in vectors)
    assert [vectors_of(llm, text)[0] for text in texts] == vectors
    assert vectors_of(llm, [llm.tokenizer.encode(text) for text in texts]) == vectors
    assert len({tuple(vector) for vector in vectors}) == 3


def test_dimensions_and_pooling_change_the_vector(llm):
    (whole,) = vectors_of(llm, "What is Quire?", normalize=False)
    (cut,) = vectors_of(llm, "What is Quire?", dimensions=3, normalize=False)
    (last,) = vectors_of(llm, "What is Quire?", pooling="last", normalize=False)
    assert cut == whole[:3] and last != whole
    (one,) = vectors_of(llm, "a", dimensions=1)
    assert abs(one[0]) == 1


def test_generation_goes_on_beside_embeddings(llm):
    assert llm.embed([]) == []
    assert llm.generate(["Quire is a"], use_tqdm=False)[0].outputs[0].text


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ("a", {"dimensions": 0}, InvalidValue),
        ("a", {"dimensions": 10**6}, InvalidValue),
        ("a", {"pooling": "max"}, InvalidValue),
        ([[]], {}, InvalidValue),
        ([[5] * 4096], {}, ContextLengthExceeded),
    ],
)
def test_bad_values_are_rejected(llm, prompt, options, error):
    with pytest.raises(error):
        llm.embed(prompt, **options)
