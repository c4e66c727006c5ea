"""Hostile GGUF files end a command with exit code 2 and one line, and take neither memory nor time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import main
from app.engine import build
from app.runtime.gc_tuning import without_gc
from tests.cases import long
from tests.checkpoint.gguf.hostile_gguf import HOSTILE_FILES
from tests.gguf_writer import tiny_gguf

MAX_BYTES = 8 << 20
MAX_CPU_S = 1.0
NUM_FILES = 200


def write(files: dict[str, bytes], folder: Path) -> Path:
    """Write the files, and return the first."""
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    return folder / next(iter(files))


def test_there_are_enough_different_files():
    assert len({tuple(files.items()) for files, _ in HOSTILE_FILES.values()}) >= NUM_FILES


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import what the command does, which takes more memory than a file may."""
    assert main(["generate", "hi", "--model", "/no/such/model"]) == 2


# To trace memory takes four times as long as to refuse a file, which `plan` below does with the same reader.
@pytest.mark.parametrize("name", [long(name) if place % 4 else name for place, name in enumerate(HOSTILE_FILES)])
def test_a_hostile_file_is_rejected_in_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files, words = HOSTILE_FILES[name]
    file = write(files, tmp_path)
    tracemalloc.start()
    with without_gc():  # a collection of what all tests before have made may take a second
        begin = time.thread_time()  # other programs and threads take none of it
        code = main(["generate", "hi", "--model", str(file)])
        seconds, peak = time.thread_time() - begin, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == "" and err.count("\n") == 1 and len(err) < 1200
    assert re.search(words, err), err
    assert peak < MAX_BYTES
    assert seconds < MAX_CPU_S


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_a_plan_refuses_what_a_server_refuses(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files, words = HOSTILE_FILES[name]
    assert main(["plan", str(write(files, tmp_path)), "--ram", "1GiB"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and re.search(words, err), err


@pytest.mark.parametrize("name", ["2^32 dimensions", "array beyond", "cut after 2000 bytes", "second part is cut"])
def test_the_server_does_not_start_with_a_hostile_file(name: str, tmp_path: Path):
    file = write(HOSTILE_FILES[name][0], tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "app", "serve", str(file), "--port", "0"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("quire: error: ") and done.stderr.count("\n") == 1


def generate_changing(file: Path, when: str, change: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command, and `change` the file just before the function `when` of `app.engine.build` is called."""
    function = getattr(build, when)

    def changing(*args: object) -> object:
        change()
        return function(*args)

    monkeypatch.setattr(build, when, changing)
    return main(["generate", "hi", "--model", str(file), "--num-kv-blocks", "8"])


BEFORE_MAPPING, AFTER_MAPPING = "FileSource", "load_weights"


@pytest.mark.parametrize("when", [BEFORE_MAPPING, AFTER_MAPPING])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 1.0])
def test_a_file_that_is_truncated_after_it_was_opened_is_rejected(
    share: float, when: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Reading a mapped page behind the end of a file would end the process by a signal."""
    file = tiny_gguf(tmp_path / "m.gguf")
    size = int(share * (file.stat().st_size - 1))
    assert generate_changing(file, when, lambda: os.truncate(file, size), monkeypatch) == 2
    err = capsys.readouterr().err
    assert "m.gguf became shorter while it was loaded" in err and err.count("\n") <= 2


@pytest.mark.parametrize("num_more", [0, 32])
def test_a_file_that_is_replaced_before_it_is_mapped_is_rejected(
    num_more: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """By one of the same size, or a longer one: its tensors may have other places."""
    file, other = tiny_gguf(tmp_path / "m.gguf"), tmp_path / "other.gguf"
    other.write_bytes(file.read_bytes() + bytes(num_more))
    assert generate_changing(file, BEFORE_MAPPING, lambda: other.replace(file), monkeypatch) == 2
    err = capsys.readouterr().err
    assert "m.gguf was changed while it was loaded" in err and err.count("\n") <= 2
