"""The plan of a mixture of experts says what a token reads."""

from __future__ import annotations

import json

import pytest

from app import cli
from app.config.devices import NO_EXPERTS
from app.engine.execute.cpu.backend import HostBackend
from tests.checkpoints import tiny


def run(capsys, *arguments):
    code = cli.main(["plan", *map(str, arguments)])
    return code, capsys.readouterr()


def test_the_plan_of_a_mixture_says_what_a_token_reads(capsys):
    folder = tiny("Qwen2Moe", num_hidden_layers=3, mlp_only_layers=[1], torch_dtype="bfloat16")
    figures = json.loads(run(capsys, folder, "--json")[1].out)
    expert = 3 * 40 * 64
    assert figures["experts"] == {"total": 6, "per_token": 4}
    assert figures["parameters"]["experts"] == 2 * 6 * expert
    assert figures["active_parameters"] == sum(figures["parameters"].values()) - 2 * 2 * expert
    assert figures["active_bytes"] == figures["weight_bytes"] - 2 * (2 * 2 * expert + 307 * 64)
    assert sum(figures["weight_bytes_by_kind"].values()) == figures["weight_bytes"]
    output = " ".join(run(capsys, folder)[1].out.split())
    assert "4 of 6 experts compute a token:" in output
    plain = json.loads(run(capsys, tiny("Qwen2"), "--json")[1].out)
    assert plain["experts"] is None and "experts" not in plain["parameters"]


@pytest.mark.parametrize("gpu", [("--gpu", "H200"), ("--gpu-memory", "100GiB"), ("--gpu-memory", "1GiB")])
def test_a_plan_refuses_a_mixture_on_a_gpu_as_the_server_does(gpu, capsys):
    folder = tiny("Qwen3Moe")
    code, output = run(capsys, folder, *gpu)
    said = " ".join(output.out.split())
    assert (code, output.err) == (0, "")
    assert f"Does not start: {NO_EXPERTS}." in said and "Fits" not in said and "a larger GPU" not in said
    assert json.loads(run(capsys, folder, *gpu, "--json")[1].out)["refusal"] == NO_EXPERTS
    assert json.loads(run(capsys, tiny("Qwen3"), *gpu, "--json")[1].out)["refusal"] is None


def test_activations_that_do_not_fit_are_refused_by_plan_and_start(monkeypatch, capsys):
    """All experts compute each token, and have a row of activations for it."""
    folder = tiny("Qwen3Moe", num_experts=2000, num_experts_per_tok=2000, moe_intermediate_size=1, num_hidden_layers=1)
    free = 2**30
    plan = run(capsys, folder, "--ram", free)[1].out
    assert "Does not fit" in plan and "--max-num-batched-tokens 256: activations of" in plan
    for suggested in (256, 512):
        made = json.loads(run(capsys, folder, "--ram", free, "--max-num-batched-tokens", suggested, "--json")[1].out)
        assert made["fits"] == (suggested == 256)
    monkeypatch.setattr(HostBackend, "free_memory", staticmethod(lambda: free))
    monkeypatch.setattr(HostBackend, "prepare", lambda *arguments: pytest.fail("activations were allocated"))
    code = cli.main(["generate", "hi", "--model", str(folder), "--load-format", "dummy"])
    error = capsys.readouterr().err
    assert code == 75 and error.count("\n") == 1
    assert "and the activations" in error and "Lower --max-num-batched-tokens, which is 512" in error
