"""`quire plan owner/name` of models of a hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
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
        assert (
            code == 0
            and f"{name} is not on this machine" in printed.err
            and "weights are not downloaded" in printed.err
        )
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
