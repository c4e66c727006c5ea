"""Which files of a repository are taken: one variant and small files, by rules that do not depend on the order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.checkpoint.hub.repo_files import RepoFile, choose, needed, quant_of, variants
from app.checkpoint.model_files import GGUF, SAFETENSORS
from app.contract.errors import ModelRefused


def repo(*paths: str) -> list[RepoFile]:
    return [RepoFile(path, 1000 + number) for number, path in enumerate(paths)]


@pytest.mark.parametrize(("path", "quant"), [
    ("Qwen3-0.6B-Q4_K_M.gguf", "Q4_K_M"), ("model.q8_0.gguf", "Q8_0"), ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
    ("m-IQ4_XS.gguf", "IQ4_XS"), ("m-BF16-00001-of-00003.gguf", "BF16"), ("Q6_K/m-00001-of-00002.gguf", "Q6_K"),
    ("gpt-oss-20b-mxfp4.gguf", "MXFP4"), ("gpt-oss-MXFP4_MOE.gguf", "MXFP4_MOE"), ("m-fp16.gguf", "FP16"),
    ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"), ("m-TQ1_0.gguf", "TQ1_0"), ("model.gguf", ""),
    ("Q3-Coder-Q5_K_S.gguf", "Q5_K_S"), ("Qwen2.5-F16.gguf", "F16"),
])  # fmt: skip
def test_the_quant_is_read_from_the_name(path: str, quant: str):
    assert quant_of(path) == quant


def test_parts_of_a_split_file_are_one_variant():
    parts = ["b-Q8_0-00001-of-00003.gguf", "b-Q8_0-00002-of-00003.gguf", "b-Q8_0-00003-of-00003.gguf"]
    (variant,) = variants(repo(*parts))
    assert [file.path for file in variant.files] == parts and variant.missing_parts() == []
    (variant,) = variants(repo(parts[0], parts[2]))
    assert variant.missing_parts() == [parts[1]]


def test_safetensors_win_and_their_copies_are_left_out():
    files = repo("model-00001-of-00002.safetensors", "consolidated.safetensors", "model-00002-of-00002.safetensors",
                 "a-Q4_K_M.gguf", "sub/model.safetensors")  # fmt: skip
    chosen = choose("o/n", files)
    assert chosen.format == SAFETENSORS
    assert [file.path for file in chosen.files] == [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    assert choose("o/n", files, quant="q4_k_m").format == GGUF
    assert choose("o/n", repo("weights.safetensors")).files[0].path == "weights.safetensors"


@pytest.mark.parametrize(("paths", "chosen"), [
    (["a-Q2_K.gguf", "a-Q4_K_M.gguf", "a-Q8_0.gguf"], "a-Q4_K_M.gguf"),
    (["a-Q2_K.gguf", "a-Q8_0.gguf", "mmproj-Q4_K_M.gguf"], "a-Q8_0.gguf"),
    (["a-Q2_K.gguf", "imatrix_a.gguf"], "a-Q2_K.gguf"),
    (["plain.gguf"], "plain.gguf"),
])  # fmt: skip
def test_without_a_quant_the_default_is_taken(paths: list[str], chosen: str):
    assert choose("o/n", repo(*paths)).files[0].path == chosen


def test_a_prefix_of_the_quant_may_be_left_out():
    files = repo("a-UD-Q4_K_XL.gguf", "a-Q4_K_M.gguf", "a-UD-Q4_K_M.gguf")
    assert choose("o/n", files, quant="q4_k_xl").quant == "UD-Q4_K_XL"
    assert choose("o/n", files, quant="Q4_K_M").quant == "Q4_K_M", "the exact label first"


@pytest.mark.parametrize(("paths", "asked", "words"), [
    (["a-Q2_K.gguf", "a-Q3_K_S.gguf"], {}, "o/n has several GGUF variants; give one of these, as o/n:Q2_K: Q2_K (1.0"),
    (["a-Q2_K.gguf"], {"quant": "Q9"}, "There is no o/n:Q9"),
    (["a-Q2_K.gguf"], {"file": "b.gguf"}, "There is no o/n/b.gguf"),
    (["a-Q8_0.gguf", "b-Q8_0.gguf"], {}, "not one model but 2; give the file: o/n/a-Q8_0.gguf"),
    (["model.safetensors"], {"quant": "Q8_0"}, "o/n has no GGUF files"),
    (["tf_model.bin"], {}, "pickled weights"),
    (["README.md"], {}, "neither safetensors nor GGUF"),
])  # fmt: skip
def test_everything_but_one_match_is_refused_with_the_choices(paths: list[str], asked: dict[str, str], words: str):
    with pytest.raises(ModelRefused) as refusal:
        choose("o/n", repo(*paths), **asked)
    assert words in refusal.value.message


def test_files_with_the_same_quant_are_listed_by_their_names():
    files = repo("a-Q8_0.gguf", "b-Q8_0.gguf", "a-Q2_K.gguf", "plain.gguf")
    with pytest.raises(ModelRefused) as refusal:
        choose("o/n", files, quant="Q6_K")
    listed = "a-Q8_0.gguf (1.0 kB), b-Q8_0.gguf (1.0 kB), Q2_K (1.0 kB), plain.gguf (1.0 kB)"
    assert refusal.value.message == f"There is no o/n:Q6_K; give one of these, as o/n/a-Q8_0.gguf: {listed}."


def test_parts_of_no_parts_are_whole_files():
    found = variants(repo("a-00001-of-00000.gguf", "a-00002-of-00000.gguf"))
    assert [len(variant.files) for variant in found] == [1, 1]
    assert [variant.missing_parts() for variant in found] == [[], []]


def test_small_files_come_first_and_nothing_else_is_taken():
    files = repo("model.safetensors", "tokenizer.json", "chat_template.jinja", "model.safetensors.index.json",
                 "original/params.json", "training_args.bin", "a-Q4_0.gguf", ".gitattributes")  # fmt: skip
    small = ["chat_template.jinja", "model.safetensors.index.json", "tokenizer.json"]
    assert [file.path for file in needed(files, choose("o/n", files))] == [*small, "model.safetensors"]
    assert [file.path for file in needed(files, choose("o/n", files, quant="Q4_0"))] == [
        "chat_template.jinja", "tokenizer.json", "a-Q4_0.gguf"
    ]  # fmt: skip


@given(st.lists(st.sampled_from(["Q2_K", "Q4_K_M", "q8_0", "BF16"]), unique=True, min_size=1), st.randoms())
def test_every_variant_is_found_by_its_own_name_in_any_order(quants: list[str], random):
    files = [RepoFile(f"m-{quant}-0000{part}-of-00002.gguf", 10) for quant in quants for part in (1, 2)]
    random.shuffle(files)
    for variant in variants(files):
        assert choose("o/n", files, quant=variant.quant.lower()) == variant
        assert choose("o/n", files, file=variant.files[1].path) == variant
