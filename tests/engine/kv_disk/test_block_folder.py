"""The folder of blocks: bounded, the least recently used go first, one process at a time, nobody else's."""

import errno
import os
from pathlib import Path

import pytest

from app.config.settings import ServerConfig
from app.contract.errors import CannotStart, ConfigurationError
from app.engine.kv_disk import block_folder
from app.engine.kv_disk.block_file import BlockDamaged, num_file_bytes
from app.engine.kv_disk.block_folder import BlockFolder, FolderFull, FolderLocked
from app.engine.schedule.kv.prefix_cache import BlockContent
from app.server import run
from tests.engine.kv_disk.stored_texts import chain, data_of

SIZE = num_file_bytes(chain(1)[0], 64)


def write(folder: BlockFolder, *contents: BlockContent) -> None:
    for content in contents:
        folder.write(content, data_of(content))


def indices(folder: BlockFolder, contents: list[BlockContent]) -> list[int]:
    """Which of the contents are there."""
    return [index for index, content in enumerate(contents) if content.hash in folder]


def read(folder: BlockFolder, content: BlockContent) -> bytes:
    into = memoryview(bytearray(64))
    folder.read(content, into)
    return bytes(into)


def test_what_was_written_is_there_for_the_next_process(tmp_path: Path):
    folder = BlockFolder(tmp_path / "new" / "kv", 100 * SIZE)
    write(folder, *chain(3), chain(3)[0])
    folder.close()
    folder.close()
    folder = BlockFolder(tmp_path / "new" / "kv", 100 * SIZE)
    assert len(folder) == 3 and folder.num_bytes == 3 * SIZE
    assert [read(folder, content) for content in chain(3)] == [data_of(content) for content in chain(3)]


def test_nobody_else_may_read_it(tmp_path: Path):
    folder = BlockFolder(tmp_path / "kv", 100 * SIZE)
    write(folder, *chain(2))
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.path.iterdir()} == {0o600}


def test_the_oldest_make_room(tmp_path: Path):
    folder, contents = BlockFolder(tmp_path, 3 * SIZE + SIZE // 2), chain(5)
    write(folder, *contents)
    assert indices(folder, contents) == [2, 3, 4]
    assert folder.num_bytes == sum(file.stat().st_size for file in tmp_path.glob("*.kv")) == 3 * SIZE


@pytest.mark.parametrize("how", ["touch", "prefer"])
def test_the_beginning_of_a_text_that_was_used_stays_longest(tmp_path: Path, how: str):
    folder, contents, others = BlockFolder(tmp_path, 4 * SIZE), chain(3), chain(3, first=1000)
    write(folder, *contents)
    note_use = getattr(folder, how)
    note_use([content.hash for content in contents])
    write(folder, *others[:2])
    assert indices(folder, contents) == [0, 1]
    note_use([content.hash for content in contents])
    write(folder, others[2])
    assert (indices(folder, contents), indices(folder, others)) == ([0, 1], [1, 2])


def test_the_next_process_knows_what_was_used_last(tmp_path: Path):
    folder, contents = BlockFolder(tmp_path, 4 * SIZE), chain(4)
    write(folder, *contents)
    folder.touch([contents[0].hash, contents[2].hash])
    folder.close()
    folder = BlockFolder(tmp_path, 2 * SIZE)  # with less space
    assert indices(folder, contents) == [0, 2]
    assert len([*tmp_path.glob("*.kv")]) == 2


def test_a_block_larger_than_all_space_is_not_written(tmp_path: Path):
    folder = BlockFolder(tmp_path, SIZE)
    write(folder, chain(1)[0])
    folder.write(chain(2)[1], data_of(chain(2)[1], 128))
    assert indices(folder, chain(2)) == [0]


def test_a_damaged_block_is_deleted_and_can_be_written_again(tmp_path: Path):
    folder, content = BlockFolder(tmp_path, 9 * SIZE), chain(1)[0]
    write(folder, content)
    (file,) = tmp_path.glob("*.kv")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BlockDamaged):
        read(folder, content)
    assert content.hash not in folder and folder.num_bytes == 0 and not file.exists()
    write(folder, content)
    assert read(folder, content) == data_of(content)


