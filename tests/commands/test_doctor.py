"""The doctor reports every check, also after a failed one."""

import re
import socket
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from app import cli
from app.checkpoint.inspection import inspect
from app.commands import budget, doctor
from app.commands.doctor import Mark, findings
from app.config.settings import make_config
from app.contract.errors import CannotStart
from app.engine.kv_disk.block_folder import BlockFolder
from app.journal import journal_file
from app.journal.store import JournalStore
from app.kernels.cpu import compiling
from app.kernels.cpu.compiling import source_key
from app.kernels.cpu.library import load_library
from tests.gguf_writer import tiny_gguf
from tests.kernels.cpu.compilers import use_compiler

NAMES = ["python", "cpu", "torch", "kernels", "gpu", "model", "memory", "disk", "files", "port"]


def by_name(**values: object):
    """The findings for a configuration."""
    found = list(findings(make_config({"port": 0, **values})))
    assert [finding.name for finding in found] == NAMES
    return {finding.name: finding for finding in found}


def test_the_embedded_model_is_fine():
    found = by_name()
    assert Mark.FAIL not in {finding.mark for finding in found.values()}
    assert "guide" in found["model"].text
    assert "KV cache" in found["memory"].text


def test_the_model_is_named_as_for_other_commands(capsys):
    assert cli.main(["doctor", "/nowhere/at/all", "--port", "0"]) == 1
    assert "FAIL  model    There is no folder or file /nowhere/at/all" in capsys.readouterr().out


def test_a_missing_model_fails_and_other_checks_run():
    found = by_name(model="/nowhere/at/all")
    assert found["model"].mark is Mark.FAIL
    assert "/nowhere/at/all" in found["model"].text
    assert found["port"].mark is Mark.OK


@pytest.mark.parametrize("model", ["guide", "/nowhere/at/all"])
def test_the_model_is_inspected_once(model, a_gpu, monkeypatch):
    inspected = []
    monkeypatch.setattr(doctor, "inspect", lambda settings: inspected.append(settings.model) or inspect(settings))
    monkeypatch.setattr("app.kernels.triton.c_compiler.check_c_compiler", no_compiler)
    a_gpu(9, 0)
    by_name(model=model)
    assert inspected == [model]


def no_compiler() -> str:
    """Find no C compiler: whether all kernels are compiled depends on the model."""
    raise CannotStart("There is no C compiler.")


def test_more_cache_than_memory_fails():
    assert by_name(num_kv_blocks=2**40)["memory"].mark is Mark.FAIL


def test_a_small_cache_is_a_warning():
    assert by_name(num_kv_blocks=4)["memory"].mark is Mark.WARN


