"""What says the shape of a model of the hub, without its weights: config.json, or the headers of its GGUF files."""

from __future__ import annotations

import http.client
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from app.checkpoint.checkpoint_folder import MAX_JSON_BYTES, rejected
from app.checkpoint.gguf.gguf_header import read_header_from
from app.checkpoint.gguf.gguf_rope import LONG_FACTORS, ROPE_FREQS, SHORT_FACTORS
from app.checkpoint.hub.download import Expected, Open, download, reason_of
from app.checkpoint.hub.hub_cache import HubName, find_any, snapshot_at, snapshots
from app.checkpoint.hub.hub_listing import DEFAULT_REVISION, Listing, choose_whole, opener_of
from app.checkpoint.hub.repo_files import RepoFile
from app.checkpoint.model_files import GGUF, ModelFiles
from app.contract.errors import ModelRefused, Unreachable

_CONFIGS = ("config.json", "generation_config.json")
_MAX_DIVISORS_BYTES = 2**16

Check = Callable[[Path], ModelFiles]
"""Inspects a model at a path, where there are perhaps only its headers; raises ModelRefused if it cannot be served."""


def find_downloaded(name: HubName, revision: str | None) -> Path | None:
    """Return the path of a model that is completely in the cache; without a `revision`, in any snapshot."""
    latest = snapshot_at(name.repo, revision or DEFAULT_REVISION)
    others = snapshots(name.repo) if revision is None else []
    return find_any(name, [snapshot for snapshot in (latest, *others) if snapshot is not None])


def check_headers(name: HubName, listing: Listing, check: Check) -> ModelFiles:
    """Return the files that `check` finds in the headers of a model, which are there for so long. Blocks.

    Raises:
        ModelRefused, CannotStart: see `fetch_headers`; and what `check` raises, in whose message files have no folder.
    """
    with tempfile.TemporaryDirectory(prefix="quire-headers-") as folder:
        try:
            return check(fetch_headers(name, listing, Path(folder)))
        except ModelRefused as error:
            raise ModelRefused(error.message.replace(f"{folder}{os.sep}", ""), param=error.param) from None


def fetch_headers(name: HubName, listing: Listing, folder: Path) -> Path:
    """Make in `folder` a model that can be inspected, but has no weights, and return its path. Blocks.

    Of a checkpoint it has the configurations. A GGUF file has its header, and takes no more space than that; its size
    is that of the real one, and other bytes are 0.

    Raises:
        ModelRefused: the hub has no such model, or does not give it; or a header is damaged.
        CannotStart: the hub cannot be reached, or `folder` cannot be written.
    """
    folder = folder / name.repo  # errors name it
    folder.mkdir(parents=True, exist_ok=True)
    variant = choose_whole(name, listing)
    if variant.format == GGUF:
        paths = [_fetch_header(name, listing, file, folder / Path(file.path).name) for file in variant.files]
        return paths[0]
    for file in listing.files:
        if file.path in _CONFIGS:
            if file.num_bytes > MAX_JSON_BYTES:
                raise rejected(
                    f"{file.path} of {name} is larger than {MAX_JSON_BYTES} bytes, the limit for JSON files."
                )
            expected = Expected(file.num_bytes, listing.digests[file.path])
            download(opener_of(name.repo, listing, file), folder / file.path, expected, lambda done: None)
    return folder


def _fetch_header(name: HubName, listing: Listing, file: RepoFile, target: Path) -> Path:
    open_from = opener_of(name.repo, listing, file)
    try:
        with target.open("wb") as copy:
            with open_from(0) as response:
                header = read_header_from(_Copied(response, copy, file.num_bytes), target, file.num_bytes)
            for tensor in (header.tensors.get(key) for key in (ROPE_FREQS, SHORT_FACTORS, LONG_FACTORS)):
                if tensor is not None and tensor.end - tensor.begin <= _MAX_DIVISORS_BYTES:  # part of the shape
                    copy.seek(tensor.begin)
                    copy.write(_read_range(open_from, tensor.begin, tensor.end))
            copy.flush()
            os.truncate(target, file.num_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"The header of {name} cannot be downloaded: {reason_of(error)}.") from None
    return target


def _read_range(open_from: Open, begin: int, end: int) -> bytes:
    with open_from(begin) as response:
        if begin and response.status != http.client.PARTIAL_CONTENT:
            raise OSError("the server sends only whole files")
        content: bytes = response.read(end - begin)
        return content


class _Copied:
    """A response of `num_bytes` bytes, which are written to a file as they are read."""

    def __init__(self, response: Any, copy: IO[bytes], num_bytes: int) -> None:
        self._response, self._copy, self._num_left = response, copy, num_bytes

    def read(self, size: int) -> bytes:
        """Read and copy at most `size` bytes.

        Raises:
            OSError: the connection has broken.
        """
        chunk: bytes = self._response.read(min(size, self._num_left))
        self._num_left -= len(chunk)
        if len(chunk) < size and self._num_left > 0:
            raise OSError("the connection ended too early")
        self._copy.write(chunk)
        return chunk
