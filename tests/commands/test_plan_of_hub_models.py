"""`quire plan owner/name` of models of a hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.commands import best_speed, budget
from app.config.setting import KIB
from tests.checkpoint.gguf.hostile_gguf import HOSTILE_FILES
from tests.checkpoint.hub.fake_hub import FakeHub, FakeRepo
from tests.checkpoint.hub.hub_fixtures import cut_network, hub
from tests.checkpoints import tiny
from tests.gguf_writer import tiny_gguf

__all__ = ["hub"]


def plan(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, pytest.CaptureResult[str]]:
    """The exit code and the output."""
    return main(["plan", *map(str, arguments)]), capsys.readouterr()


def test_a_model_is_planned_without_a_download_of_its_weights(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    hub.repos["owner/gguf"] = FakeRepo({"m-Q8_0.gguf": tiny_gguf(tmp_path / "m.gguf", kind="Q8_0").read_bytes()})
    for name, local in (("owner/tiny", tiny("Llama")), ("owner/gguf", tmp_path / "m.gguf")):
        code, printed = plan(capsys, name, "--json", "--ram", "8GiB")
        assert code == 0
        assert f"{name} is not on this machine" in printed.err and "weights are not downloaded" in printed.err
        found, wanted = json.loads(printed.out), json.loads(plan(capsys, local, "--json", "--ram", "8GiB")[1].out)
        assert found | {"model": ""} == wanted | {"model": ""}
    assert not list((tmp_path / "hf").rglob("*")), "nothing enters the cache"


def test_a_model_that_is_there_is_planned_without_a_network(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert main(["pull", "owner/tiny"]) == 0
    cut_network(hub, monkeypatch)
    capsys.readouterr()
    code, printed = plan(capsys, "owner/tiny", "--ram", "8GiB")
    assert code == 0 and "not on this machine" not in printed.err
    code, printed = plan(capsys, "owner/quants", "--ram", "8GiB")
    assert code != 0 and len(printed.err.splitlines()) == 1 and "cannot be downloaded" in printed.err


@pytest.fixture
def quants(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """`owner/gguf` in three quants, and kernels that keep them as they are."""
    monkeypatch.setattr(budget, "supported_sets", lambda: ["avx2"])
    files = {}
    for kind in ("Q8_0", "Q5_0", "Q4_0"):
        file = tiny_gguf(tmp_path / f"{kind}.gguf", kind=kind, intermediate_size=4096)
        files[f"m-{kind}.gguf"] = file.read_bytes()
    hub.repos["owner/gguf"] = FakeRepo(files)
    return hub


def figures(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The plan as JSON."""
    code, printed = plan(capsys, *arguments, "--json")
    assert code == 0, printed.err
    found: dict[str, Any] = json.loads(printed.out)
    return found


def needed_ram(capsys: pytest.CaptureFixture[str], model: str) -> int:
    """The bytes that a model needs at least."""
    return KIB + int(figures(capsys, model, "--ram", KIB)["missing_bytes"])


def test_the_quant_that_would_fit_is_named(quants: FakeHub, capsys: pytest.CaptureFixture[str]):
    room = (needed_ram(capsys, "owner/gguf:Q8_0") + needed_ram(capsys, "owner/gguf:Q5_0")) // 2
    found = figures(capsys, "owner/gguf:Q8_0", "--ram", room)
    size = len(quants.repos["owner/gguf"].files["m-Q5_0.gguf"])
    assert found["fits"] is False
    assert found["fitting_quant"] == {"name": "owner/gguf:Q5_0", "bytes": size, "listed": True}
    assert figures(capsys, "owner/gguf:Q5_0", "--ram", room)["fits"] is True
    output = " ".join(plan(capsys, "owner/gguf:Q8_0", "--ram", room)[1].out.split())
    assert "Does not fit" in output and "a smaller quant: owner/gguf:Q5_0 (" in output
    for fits in (("--ram", "8GiB"), ("--ram", room, "--quantization", "int4")):
        assert figures(capsys, "owner/gguf:Q8_0", *fits)["fitting_quant"] is None
    assert figures(capsys, "owner/gguf:Q8_0", "--gpu-memory", "64MiB")["fitting_quant"] is None, "it decodes them"


def test_a_quant_is_named_without_a_network_if_the_cache_knows_it(
    quants: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    needed = needed_ram(capsys, "owner/gguf:Q4_0")
    for kind in ("Q4_0", "Q8_0"):
        assert main(["pull", f"owner/gguf:{kind}"]) == 0
    cut_network(quants, monkeypatch)
    capsys.readouterr()
    found = figures(capsys, "owner/gguf:Q8_0", "--ram", needed + 100 * KIB)
    assert found["fitting_quant"]["name"] == "owner/gguf:Q4_0"


def test_the_speed_at_best_is_that_of_this_machines_memory(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(best_speed, "MIN_BYTES", 0)
    monkeypatch.setattr(best_speed, "memory_speed", lambda: 5e10)
    found = figures(capsys, "owner/tiny")
    assert found["read_bytes_per_second"] == 5e10
    assert found["max_tokens_per_second"] == 5e10 / found["active_bytes"]
    output = " ".join(plan(capsys, "owner/tiny")[1].out.split())
    assert "One answer gets at best" in output and "this machine reads 50 GB/s." in output
    for elsewhere in (("--ram", "8GiB"), ("--gpu", "H100")):
        assert figures(capsys, "owner/tiny", *elsewhere)["max_tokens_per_second"] is None
        assert "at best" not in plan(capsys, "owner/tiny", *elsewhere)[1].out


def test_what_cannot_be_served_is_refused_before_its_weights_are_downloaded(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    odd = json.dumps({"architectures": ["FalconForCausalLM"]}).encode()
    hub.repos["owner/odd"] = FakeRepo({"config.json": odd, "model.safetensors": b"x" * 999})
    [content] = HOSTILE_FILES["seed_oss: expert_count is used"][0].values()
    hub.repos["owner/experts"] = FakeRepo({"m-Q8_0.gguf": content})
    for name, reason in (("owner/odd", "FalconForCausalLM"), ("owner/experts", "expert_count is 8")):
        code, printed = plan(capsys, name)
        assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
        assert reason in printed.err, printed.err
    assert not hub.sent("GET", "model.safetensors") and not list((tmp_path / "hf").rglob("*"))
