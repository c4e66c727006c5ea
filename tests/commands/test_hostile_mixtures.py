"""Mixtures of experts with wrong fields and tensors end a command with exit code 2 and one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli import main
from tests.checkpoint.specs.hostile_mixtures import (
    ADDED_TENSORS,
    HOSTILE_MIXTURES,
    HOSTILE_TENSORS,
    write_added,
    write_config,
    write_damaged,
)
from tests.checkpoints import tiny

NUM_FOLDERS = 100


def test_there_are_enough_of_both():
    assert len(HOSTILE_MIXTURES) >= NUM_FOLDERS and len(HOSTILE_TENSORS) >= NUM_FOLDERS


def expect_rejected(capsys: pytest.CaptureFixture[str], words: str, *arguments: str) -> None:
    """The command ends with exit code 2 and one line, which has these words."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1 and len(err) < 1200 and words in err, err


@pytest.mark.parametrize("name", HOSTILE_MIXTURES)
def test_a_hostile_config_is_rejected_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config, field = HOSTILE_MIXTURES[name]
    write_config(tmp_path, config)
    expect_rejected(capsys, field, "plan", str(tmp_path), "--ram", "1GiB")


@pytest.mark.parametrize("name", list(HOSTILE_MIXTURES)[::25])
def test_a_server_refuses_what_a_plan_refuses(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config, field = HOSTILE_MIXTURES[name]
    write_config(tmp_path, config)
    expect_rejected(capsys, field, "serve", str(tmp_path), "--port", "0", "--load-format", "dummy")


@pytest.mark.parametrize(("family", "name"), ADDED_TENSORS)
def test_tensors_of_experts_and_routers_that_a_config_does_not_describe_are_rejected(
    family: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_added(tmp_path, family, name)
    expect_rejected(capsys, f"{name}, which config.json does not describe", "generate", "hi", "--model", str(tmp_path))


@pytest.mark.parametrize("tensor", ["mlp.gate", *(f"mlp.experts.{expert}.up_proj" for expert in range(6))])
def test_weights_that_are_no_numbers_end_an_answer_in_one_line(
    tensor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    """Where nothing in the answer needs this expert, it is an answer."""
    write_damaged(tmp_path, "qwen 3 moe", f"model.layers.0.{tensor}.weight", "no numbers")
    code = main(["generate", "hi", "--model", str(tmp_path), "--num-kv-blocks", "32", "--max-tokens", "1"])
    lines = [line for line in capsys.readouterr().err.splitlines() if "(NaN)" in line]
    assert (code, len(lines)) in ((0, 0), (70, 1)) and (code == 70 or tensor != "mlp.gate")
    assert "(NaN)" not in caplog.text


@pytest.mark.parametrize("residual", [1.1e-18, 1e18])
@pytest.mark.parametrize("logits", [1.1e-18, 1e18])
def test_multipliers_at_their_bounds_give_answers(logits: float, residual: float):
    """Neither division by them nor their squares give numbers beyond float32, after which logits would be NaN."""
    folder = tiny("GraniteMoe", num_local_experts=4, residual_multiplier=residual, logits_scaling=logits)
    assert main(["generate", "hi", "--model", str(folder), "--max-tokens", "2", "--num-kv-blocks", "8"]) == 0


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_a_hostile_tensor_is_rejected_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    family, tensor, damage = HOSTILE_TENSORS[name]
    write_damaged(tmp_path, family, tensor, damage)
    expect_rejected(capsys, tensor, "generate", "hi", "--model", str(tmp_path))
