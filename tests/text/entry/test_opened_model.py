"""A model is opened once: its headers are read and its tokenizer is built for server and engine together."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.checkpoint.gguf import gguf_files
from app.config.settings import make_config
from app.contract.errors import CannotStart, ModelRefused
from app.engine.build import build_engine
from app.text.entry import frontend
from app.text.entry.opened_model import OpenedModel
from tests.cases import long
from tests.checkpoints import damaged_copy, tiny
from tests.gguf_writer import tiny_gguf

ROOT = Path(__file__).resolve().parents[2]
# Builds an engine, and prints how often each file below the first argument was opened.
COUNT_OPENS = """
import json, sys
from collections import Counter
from pathlib import Path
from app.config.settings import make_config
from app.engine.build import build_engine
opened = Counter()
def hear(event, given):
    if event == "open" and str(given[0]).startswith(sys.argv[1]):
        opened[Path(given[0]).name] += 1
sys.addaudithook(hear)
build_engine(make_config({"model": sys.argv[1], "num_kv_blocks": 8}))
print(json.dumps(opened))
"""


@pytest.fixture
def counts(monkeypatch):
    """How often a header was read and a tokenizer was built."""
    found = {"read_header": 0, "load": 0}

    def counted(module, name):
        original = getattr(module, name)

        def call(*args):
            found[name] += 1
            return original(*args)

        monkeypatch.setattr(module, name, call)

    counted(gguf_files, "read_header")
    counted(frontend.gguf_tokenizer, "load")
    return found


def test_an_engine_over_an_opened_model_reads_no_header_and_builds_no_tokenizer(tmp_path, counts):
    config = make_config({"model": str(tiny_gguf(tmp_path / "m.gguf")), "num_kv_blocks": 8})
    model = OpenedModel.open(config.model)
    engine = build_engine(config, model=model)
    assert counts == {"read_header": 1, "load": 1}
    assert engine.model_info.revision == model.files.revision


def test_an_engine_opens_the_configured_model_itself(tmp_path, counts):
    build_engine(make_config({"model": str(tiny_gguf(tmp_path / "m.gguf")), "num_kv_blocks": 8}))
    assert counts == {"read_header": 1, "load": 1}


@pytest.mark.parametrize("kind", ["gguf", long("folder")])
def test_each_file_is_opened_once_and_one_with_weights_again_to_map_them(tmp_path, kind):
    if kind == "gguf":
        model, weights = tiny_gguf(tmp_path / "m.gguf"), {"m.gguf": 2}
        others = ()
    else:
        model, weights = damaged_copy(tiny(), tmp_path / "m"), {"model.safetensors": 2}
        (model / "generation_config.json").write_text("{}")
        others = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    done = subprocess.run([sys.executable, "-c", COUNT_OPENS, model], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == weights | dict.fromkeys(others, 1)


def test_a_refused_model_loads_nothing_beside_its_header(tmp_path, counts):
    called = []
    model = str(tiny_gguf(tmp_path / "m.gguf"))
    OpenedModel.open(make_config({"model": model}).model, on_inspected=lambda: called.append(dict(counts)))
    assert called == [{"read_header": 1, "load": 0}]
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelRefused):
        OpenedModel.open(make_config({"model": str(tmp_path / "bad.gguf")}).model, on_inspected=pytest.fail)


def test_a_missing_gpu_is_told_before_the_model_is_looked_for(tmp_path, monkeypatch):
    """In the one place where the server, `LLM`, and the commands in a terminal begin."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = make_config({"model": str(tmp_path / "nowhere"), "device": "cuda"})
    for open_it in (lambda: OpenedModel.open(config.model), lambda: build_engine(config)):
        with pytest.raises(CannotStart, match="--device cuda is set, but "):
            open_it()
