"""The lists of models that run, on their page and in the README, are those of the program and of the tests."""

from __future__ import annotations

import re

from app.checkpoint.specs.registry import FAMILIES
from app.checkpoint.tensor_types import SUPPORTED
from tests.engine.test_converted_peers import ARCHITECTURES
from tests.house.source import ROOT
from tools.models_page import IN_LLAMA_CPP, models_page


def test_the_page_names_llama_cpp_where_tests_compare_with_it():
    assert {f"{name}ForCausalLM" for name in ARCHITECTURES} == IN_LLAMA_CPP
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in models_page().splitlines() if row.startswith("| ")}
    assert rows["Qwen3-MoE"].endswith("| transformers, llama.cpp |")
    assert rows["Granite 4 without Mamba"].endswith("| transformers |")
    titles = {family.title for family in FAMILIES.values()}
    assert {title for title, row in rows.items() if "| transformers" in row} == titles


def test_the_list_of_the_readme_is_that_of_the_registry():
    """In its order. A name stands for all titles that begin with it, and mixtures of experts have one name."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = re.search(r"\*\*Models\*\*: ([^;]+) and, on a CPU, mixtures of experts .*?GGUF \(([^)]+)\)", readme)
    assert found is not None
    names, types = (part.split(", ") for part in found.groups())
    dense = dict.fromkeys(
        family.title for family in FAMILIES.values() if family.names.experts is None and family.names.other is None
    )
    first_of = {title: next((name for name in names if title.startswith(name)), title) for title in dense}
    assert list(dict.fromkeys(first_of.values())) == names
    assert sorted(types) == sorted(SUPPORTED)
