"""Options: names are chosen in their order, and errors name the nearest."""

import pytest

from app.contract.errors import ConfigurationError
from benchmarks.options import chosen, make_folder

KNOWN = ("s135", "tiny", "llama.cpp")


def test_names_are_chosen_in_any_case_and_keep_their_order():
    assert chosen(None, KNOWN, "only") == list(KNOWN)
    assert chosen("LLAMA.cpp, s135,", KNOWN, "only") == ["s135", "llama.cpp"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("s13", "--only: unknown 's13'; did you mean 's135'.*known: s135, tiny, llama.cpp"),
        (" , ", "--only is empty; known: s135"),
    ],
)
def test_unknown_and_missing_names_are_rejected(given, says):
    with pytest.raises(ConfigurationError, match=says):
        chosen(given, KNOWN, "only")


def test_a_folder_is_created_or_rejected(tmp_path):
    make_folder(tmp_path / "a" / "b", "out")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"--out .* cannot be a folder: File exists"):
        make_folder(tmp_path / "file", "out")