@pytest.fixture
def avx2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the kernels on a machine with AVX2, which does not exist yet."""
    monkeypatch.setattr(compiling, "supported_sets", lambda: ["avx2"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "quire" / f"avx2-{source_key()}.so"


def test_kernels_are_shown_with_their_file():
    native = load_library()
    if native is None:
        pytest.skip("there are no native kernels here")
    found = by_name()["kernels"]
    assert found.mark is Mark.OK and found.text.startswith(f"{native.instruction_set}, from /")
    assert f"{native.instruction_set}-{source_key()}.so" in found.text


def test_the_doctor_does_not_compile_kernels(avx2: Path, tmp_path: Path, monkeypatch):
    use_compiler("good", tmp_path, monkeypatch)
    found = by_name()["kernels"]
    assert found.mark is Mark.OK and f"compiled once with {tmp_path / 'bin' / 'g++'} at the first start" in found.text
    assert not avx2.exists()


def test_without_kernels_the_reason_is_shown(avx2: Path, tmp_path: Path, monkeypatch):
    use_compiler("none", tmp_path, monkeypatch)
    found = by_name()["kernels"]
    assert found.mark is Mark.WARN and "install g++" in found.text
    avx2.write_bytes(b"\x7fELF".ljust(64, b"\0"))  # a complete file, but not a kernel library
    found = by_name()["kernels"]
    assert found.mark is Mark.WARN and str(avx2) in found.text and "remove the file" in found.text
    monkeypatch.setattr(compiling, "supported_sets", list)
    found = by_name()["kernels"]
    assert found.mark is Mark.WARN and "none, the slower torch path" in found.text
    assert by_name(enforce_eager=True)["kernels"].text == "not used: --enforce-eager"


def test_the_same_tokens_take_less_memory_in_int8():
    plain, quantized = (
        int(re.search(r"KV cache (\d+) MiB", by_name(**given)["memory"].text)[1])
        for given in ({}, {"kv_cache_dtype": "int8"})
    )
    assert quantized < plain


def test_weights_of_a_file_that_do_not_fit_fail_with_the_quant_that_does(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "supported_sets", lambda: ["avx2"])
    monkeypatch.setattr("app.engine.execute.memory_plan.free_memory", lambda: 1_200_000)
    file = str(tiny_gguf(tmp_path / "m.gguf", kind="Q8_0", intermediate_size=4096))
    kept, decoded = (by_name(model=file, dtype="bfloat16", enforce_eager=is_eager) for is_eager in (False, True))
    assert kept["memory"].mark is Mark.FAIL and "What fits: the same model as Q4_K_M (" in kept["memory"].text
    assert decoded["memory"].mark is Mark.FAIL and "Use a smaller model or a shorter dtype." in decoded["memory"].text


def test_a_failed_check_exits_with_1(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli.main(["doctor", "--port", str(taken.getsockname()[1])]) == 1
    assert "FAIL  port" in capsys.readouterr().out
    assert cli.main(["doctor", "--port", "0"]) == 0


@pytest.fixture
def a_gpu(monkeypatch):
    """A function that gives this machine a GPU of a compute capability."""

    def show(major: int, minor: int) -> None:
        properties = SimpleNamespace(
            name="NVIDIA X1", total_memory=80 << 30, major=major, minor=minor, multi_processor_count=132
        )
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
        monkeypatch.setattr("app.commands.doctor.resolve_device", lambda wanted: "cuda")

    return show


def test_a_gpu_is_described_by_what_its_capability_allows(a_gpu, monkeypatch):
    monkeypatch.setattr("app.kernels.triton.c_compiler.check_c_compiler", lambda: "/usr/bin/gcc")
    a_gpu(9, 0)
    found = by_name()["gpu"]
    assert found.mark is Mark.OK
    assert found.text == (
        "NVIDIA X1, 80 GiB, compute capability 9.0 (bfloat16, FP8 KV cache), kernels compiled with /usr/bin/gcc"
    )
    a_gpu(8, 0)
    assert "8.0 (bfloat16, no FP8 KV cache)" in by_name()["gpu"].text
    rejected = by_name(device="cuda", kv_cache_dtype="fp8")["gpu"]
    assert rejected.mark is Mark.FAIL and "fp8 needs compute capability 8.9" in rejected.text
    a_gpu(7, 5)
    old = by_name()["gpu"]
    assert old.mark is Mark.WARN and "too old for the kernels" in old.text


def test_a_gpu_without_a_c_compiler_cannot_be_used_unless_all_is_compiled(a_gpu, monkeypatch, tmp_path):
    a_gpu(9, 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = by_name(device="cuda")["gpu"]
    assert found.mark is Mark.FAIL and "apt-get install gcc libc6-dev" in found.text
    found = by_name()["gpu"]
    assert found.mark is Mark.WARN and "the model runs on the CPU" in found.text
    monkeypatch.setattr("app.engine.execute.gpu.precompilation.Precompilation.is_done", True)
    found = by_name(device="cuda")["gpu"]
    assert found.mark is Mark.OK and "all kernels compiled" in found.text


def kept(**values: object) -> dict[str, doctor.Finding]:
    """The findings about what a server keeps on disk."""
    found = findings(make_config({"port": 0, "model": "/nowhere", **values}))
    return {finding.name: finding for finding in found if finding.name in ("journal", "kv_disk")}


def test_what_a_server_keeps_can_be_made_and_is_not(tmp_path: Path):
    found = kept(journal=str(tmp_path / "a" / "journal"), kv_disk=str(tmp_path / "b"))
    assert [finding.mark for finding in found.values()] == [Mark.OK, Mark.OK]
    assert [*tmp_path.iterdir()] == []


def test_what_a_server_cannot_use_fails_as_it_would(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o600)
    found = kept(journal=str(tmp_path), kv_disk=str(tmp_path / "file"))
    assert "is a link or no file. Give --journal the path of a file." in found["journal"].text
    assert "is a link or no folder" in found["kv_disk"].text
    assert {finding.mark for finding in found.values()} == {Mark.FAIL}


def test_a_journal_in_use_or_damaged_is_told_and_stays(tmp_path: Path):
    path = tmp_path / "journal"
    store = JournalStore(path)
    assert "in use by another process" in kept(journal=str(path))["journal"].text
    store.close()
    assert kept(journal=str(path))["journal"].mark is Mark.OK
    damaged = path.read_bytes()[:100] + b"damage" * 1000
    path.write_bytes(damaged)
    assert "is damaged" in kept(journal=str(path))["journal"].text and path.read_bytes() == damaged


def test_a_folder_in_use_is_told_and_nothing_is_kept_open(tmp_path: Path):
    path = tmp_path / "kv"
    folder = BlockFolder(path, 2**20)
    assert "in use by another process" in kept(kv_disk=str(path))["kv_disk"].text
    folder.close()
    assert kept(kv_disk=str(path))["kv_disk"].mark is Mark.OK
    BlockFolder(path, 2**20).close()


def test_a_journal_that_may_not_be_written_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "journal"
    JournalStore(path).close()

    def is_full(path: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(journal_file, "connect", is_full)
    assert "cannot be opened: database or disk is full. Make it writable" in kept(journal=str(path))["journal"].text


def test_a_prefix_that_cannot_be_pinned_fails(tmp_path: Path):
    assert "Cannot read the prefix file" in by_name(pin_prefix=(str(tmp_path / "none"),))["model"].text


def test_one_error_is_not_told_twice():
    assert by_name(model="/nowhere/at/all")["memory"].text == "as for the model"
