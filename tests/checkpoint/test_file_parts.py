"""Names of split files."""

from __future__ import annotations

import pytest

from app.checkpoint.file_parts import parts_of, without_part


def test_the_parts_of_a_split_file_are_found_from_any_of_them():
    parts = ["sub/a-00001-of-00003.gguf", "sub/a-00002-of-00003.gguf", "sub/a-00003-of-00003.gguf"]
    assert all(parts_of(part) == parts for part in parts)
    assert parts_of("m-00001-of-00001.safetensors") == ["m-00001-of-00001.safetensors"]
    assert without_part(parts[1]) == "sub/a.gguf"


@pytest.mark.parametrize(
    "name", ["a.gguf", "a-1-of-3.gguf", "a-00001-of-00003.bin", "a-00001-of-00003.gguf\n", "a-٠٠٠٠١-of-٠٠٠٠٣.gguf"]
)
def test_other_names_are_their_only_part(name: str):
    assert parts_of(name) == [name] and without_part(name) == name


def test_a_name_cannot_announce_any_number_of_parts():
    assert len(parts_of("m-00001-of-09999.gguf")) == 9999


@pytest.mark.parametrize(
    "numbers", ["00001-of-99999", "00001-of-00000", "00000-of-00000", "00000-of-00002", "00003-of-00002"]
)
def test_a_part_that_cannot_be_one_is_a_file_of_its_own(numbers: str):
    name = f"m-{numbers}.gguf"
    assert parts_of(name) == [name] and without_part(name) == name
