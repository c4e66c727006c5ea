"""The file of a block: it is read as it was written, for its own content alone, or not at all."""

import os
import socket
from pathlib import Path

import pytest

from app.engine.kv_disk.block_file import BlockDamaged, num_file_bytes, read_block, write_block
from tests.engine.kv_disk.stored_texts import chain, data_of


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The file of the second block of a text."""
    file = tmp_path / "block.kv"
    write_block(file, chain(2)[1], data_of(chain(2)[1]))
    return file


def read(file: Path, index: int = 1, size: int = 64, **text: object) -> bytes:
    """The data of a block, read from a file."""
    into = memoryview(bytearray(size))
    read_block(file, chain(3, **text)[index], into)
    return bytes(into)


def test_a_block_is_read_as_it_was_written(written: Path):
    assert read(written) == data_of(chain(2)[1])
    assert written.stat().st_size == num_file_bytes(chain(2)[1], 64)
    assert written.stat().st_mode & 0o777 == 0o600
    assert [*written.parent.iterdir()] == [written]


def test_a_file_is_good_for_no_other_content_and_no_other_size(written: Path):
    for other in ({"index": 0}, {"index": 2}, {"first": 8}, {"context": b"another"}, {"size": 32}, {"size": 96}):
        with pytest.raises(BlockDamaged):
            read(written, **other)


def test_every_flipped_byte_is_found(written: Path):
    whole = written.read_bytes()
    for place in range(len(whole)):
        written.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(BlockDamaged):
            read(written)


def test_every_truncation_is_found_and_so_is_what_is_too_long(written: Path):
    whole = written.read_bytes()
    for damaged in (*(whole[:size] for size in range(len(whole))), whole + b"x"):
        written.write_bytes(damaged)
        with pytest.raises(BlockDamaged):
            read(written)


def test_a_link_is_not_followed(written: Path):
    link = written.with_name("link.kv")
    link.symlink_to(written)
    with pytest.raises(BlockDamaged, match="link"):
        read(link)


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket"])
def test_what_is_no_file_is_not_waited_for(kind: str, written: Path):
    written.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        {
            "pipe": lambda: os.mkfifo(written),
            "folder": written.mkdir,
            "socket": lambda: listener.bind(os.path.relpath(written)),  # an address is short
        }[kind]()
        with pytest.raises(BlockDamaged, match="no file"):
            read(written)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path):
    folder = tmp_path / "gone"
    with pytest.raises(FileNotFoundError):
        write_block(folder / "block.kv", chain(1)[0], data_of(chain(1)[0]))
    (tmp_path / "taken.kv").mkdir()
    with pytest.raises(OSError):
        write_block(tmp_path / "taken.kv", chain(1)[0], data_of(chain(1)[0]))
    assert [*tmp_path.iterdir()] == [tmp_path / "taken.kv"]
