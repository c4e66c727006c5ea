"""Writing behind the engine: bounded, and a disk that is full or hangs keeps nobody."""

import errno
import logging
from pathlib import Path
from threading import Event

import pytest

from app.engine.kv_disk import block_writer
from app.engine.kv_disk.block_folder import BlockFolder
from app.engine.kv_disk.block_writer import PAUSE_S, BlockWriter
from app.engine.kv_disk.kv_disk_counts import KVDiskCounts
from app.engine.schedule.kv.prefix_cache import BlockContent
from tests.engine.kv_disk.stored_texts import chain, data_of

LONG_S = 60.0


class FaultyFolder(BlockFolder):
    """A folder whose disk is full while `is_full`, and hangs while `can_go_on` is not set."""

    is_full = False

    def __init__(self, path: Path) -> None:
        super().__init__(path, 2**20)
        self.can_go_on, self.is_writing = Event(), Event()
        self.can_go_on.set()

    def write(self, content: BlockContent, data: memoryview) -> None:
        self.is_writing.set()
        assert self.can_go_on.wait(LONG_S)
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(content, data)


class Writing:
    """A writer, and the time that it sees."""

    def __init__(self, path: Path) -> None:
        self.now, self.folder, self.counts = 0.0, FaultyFolder(path), KVDiskCounts()
        self.writer = BlockWriter(self.folder, self.counts, lambda: self.now)

    def put(self, *contents: BlockContent) -> None:
        for content in contents:
            self.writer.put(content, data_of(content))

    def wait(self) -> None:
        """Return when all that was put has been written or dropped."""
        done = Event()
        self.folder.touch = lambda hashes: done.set()  # type: ignore[method-assign]
        self.writer.touch([b""])
        assert done.wait(LONG_S)


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    return Writing(tmp_path)


def test_what_was_put_is_written_once(writing: Writing):
    writing.put(*chain(3), *chain(3))
    writing.writer.close(LONG_S)
    assert len(writing.folder) == writing.counts.num_written == 3
    assert writing.writer.room == block_writer.MAX_QUEUED_BYTES


def test_a_disk_that_hangs_takes_no_more_than_the_queue(writing: Writing, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(block_writer, "MAX_QUEUED_BYTES", 3 * 64)
    monkeypatch.setattr(block_writer, "MAX_TOUCHED", 7)
    writing.folder.can_go_on.clear()
    writing.put(*chain(3))
    assert writing.folder.is_writing.wait(LONG_S)
    assert writing.writer.room == 0 and all(writing.writer.has(content.hash) for content in chain(3))
    for _ in range(100):
        writing.writer.touch([b"", b""])
    assert len(writing.writer._queue) == 2 + 3
    writing.writer.close(0.0)  # does not wait longer than it may
    writing.folder.can_go_on.set()
    writing.writer.close(LONG_S)
    assert len(writing.folder) == 3 and not writing.writer._num_touched


def test_a_full_disk_is_left_alone_for_a_while_and_named_once(writing: Writing, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "quire.kv_disk")
    writing.folder.is_full = True
    writing.put(*chain(3))
    writing.wait()
    assert writing.counts.num_dropped == 3 and writing.writer.room == 0
    writing.now = PAUSE_S + 1
    assert writing.writer.room > 0
    writing.put(chain(1)[0])
    writing.wait()
    assert writing.counts.num_dropped == 4 and writing.writer.room == 0
    writing.now, writing.folder.is_full = 3 * PAUSE_S, False
    writing.put(*chain(2))
    writing.wait()
    assert len(writing.folder) == writing.counts.num_written == 2
    assert [record.message.split(" ", 5)[-1] for record in caplog.records] == [
        f"{writing.folder.path} cannot be written: No space left on device. Prompts are computed as without it.",
        f"{writing.folder.path} can be written again.",
    ]
