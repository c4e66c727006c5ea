"""Suggestions: the beginning of a name first, then few typing errors, otherwise none."""

import pytest

from app.config.nearest import nearest

OPTIONS = ("--help", "--stop", "--temperature", "--top-k", "--top-p", "--block-size", "--max-model-len", "--model")


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("--temp", OPTIONS, "'--temperature'"),
        ("--top", OPTIONS, "'--top-k' or '--top-p'"),
        ("--max_model_length", OPTIONS, "'--max-model-len'"),
        ("--temprature", OPTIONS, "'--temperature'"),
        ("--sotp", OPTIONS, "'--stop'"),
        ("smollm", ("guide", "smollm2"), "'smollm2'"),
        ("SmolLM2", ("guide", "smollm2"), "'smollm2'"),
        ("giude", ("guide", "smollm2"), "'guide'"),
        ("H10", ("H100", "H200", "L4"), "'H100'"),
        ("prority", ("fcfs", "priority"), "'priority'"),
    ],
)
def test_a_beginning_or_a_misspelt_name_has_a_suggestion(given, known, meant):
    assert nearest(given, known) == f"; did you mean {meant}"


@pytest.mark.parametrize("given", ["--tokenizer", "--temp-dir", "--seed", "--no-such", "--te", "--k", "-", ""])
def test_a_name_without_a_similar_one_has_no_suggestion(given):
    assert nearest(given, OPTIONS) == ""


def test_a_beginning_of_many_names_has_no_suggestion():
    assert nearest("--max", [f"--max-{number}" for number in range(9)]) == ""


def test_a_huge_name_is_not_compared_letter_by_letter():
    """It would take minutes."""
    assert nearest("x" * 4_000_000, OPTIONS) == ""


def test_exactly_as_many_typing_errors_as_letters_allow():
    assert nearest("abcdefgh", ["abcdefxy"]) == "; did you mean 'abcdefxy'"
    assert nearest("abcdefgh", ["abcdexyz"]) == ""
