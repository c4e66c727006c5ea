"""The plan of a GGUF file counts the bytes that its weights take in memory."""

import json

import pytest

from app import cli
from app.checkpoint.inspection import inspect
from app.commands import budget as budgets
from app.commands.budget import Memory, make_budget, weights_by_kind
from app.commands.plan_page import page
from app.config.setting import KIB
from app.config.settings import make_config
from app.observe.terminal import Terminal
from tests.checkpoint.reading import planned_spec
from tests.gguf_writer import tiny_gguf


def planned(capsys, file, *options):
    """The figures of a plan."""
    assert cli.main(["plan", str(file), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("kind", "bits"), [("Q8_0", 8.5), ("Q4_0", 4.5), ("Q4_1", 5), ("F16", 16), ("Q5_1", 6)])
def test_weights_of_gguf_files_are_counted_as_the_server_keeps_them(kind, bits, tmp_path, capsys, monkeypatch):
    """Matrices that are kept as the file stores them take its bits."""
    monkeypatch.setattr(budgets, "supported_sets", lambda: ["avx2"])
    file = tiny_gguf(tmp_path / "m.gguf", kind=kind)
    kept, eager, on_gpu, int4 = (
        planned(capsys, file, *options)["weight_bytes_by_kind"]
        for options in ((), ("--enforce-eager",), ("--gpu-memory", "8GiB"), ("--quantization", "int4"))
    )
    spec = planned_spec(make_config({"model": str(file)}))
    num_weights = weights_by_kind(spec)
    assert kept["MLP"] == num_weights["MLP"] * bits / 8
    assert kept["norms"] == num_weights["norms"] * 2
    assert eager == on_gpu == {name: 2 * count for name, count in num_weights.items()}
    assert int4["MLP"] == num_weights["MLP"] * 5 / 8


def test_a_quantized_file_is_not_advised_to_be_quantized_again(tmp_path, monkeypatch):
    monkeypatch.setattr(budgets, "supported_sets", lambda: ["avx2"])
    for kind, is_smaller in (("Q8_0", False), ("F16", True)):
        file = tiny_gguf(tmp_path / f"{kind}.gguf", kind=kind, tie_word_embeddings=False)
        config = make_config({"model": str(file)})
        files = inspect(config.model)
        spec = files.spec
        made = make_budget(config, spec, Memory("free RAM", 64 * KIB, is_gpu=False), files.stored_type)
        text = "\n".join(page(Terminal(100), config, spec, made, [512]))
        assert ("--quantization int8" in text, "quantized as in the files" in text) == (is_smaller, not is_smaller)