def test_a_link_in_the_place_of_a_block_goes_and_what_it_points_to_stays(tmp_path: Path):
    folder, content = BlockFolder(tmp_path / "kv", 9 * SIZE), chain(1)[0]
    write(folder, content)
    (file,) = folder.path.glob("*.kv")
    for target in (file.rename(tmp_path / "elsewhere"), tmp_path / "nowhere"):
        file.unlink(missing_ok=True)
        file.symlink_to(target)
        with pytest.raises(BlockDamaged):
            read(folder, content)
        assert content.hash not in folder and not file.is_symlink()
        write(folder, content)
        assert read(folder, content) == data_of(content)
    assert (tmp_path / "elsewhere").stat().st_size == SIZE


def test_what_cannot_be_deleted_counts_further(tmp_path: Path):
    folder, contents = BlockFolder(tmp_path, 2 * SIZE), chain(3)
    write(folder, *contents[:2])
    oldest = tmp_path / f"{contents[0].hash.hex()}.kv"
    oldest.unlink()
    oldest.mkdir()  # which `unlink` refuses, as in a folder that may not be written
    with pytest.raises(OSError):
        write(folder, contents[2])
    with pytest.raises(BlockDamaged):
        read(folder, contents[0])
    assert indices(folder, contents) == [0, 1] and folder.num_bytes == 2 * SIZE
    oldest.rmdir()
    write(folder, contents[2])
    assert indices(folder, contents) == [1, 2] and folder.num_bytes == 2 * SIZE


def test_a_block_that_somebody_deleted_is_forgotten(tmp_path: Path):
    folder, content = BlockFolder(tmp_path, 9 * SIZE), chain(1)[0]
    write(folder, content)
    next(tmp_path.glob("*.kv")).unlink()
    with pytest.raises(FileNotFoundError):
        read(folder, content)
    assert len(folder) == folder.num_bytes == 0


def test_unfinished_files_go_and_files_of_others_stay(tmp_path: Path):
    ours = tmp_path / f"{chain(1)[0].hash.hex()}.part"
    others = [tmp_path / "notes.txt", tmp_path / "abc.kv", tmp_path / "abc.part"]
    for file in (ours, *others):
        file.write_text("x")
    folder = BlockFolder(tmp_path, SIZE)
    write(folder, *chain(5))
    assert not ours.exists() and all(file.exists() for file in others) and len(folder) == 1


def test_one_process_at_a_time(tmp_path: Path):
    folder = BlockFolder(tmp_path, SIZE)
    with pytest.raises(FolderLocked, match="in use by another process"):
        BlockFolder(tmp_path, SIZE)
    folder.close()
    BlockFolder(tmp_path, SIZE)


def test_a_folder_that_could_not_be_opened_is_left_to_others(tmp_path: Path):
    folder, (content,) = BlockFolder(tmp_path, 9 * SIZE), chain(1)
    write(folder, content)
    folder.close()
    (tmp_path / "salt").write_bytes(b"")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(CannotStart, match="No space left"):
            BlockFolder(tmp_path, 9 * SIZE)
    assert len(BlockFolder(tmp_path, 9 * SIZE)) == 1


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_salt_stays_and_a_damaged_one_is_replaced(tmp_path: Path):
    folder = BlockFolder(tmp_path, SIZE)
    salt = folder.salt
    folder.close()
    folder = BlockFolder(tmp_path, SIZE)
    assert folder.salt == salt and len(salt) == 16
    folder.close()
    (tmp_path / "salt").write_bytes(salt + b"x")
    assert BlockFolder(tmp_path, SIZE).salt != salt
    assert (tmp_path / "salt").stat().st_size == 16


def test_a_folder_that_is_none_or_that_others_may_read_is_refused(tmp_path: Path):
    (tmp_path / "open").mkdir(mode=0o755)
    os.chmod(tmp_path / "open", 0o755)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        BlockFolder(tmp_path / "open", SIZE)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="is a link or no folder"):
        BlockFolder(tmp_path / "link", SIZE)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="is a link or no folder"):
        BlockFolder(tmp_path / "file", SIZE)
    with pytest.raises(CannotStart, match="Give --kv-disk another path"):
        BlockFolder(tmp_path / "file" / "kv", SIZE)


def test_a_full_disk_is_told_from_one_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A server starts without a folder then: prompts are only computed."""

    def has_no_room(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(block_folder, "make_private_folder", has_no_room)
    monkeypatch.setattr(run, "LOCK_WAIT_S", 0.0)
    with pytest.raises(FolderFull, match="No space left on device"):
        BlockFolder(tmp_path / "kv", 2**20)
    assert run.open_kv_disk(ServerConfig(kv_disk=str(tmp_path / "kv"))) is None
