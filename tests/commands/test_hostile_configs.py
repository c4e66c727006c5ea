"""Hostile configurations end a command with exit code 2 and one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
from tests.checkpoint.specs.hostile_configs import HOSTILE_CONFIGS

NUM_CONFIGS = 100


def test_there_are_enough_different_configs():
    assert len({json.dumps(config) for config, _ in HOSTILE_CONFIGS.values()}) >= NUM_CONFIGS


@pytest.mark.parametrize("name", HOSTILE_CONFIGS)
def test_a_hostile_config_is_rejected_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config, field = HOSTILE_CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = main(["plan", str(tmp_path)])
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == "" and err.count("\n") == 1 and len(err) < 1200
    field = {"torch_dtype": "dtype", "layer_types": "layer_types"}.get(field, field)
    assert field in err or "rope_" in err, err
