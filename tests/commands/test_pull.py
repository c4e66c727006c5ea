"""`quire pull`, `quire models` and `quire models rm`, as they are typed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from app import cli
from app.checkpoint.hub import hub_models as hub_module
from app.checkpoint.hub import smollm2
from app.checkpoint.hub.download import part_of
from app.checkpoint.hub.hub_cache import repo_folder, snapshots
from app.checkpoint.names import hub_name
from app.commands import best_speed, models
from app.observe.console import Console
from tests.checkpoint.gguf.hostile_gguf import HOSTILE_FILES
from tests.checkpoint.hub.fake_hub import FakeHub, FakeRepo
from tests.checkpoint.hub.hub_fixtures import NEW, OLD, checkpoint_files, hub, quant_files
from tests.checkpoints import tiny
from tests.gguf_writer import model_fields, stored_tensors, text_fields, write_gguf

__all__ = ["hub"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No smollm2 of this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    """What `quire models --json` prints, by name."""
    capsys.readouterr()
    assert cli.main(["models", "--json"]) == 0
    return {model["name"]: model for model in json.loads(capsys.readouterr().out)}


def put_in_cache(model: str) -> None:
    """Download a model, also one that `quire pull` would refuse."""
    name = hub_name(model)
    assert name is not None
    hub_module.pull(name, None, Console(io.StringIO()))


def test_pull_says_what_it_takes_and_whether_it_runs(hub: FakeHub, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["pull", "owner/tiny"]) == 0
    said = capsys.readouterr().out
    assert "owner/tiny at aaaaaaa: 1 weight file, " in said and "Serve it with `quire serve owner/tiny`." in said
    assert cli.main(["pull", "owner/tiny"]) == 0, "there is nothing to take"
    assert "weight file" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["pull", "serve", "plan"])
def test_what_cannot_be_served_is_refused_before_a_download(
    command: str, hub: FakeHub, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    odd = json.dumps({"architectures": ["FalconForCausalLM"]}).encode()
    hub.repos["owner/odd"] = FakeRepo({"config.json": odd, "model.safetensors": b"x" * 999})
    folder = tiny("Llama")
    fields = model_fields(folder, "Llama") | text_fields(folder) | {"tokenizer.ggml.pre": "unheard-of"}
    file = write_gguf(tmp_path / "m.gguf", fields, stored_tensors(folder, "Llama", "Q8_0"))
    hub.repos["owner/words"] = FakeRepo({"m-Q8_0.gguf": file.read_bytes()})
    [experts] = HOSTILE_FILES["seed_oss: expert_count is used"][0].values()
    hub.repos["owner/experts"] = FakeRepo({"m-Q8_0.gguf": experts})
    for name, reason in (("odd", "FalconForCausalLM"), ("experts", "expert_count is 8"), ("words", "'unheard-of'")):
        assert cli.main([command, f"owner/{name}"]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1), printed
        assert reason in printed.err and "quire-headers-" not in printed.err, printed.err
    assert not list((tmp_path / "hf").rglob("*")), "nothing enters the cache"


def test_what_only_the_whole_model_says_is_said_after_the_download(hub: FakeHub, capsys: pytest.CaptureFixture[str]):
    hub.repos["owner/tiny"].files["model.safetensors"] = b"x" * 999
    assert cli.main(["pull", "owner/tiny"]) == 0
    assert "It cannot be served: model.safetensors" in capsys.readouterr().out


def test_pull_of_what_needs_no_download(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["pull", "guide"]) == 0
    assert "guide is a part of Quire." in capsys.readouterr().out
    assert cli.main(["pull", "nothing"]) == 2


def test_ctrl_c_says_that_the_part_is_kept(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def interrupt(self: object, done: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hub_module.DownloadProgress, "show", interrupt)
    assert cli.main(["pull", "owner/tiny"]) == cli.EXIT_INTERRUPTED
    assert "What has arrived is kept" in capsys.readouterr().out


def test_models_lists_what_is_there_with_one_reason(hub: FakeHub, capsys: pytest.CaptureFixture[str]):
    for name in ("owner/tiny", "owner/quants", "owner/quants:Q8_0"):
        put_in_cache(name)
    found = listed(capsys)
    assert list(found) == ["guide", "owner/quants:Q4_K_M", "owner/quants:Q8_0", "owner/tiny"]
    assert found["guide"]["runs"] is True and found["owner/tiny"]["runs"] is True
    assert found["owner/tiny"]["bytes"] == len(checkpoint_files()["model.safetensors"])
    assert found["owner/quants:Q8_0"]["bytes"] == 1500 and found["owner/quants:Q8_0"]["format"] == "GGUF Q8_0"
    assert found["owner/quants:Q8_0"]["runs"] is False and found["owner/quants:Q8_0"]["reason"]
    assert cli.main(["models"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "format", "size", "last", "used", "runs"] and len(lines) == 4
    assert lines[3].startswith("owner/tiny") and lines[3].endswith("yes")


def test_models_says_what_fits_and_how_fast_it_is_at_best(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(best_speed, "MIN_BYTES", 1)
    monkeypatch.setattr(best_speed, "memory_speed", lambda: 5e10)
    for name in ("owner/tiny", "owner/quants:Q8_0"):
        put_in_cache(name)
    figures = listed(capsys)
    assert figures["owner/tiny"]["fits"] is True and figures["owner/quants:Q8_0"]["fits"] is None
    weights, fastest = figures["owner/tiny"]["weight_bytes"], figures["owner/tiny"]["max_tokens_per_second"]
    assert isinstance(weights, int) and isinstance(fastest, float) and fastest >= 5e10 / weights
    assert figures["owner/quants:Q8_0"]["max_tokens_per_second"] is None
    assert cli.main(["models"]) == 0
    assert f"yes, at best {fastest:,.0f} tokens/s" in capsys.readouterr().out
    monkeypatch.setattr(models, "free_memory", lambda: weights - 1)
    assert listed(capsys)["owner/tiny"]["fits"] is False
    assert cli.main(["models"]) == 0
    assert "not now: the weights take " in capsys.readouterr().out


def test_models_names_other_commits_and_incomplete_downloads(hub: FakeHub, capsys: pytest.CaptureFixture[str]):
    put_in_cache("owner/tiny")
    hub.repos["owner/tiny"].commit = NEW
    put_in_cache("owner/tiny")
    parts = repo_folder("owner/half") / "blobs"
    parts.mkdir(parents=True)
    (parts / "abc.incomplete").write_bytes(b"12345")
    (snapshots("owner/tiny")[0].folder / "config.json").unlink()
    found = listed(capsys)
    assert {"owner/tiny", "owner/tiny@aaaaaaa", "owner/half"} < set(found)
    assert found["owner/half"]["bytes"] == 5 and "incomplete" in str(found["owner/half"]["reason"])
    assert found["owner/tiny"]["revision"] == NEW and "incomplete" in str(found["owner/tiny"]["reason"])


def test_whole_files_of_an_interrupted_download_are_listed_and_can_be_deleted(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
):
    blobs = repo_folder("owner/half") / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc").write_bytes(b"12345")
    assert listed(capsys)["owner/half"]["bytes"] == 5
    assert cli.main(["models", "rm", "owner/half", "--yes"]) == 0
    assert "owner/half" not in listed(capsys)


def test_a_model_that_is_there_is_pulled_without_a_network(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert cli.main(["pull", "owner/tiny"]) == 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    capsys.readouterr()
    assert cli.main(["pull", "owner/tiny"]) == 0
    assert "HF_HUB_OFFLINE is set. Using what was downloaded before" in capsys.readouterr().out
    assert cli.main(["pull", "owner/quants"]) == 75


def test_models_is_torch_free(hub: FakeHub):
    code = "import app.commands.models as m, sys; list(m.stored_models()); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rm_asks_deletes_the_revision_and_says_the_bytes(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    put_in_cache("owner/tiny")
    for answer in ("", "n\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert cli.main(["models", "rm", "owner/tiny"]) == 1
        assert "owner/tiny" in listed(capsys)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    size = sum(len(content) for name, content in checkpoint_files().items() if name.endswith(".json"))
    size += len(checkpoint_files()["model.safetensors"])
    assert cli.main(["models", "rm", "owner/tiny"]) == 0
    out, err = capsys.readouterr()
    assert "Delete owner/tiny safetensors (revision aaaaaaa), " in err and f"({size} bytes) are free again" in out
    assert list(listed(capsys)) == ["guide"] and not repo_folder("owner/tiny").exists()


def test_rm_deletes_one_commit_and_keeps_what_another_needs(hub: FakeHub, capsys: pytest.CaptureFixture[str]):
    put_in_cache("owner/tiny")
    hub.repos["owner/tiny"].commit = NEW
    hub.repos["owner/tiny"].files["config.json"] += b" "
    put_in_cache("owner/tiny")
    assert cli.main(["models", "rm", f"owner/tiny@{OLD[:7]}", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bytes"] == len(checkpoint_files()["config.json"])
    assert listed(capsys)["owner/tiny"]["runs"] is True


def test_rm_of_a_quant_never_deletes_another(hub: FakeHub, capsys: pytest.CaptureFixture[str]):
    put_in_cache("owner/quants:Q8_0")
    put_in_cache("owner/quants:Q4_K_M")
    assert cli.main(["models", "rm", "owner/quants:Q8_0", "--yes"]) == 2
    assert "shares its revision with Q4_K_M" in capsys.readouterr().err
    assert cli.main(["models", "rm", "owner/quants", "--yes", "--json"]) == 0
    deleted = json.loads(capsys.readouterr().out)
    needed = [name for name in quant_files() if "mmproj" not in name]
    assert deleted["bytes"] == sum(len(quant_files()[name]) for name in needed)


def test_rm_knows_the_names_that_serve_knows(hub: FakeHub, capsys: pytest.CaptureFixture[str]):
    files = {"m-UD-Q4_K_XL.gguf": b"4" * 9, "n-Q8_0.gguf": b"8" * 8, "plain.gguf": b"0" * 7}
    for number, (path, name) in enumerate(
        zip(files, ("m:Q4_K_XL", "n/n-Q8_0.gguf", "p/plain.gguf"), strict=True)
    ):  # each alone in its repository
        repo = name[0]
        hub.repos[f"owner/{repo}"] = FakeRepo({path: files[path]}, commit=f"{number:040}")
        put_in_cache(f"owner/{name}")
        assert cli.main(["models", "rm", f"owner/{name}", "--yes", "--json"]) == 0, capsys.readouterr().err
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["bytes"] == len(files[path])
    assert list(listed(capsys)) == ["guide"]


def test_files_with_the_same_quant_are_listed_and_named_by_their_files(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
):
    hub.repos["owner/twins"] = FakeRepo({"a-Q8_0.gguf": b"a" * 9, "b-Q8_0.gguf": b"b" * 8})
    names = ["owner/twins/a-Q8_0.gguf", "owner/twins/b-Q8_0.gguf"]
    for name in names:
        put_in_cache(name)
    assert set(listed(capsys)) == {"guide", *names}
    assert cli.main(["models", "rm", names[0], "--yes"]) == 2
    assert "a-Q8_0.gguf shares its revision with b-Q8_0.gguf, and a rev" in capsys.readouterr().err
    assert cli.main(["models", "rm", "owner/twins", "--yes"]) == 0
    assert "Deleted owner/twins a-Q8_0.gguf, owner/twins b-Q8_0.gguf (revision aaaaaaa)" in capsys.readouterr().out
    assert list(listed(capsys)) == ["guide"]


@pytest.mark.parametrize("name", ["owner/tiny", "owner/quants"])
def test_rm_deletes_a_commit_of_the_named_repository_alone(hub: FakeHub, capsys: pytest.CaptureFixture[str], name: str):
    for each in ("owner/tiny", "owner/quants"):  # both at the same commit
        put_in_cache(each)
    before = set(listed(capsys))
    assert cli.main(["models", "rm", name, "--yes"]) == 0
    assert {each for each in before if not each.startswith(name)} == set(listed(capsys))


def test_rm_says_if_the_library_cannot_read_what_it_should_delete(hub: FakeHub, capsys: pytest.CaptureFixture[str]):
    put_in_cache("owner/quants")
    folder = repo_folder("owner/quants")
    next((folder / "blobs").iterdir()).unlink()
    assert cli.main(["models", "rm", "owner/quants", "--yes"]) == 2
    assert f"is damaged, so revisions in it cannot be deleted; delete the folder {folder}." in capsys.readouterr().err


def test_incomplete_files_of_smollm2_are_listed_and_deleted(capsys: pytest.CaptureFixture[str]):
    part = part_of(smollm2.local_file().with_name(smollm2.WHEEL))
    part.parent.mkdir(parents=True)
    part.write_bytes(b"12345")
    about = listed(capsys)["smollm2"]
    assert about["bytes"] == 5 and about["runs"] is False and "incomplete" in str(about["reason"])
    assert cli.main(["models", "rm", "smollm2", "--yes"]) == 0
    assert "Deleted 1 incomplete file of smollm2; " in capsys.readouterr().out and not part.parent.exists()
    assert "smollm2" not in listed(capsys)


@pytest.mark.parametrize(("name", "words"), [
    ("guide", "a part of Quire"), ("smollm2", "smollm2 is not on this machine"),
    ("owner/nothing", "owner/nothing is not on this machine"), ("./folder", "your own files are yours"),
])  # fmt: skip
def test_rm_refuses_what_is_not_downloaded(hub: FakeHub, capsys: pytest.CaptureFixture[str], name: str, words: str):
    put_in_cache("owner/quants")
    assert cli.main(["models", "rm", name, "--yes"]) == 2
    assert words in capsys.readouterr().err


def test_rm_deletes_incomplete_files(hub: FakeHub, capsys: pytest.CaptureFixture[str]):
    parts = repo_folder("owner/half") / "blobs"
    parts.mkdir(parents=True)
    (parts / "abc.incomplete").write_bytes(b"12345")
    assert cli.main(["models", "rm", "owner/half", "--yes"]) == 0
    assert "1 incomplete file of owner/half" in capsys.readouterr().out and not parts.exists()
