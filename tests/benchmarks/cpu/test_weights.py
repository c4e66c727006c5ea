"""The exported checkpoints: all sides can load them, and random ids are plain text."""

import json

from app.checkpoint.inspection import inspect
from app.checkpoint.text_files import FolderText
from app.config.settings import make_config
from app.text.tokens.tokenizer import Tokenizer
from benchmarks.cpu.cells import draw_prompts, vocab_size
from benchmarks.cpu.weights import write_checkpoint, write_tokenizer


def test_a_checkpoint_is_complete(tmp_path):
    folder = write_checkpoint("tiny", tmp_path / "tiny")
    spec = inspect(make_config({"model": str(folder)}).model).spec
    assert (spec.hidden_size, spec.vocab_size, spec.dtype) == (256, 4096, "bfloat16")
    again = write_checkpoint("tiny", tmp_path / "again")
    assert (folder / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()


def test_every_id_is_a_token_and_most_are_letters(tmp_path):
    size = vocab_size("s135")
    write_tokenizer(tmp_path, size)
    assert len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]) == size
    tokenizer = Tokenizer.load(FolderText(tmp_path))
    (ids,) = draw_prompts([200], size, "x")
    letters = [character.isascii() and character.isalpha() for character in tokenizer.decode(ids)]
    assert sum(letters) > 0.95 * len(letters)


def test_text_is_encoded_with_the_longest_tokens(tmp_path):
    write_tokenizer(tmp_path, 20_000)
    assert len(Tokenizer.load(FolderText(tmp_path)).encode("abcabc")) == 2
