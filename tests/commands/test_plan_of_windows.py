"""The plan says what layers with windows keep."""

import json

from app import cli
from tests.checkpoint.specs.published_configs import GEMMA_3_1B
from tests.checkpoints import tiny


def run(capsys, *arguments):
    code = cli.main(["plan", *map(str, arguments)])
    return code, capsys.readouterr()


def test_the_plan_says_what_layers_with_windows_keep(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_3_1B))
    code, output = run(capsys, tmp_path)
    said = "22 of 26 layers look back 512 tokens, but keep those before, too"
    assert code == 0 and said in " ".join(output.out.split())
    figures = json.loads(run(capsys, tmp_path, "--json")[1].out)
    assert figures["windows"] == ([512] * 5 + [None]) * 4 + [512] * 2
    assert "look back" not in run(capsys, tiny("Llama"))[1].out
