"""The kernels are compiled for the instruction sets of the machine, into a file that is complete or does not exist."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.kernels.cpu import compiling
from app.kernels.cpu.compiling import (
    INSTRUCTION_SETS,
    SOURCES,
    CannotCompile,
    compile_library,
    find_compiler,
    source_key,
    supported_sets,
)
from tests.kernels.cpu.compilers import use_compiler

AVX2 = "fpu sse2 avx2 fma f16c bmi1 bmi2 movbe"
AVX512 = f"{AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (f"{AVX512} avx512_bf16 avx512_vnni", ["avx512_bf16", "avx512_vnni", "avx512", "avx2"]),
        (f"{AVX512} avx512_vnni", ["avx512_vnni", "avx512", "avx2"]),
        (f"{AVX512} avx512_bf16", ["avx512", "avx2"]),
        (AVX512.replace("avx512dq ", ""), ["avx2"]),
        (AVX2, ["avx2"]),
        (AVX2.replace("f16c ", ""), []),
        ("fpu sse2", []),
    ],
)
def test_the_best_instruction_set_comes_first(flags: str, expected: list[str], tmp_path: Path):
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\nbugs\t: none\n\nprocessor\t: 1\n")
    assert supported_sets(file) == expected


def test_unknown_machines_have_no_instruction_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert supported_sets(tmp_path / "nothing") == []
    (tmp_path / "empty").touch()
    assert supported_sets(tmp_path / "empty") == []
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert supported_sets() == []
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert supported_sets() == []


def test_cxx_overrides_the_usual_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_compiler("good", tmp_path, monkeypatch)
    assert find_compiler() == str(tmp_path / "bin" / "g++")
    shutil.copy(tmp_path / "bin" / "g++", tmp_path / "bin" / "my-compiler")
    monkeypatch.setenv("CXX", "my-compiler")
    assert find_compiler() == str(tmp_path / "bin" / "my-compiler")
    monkeypatch.setenv("CXX", "not-there")
    assert find_compiler() == str(tmp_path / "bin" / "g++")


def test_without_a_compiler_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_compiler("none", tmp_path, monkeypatch)
    with pytest.raises(CannotCompile, match=r"install g\+\+"):
        compile_library("avx2", tmp_path / "lib" / "x.so")


def test_the_key_depends_on_sources_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(SOURCES, tmp_path / "native")
    monkeypatch.setattr(compiling, "SOURCES", tmp_path / "native")
    first = source_key()
    assert source_key() == first
    keys = {first}
    (tmp_path / "native" / "rows.cpp").write_text("// changed")
    keys.add(source_key())
    (tmp_path / "native" / "simd.h").write_text("// changed")
    keys.add(source_key())
    (tmp_path / "native" / "simd.h").rename(tmp_path / "native" / "lanes.h")
    keys.add(source_key())
    (tmp_path / "native" / "more.cpp").touch()
    keys.add(source_key())
    monkeypatch.setattr(compiling, "FLAGS", (*compiling.FLAGS, "-g"))
    keys.add(source_key())
    assert len(keys) == 6
    (tmp_path / "native" / "lib").mkdir()
    (tmp_path / "native" / "lib" / "avx2.so").touch()
    assert source_key() in keys, "compiled files are no sources"


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_a_library_is_compiled_with_the_flags_of_its_instruction_set(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_compiler("good", tmp_path, monkeypatch)
    target = tmp_path / "deep" / "lib" / "x.so"
    compile_library(name, target)
    words = target.read_text().split()
    assert {*compiling.FLAGS, *INSTRUCTION_SETS[name][1], "-shared"} <= set(words)
    assert "-ffast-math" not in words
    assert sum(word.endswith(".o") for word in words) == len(list(SOURCES.glob("*.cpp")))
    assert list(target.parent.iterdir()) == [target], "nothing else is left in the folder"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("failing", "unknown type"), ("failing-linker", "cannot find -lgomp"), ("killed", "ended by SIGINT")],
)
def test_a_failing_compiler_leaves_no_file_and_gives_the_reason(
    kind: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_compiler(kind, tmp_path, monkeypatch)
    with pytest.raises(CannotCompile, match=reason):
        compile_library("avx2", tmp_path / "lib" / "x.so")
    assert list((tmp_path / "lib").iterdir()) == []


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_interrupt_ends_all_processes_of_the_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_compiler("endless", tmp_path, monkeypatch)
    pids: list[int] = []

    def interrupt_when_all_run(done: int, total: int) -> None:
        file = tmp_path / "bin" / "g++.pids"
        pids[:] = map(int, file.read_text().split()) if file.exists() else []
        assert done == 0 and total == len(list(SOURCES.glob("*.cpp")))
        if len(pids) == 2 * total:
            assert all(os.getpgid(pid) != os.getpgid(0) for pid in pids), "Ctrl-C would also reach them"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_library("avx2", tmp_path / "lib" / "x.so", watch=interrupt_when_all_run)
    while any(
        map(is_running, pids)
    ):  # child processes of a compiler end with it, but this process cannot wait for them
        time.sleep(0.01)
    assert list((tmp_path / "lib").iterdir()) == []


def test_progress_is_reported_until_all_sources_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_compiler("good", tmp_path, monkeypatch)
    reports: list[tuple[int, int]] = []
    compile_library("avx2", tmp_path / "x.so", watch=lambda done, total: reports.append((done, total)))
    total = len(list(SOURCES.glob("*.cpp")))
    assert reports == sorted(reports) and {each[1] for each in reports} <= {total}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_compiler("good", tmp_path, monkeypatch)
    (tmp_path / "lib").touch()
    with pytest.raises(CannotCompile, match=str(tmp_path / "lib")):
        compile_library("avx2", tmp_path / "lib" / "x.so")


def test_what_a_killed_compilation_left_is_removed_a_day_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_compiler("good", tmp_path, monkeypatch)
    target = tmp_path / "lib" / "x.so"
    scratch: list[Path] = []

    def be_killed(done: int, total: int) -> None:
        scratch[:] = [entry for entry in target.parent.iterdir() if entry.is_dir()]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_library("avx2", target, watch=be_killed)
    assert len(scratch) == 1 and not scratch[0].exists()
    old, new = scratch[0].with_name(f"{scratch[0].name}-old"), scratch[0].with_name(f"{scratch[0].name}-new")
    for folder, age_s in ((old, 2 * 86_400), (new, 3600)):
        folder.mkdir()
        (folder / "rows.o").write_bytes(b"x")
        os.utime(folder, (time.time() - age_s,) * 2)
    compile_library("avx2", target)
    assert sorted(target.parent.iterdir()) == sorted([new, target])


def test_several_processes_may_compile_the_same_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_compiler("good", tmp_path, monkeypatch)
    target = tmp_path / "lib" / "x.so"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: compile_library("avx2", target), range(4)))
    assert "-shared" in target.read_text()
    assert list(target.parent.iterdir()) == [target]
