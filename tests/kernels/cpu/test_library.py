"""The kernels are found, or compiled once; without them the torch path is used, with a warning."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from app.kernels.cpu import compiling, library
from app.kernels.cpu.compiling import SOURCES, CannotCompile, find_compiler, source_key, supported_sets
from app.kernels.cpu.library import NativeLibrary, cache_folder, library_file, load_library, prepare_library
from app.kernels.cpu.records import Code
from tests.kernels.cpu.compilers import use_compiler
from tests.kernels.cpu.sets import load_set, set_file, sets_of_this_machine

needs_kernels = pytest.mark.skipif(load_library() is None, reason="no native kernels on this machine")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the kernel sources that replaces those of the package, and an empty cache."""
    shutil.copytree(SOURCES, tmp_path / "native", ignore=shutil.ignore_patterns("lib"))
    for module in (compiling, library):
        monkeypatch.setattr(module, "SOURCES", tmp_path / "native")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "native"


def load() -> NativeLibrary | None:
    """Load the library as in a new process."""
    return load_library.__wrapped__()


@needs_kernels
@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm")
@pytest.mark.parametrize("name", sets_of_this_machine())
def test_a_library_shares_nothing_with_others_of_the_process(name: str):
    """Tables of one instruction set in the place of another's would be wrong results."""
    command = ["nm", "--dynamic", "--defined-only", set_file(name)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    symbols = {line.split()[-1]: line.split()[-2] for line in listed}
    assert "quire_replay" in symbols and "u" not in symbols.values()  # unique in the whole process


@pytest.mark.parametrize("kind", ["none", "failing", "failing-linker"])
def test_without_a_working_compiler_there_is_one_warning_and_no_library(
    kind: str,
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    use_compiler(kind, tmp_path, monkeypatch)
    assert load() is None
    (record,) = (record for record in caplog.records if not record.getMessage().startswith("Compiling"))
    assert record.levelno == logging.WARNING and (kind != "none" or len(caplog.records) == 1)
    assert "the slower torch path is used" in record.getMessage()
    assert ("install g++" if kind == "none" else "failed") in record.getMessage()


def test_an_interrupted_compilation_is_no_failure(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(library, "supported_sets", lambda: ["avx512", "avx2"])
    use_compiler("endless", tmp_path, monkeypatch)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_library(pytest.fail, interrupt)
    assert [record.getMessage().split(",")[0] for record in caplog.records] == ["Compiling the CPU kernels for avx512"]
    assert list(cache_folder().iterdir()) == []


def test_the_best_library_is_prepared_once_and_failure_is_reported(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(library, "supported_sets", lambda: ["avx512", "avx2"])
    messages: list[str] = []
    use_compiler("failing", tmp_path / "failing", monkeypatch)
    prepare_library(messages.append)
    assert messages[-1].startswith("The CPU kernels for avx512 cannot be compiled: ") and "unknown type" in messages[-1]
    use_compiler("good", tmp_path / "good", monkeypatch)
    prepare_library(messages.append)
    (file,) = cache_folder().iterdir()
    assert file.name == f"avx512-{source_key()}.so"
    messages.clear()
    prepare_library(messages.append)
    assert not messages


def test_a_machine_that_cannot_run_the_kernels_gets_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(library, "supported_sets", lambda: ["avx2"])
    assert load_library.__wrapped__("avx512") is None
    monkeypatch.setattr(library, "supported_sets", list)
    assert load() is None
    assert not caplog.records


def test_a_library_is_compiled_once_and_again_when_its_sources_change(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    use_compiler("good", tmp_path, monkeypatch)
    first = library_file("avx2")
    assert first == tmp_path / "cache" / "quire" / f"avx2-{source_key()}.so"
    compiled_at = os.stat(first).st_mtime_ns
    assert library_file("avx2") == first and os.stat(first).st_mtime_ns == compiled_at
    (sources / "rows.cpp").write_text("// changed")
    second = library_file("avx2")
    assert second != first and second.exists()
    assert library_file("avx512") not in (first, second)
    assert [record.getMessage().startswith("Compiling the CPU kernels for") for record in caplog.records] == [True] * 3


def test_libraries_in_the_package_need_no_compiler_and_no_cache(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_compiler("none", tmp_path, monkeypatch)
    own = sources / "lib" / f"avx2-{source_key()}.so"
    own.parent.mkdir()
    own.touch()
    assert library_file("avx2") == own
    with pytest.raises(CannotCompile):
        library_file("avx512")


@pytest.mark.parametrize("problem", ["a file is in the way", "it cannot be written", "there is no home"])
def test_an_unusable_cache_is_replaced_by_a_private_temporary_folder(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if problem == "a file is in the way":
        (tmp_path / "cache").touch()
    elif problem == "it cannot be written":
        monkeypatch.setattr(
            os, "access", lambda folder, mode: False
        )  # tests may run as root, which has all permissions
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", no_home)
    folder = cache_folder()
    assert folder == tmp_path / f"quire-{os.getuid()}" and folder.stat().st_mode & 0o077 == 0
    assert cache_folder() == folder


def test_without_any_writable_folder_nothing_can_be_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "cache").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(CannotCompile, match="set XDG_CACHE_HOME or TMPDIR to a folder of yours"):
        cache_folder()


@pytest.mark.parametrize("problem", ["of another user", "written by others", "a link"])
def test_a_temporary_folder_writable_by_others_is_not_used(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "cache").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"quire-{os.getuid()}"
    if problem == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif problem == "written by others":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        folder = tmp_path / "quire-12345"
        folder.mkdir(mode=0o700)
    with pytest.raises(CannotCompile, match=f"{folder} belongs to another user"):
        cache_folder()


@needs_kernels
def test_a_damaged_library_is_not_loaded(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (sources / "lib").mkdir()
    for name in supported_sets():
        (sources / "lib" / f"{name}-{source_key()}.so").write_bytes(b"\x7fELF damaged")
    assert load() is None
    assert len(caplog.records) == 1


@needs_kernels
def test_the_next_instruction_set_is_used_if_the_best_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    best, *others = supported_sets() or [""]
    if not others:
        pytest.skip("this machine runs no two sets")
    damaged, complete = tmp_path / "damaged.so", library_file(best)
    damaged.write_bytes(b"\x7fELF damaged")
    monkeypatch.setattr(library, "library_file", lambda name: damaged if name == best else complete)
    loaded = load()
    assert loaded is not None and loaded.instruction_set == others[0]
    (record,) = caplog.records
    assert f"the CPU kernels are those for {others[0]}" in record.getMessage()


@pytest.mark.parametrize("name", sets_of_this_machine())
def test_a_compiler_compiles_every_set_that_the_machine_can_run(name: str):
    """Otherwise all tests of the kernels would be skipped."""
    try:
        find_compiler()
    except CannotCompile:
        pytest.skip("no compiler found, or this machine lacks the instructions")
    assert load_set(name) is not None


@needs_kernels
def test_a_truncated_library_is_detected(tmp_path: Path):
    name = supported_sets()[0]
    complete, truncated = library_file(name), tmp_path / "truncated.so"
    assert library.is_whole(complete)
    for length in (0, 10, 64, 100_000, complete.stat().st_size - 1):
        truncated.write_bytes(complete.read_bytes()[:length])
        assert not library.is_whole(truncated), length
    truncated.write_bytes(b"something else" * 100)
    assert not library.is_whole(truncated) and not library.is_whole(tmp_path / "missing.so")


def test_every_operation_has_its_record():
    assert set(library._FIELDS) == set(Code)
    assert all(issubclass(fields, ctypes.Structure) for fields in library._FIELDS.values())


@needs_kernels
@pytest.mark.parametrize("name", sets_of_this_machine())
def test_records_have_the_same_size_on_both_sides(name: str, monkeypatch: pytest.MonkeyPatch):
    """Loading checks all records, so an additional field on one side is detected."""
    assert load_set(name) is not None

    for kind, size in list(library._SIZES.items()):
        with monkeypatch.context() as patch, pytest.raises(AssertionError, match=f"{kind}: record.h and records.py"):
            patch.setitem(library._SIZES, kind, size + 8)
            NativeLibrary(set_file(name), name)


@needs_kernels
def test_copies_of_blocks_include_all_layers_and_no_other_block():
    native = load_library()
    source, target = torch.randn(3, 2, 5, 8, 2, 6), torch.randn(3, 2, 7, 8, 2, 6)
    expected = target.clone()
    for before, after in ((4, 1), (0, 6), (2, 2)):
        expected[:, :, after] = source[:, :, before]
    native.copy_blocks(source, target, torch.tensor([[4, 1], [0, 6], [2, 2]]))
    assert torch.equal(target, expected)
    native.copy_blocks(source, target, torch.zeros(0, 2, dtype=torch.int64))
    assert torch.equal(target, expected)
    # Contiguous blocks, as in host memory.
    host = torch.zeros(7, 3, 2, 8, 2, 6).permute(1, 2, 0, 3, 4, 5)
    native.copy_blocks(source, host, torch.tensor([[3, 5]]))
    assert torch.equal(host[:, :, 5], source[:, :, 3]) and not host[:, :, :5].any()
