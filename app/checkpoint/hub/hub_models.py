"""Models of the Hugging Face hub: found in the cache of the hub's library, or downloaded into it.

The library lists repositories, knows tokens, and enters files into its cache. The files themselves are downloaded by
`download`, because the library throws away what has arrived when it is interrupted.
"""

from __future__ import annotations

import glob
import shutil
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from app.checkpoint.hub.download import Expected, Watch, download, part_bytes
from app.checkpoint.hub.hub_cache import HubName, Snapshot, cache_root, find_any, repo_folder, snapshot_at, snapshots
from app.checkpoint.hub.hub_errors import endpoint, explained
from app.checkpoint.hub.hub_headers import Check, check_headers
from app.checkpoint.hub.hub_listing import DEFAULT_REVISION, Listing, choose_whole, list_files, opener_of
from app.checkpoint.hub.repo_files import RepoFile, needed, variants
from app.checkpoint.hub.together import download_together
from app.contract.errors import CannotStart, Unreachable
from app.observe.console import Console
from app.observe.download_progress import DownloadProgress, size_text

_COMMIT_DIGITS = 40


def find_or_pull(name: HubName, revision: str | None, console: Console, check: Check | None = None) -> Path:
    """Return the path of a model; without a `revision`, the network is asked only for what is not there.

    If the hub cannot be reached, what is there is taken, and a line says so. `check` may refuse a model before it is
    downloaded, see `pull`.

    Raises:
        ModelRefused: the hub has no such model, or does not give it.
        CannotStart: it is not there, and cannot be downloaded now.
    """
    if revision is not None and len(revision) != _COMMIT_DIGITS:
        asked = _Asked(name, revision, cache_root())
        if asked not in _answers():
            _answers()[asked] = pull_or_find(name, revision, Console(sys.stderr), check)
        return _answers()[asked]
    snapshot = snapshot_at(name.repo, revision or DEFAULT_REVISION)
    if snapshot is not None and (path := snapshot.find(name)) is not None:
        return path
    return pull_or_find(name, revision, console, check)


class _Asked(NamedTuple):
    """A model at a branch or tag, in one cache."""

    name: HubName
    revision: str
    root: Path


@cache
def _answers() -> dict[_Asked, Path]:
    """Return where models at a branch or tag are: one answer for the whole process, also if a branch moves."""
    return {}


def pull_or_find(name: HubName, revision: str | None, console: Console, check: Check | None = None) -> Path:
    """Pull a model; if the hub cannot be reached, return what is there, and say so.

    Raises:
        ModelRefused: the hub has no such model, or does not give it.
        CannotStart: it is not there, and cannot be downloaded now.
    """
    try:
        return pull(name, revision, console, check)
    except Unreachable as error:
        latest = None if revision is None else snapshot_at(name.repo, revision)
        there = snapshots(name.repo) if revision is None else [latest] if latest is not None else []
        path = find_any(name, there)
        if path is None:
            found = {f"{name.repo}:{variant.quant}" for each in there for variant in variants(each.present())
                     if variant.quant and each.is_whole(variant)}  # fmt: skip
            others = f" On this machine: {', '.join(sorted(found))}." if found else ""
            raise Unreachable(error.message + others) from None
        console.print_line(f"{error.message} Using what was downloaded before: {_short(path)}.")
        return path


def pull(name: HubName, revision: str | None, console: Console, check: Check | None = None) -> Path:
    """Download what a model needs and is not there yet; say how much, and show the progress.

    Before that `check` gets the path of a model that has no weights, see `fetch_headers`, and may raise ModelRefused.

    Raises:
        ModelRefused: the hub has no such model, or does not give it; or `check` refuses it.
        CannotStart: the hub cannot be reached, or the disk is full.
    """
    listing = list_files(name, revision)
    variant = choose_whole(name, listing)
    wanted = needed(listing.files, variant)
    snapshot = snapshot_at(name.repo, revision or DEFAULT_REVISION)
    if snapshot is not None and snapshot.commit == listing.commit and {*wanted} <= {*snapshot.present()}:
        return snapshot.path_of(variant)
    # Equal files are one blob.
    blobs = list({listing.digests[file.path]: file for file in wanted}.values())
    total = sum(file.num_bytes for file in blobs)
    there = [part_bytes(_blob(name.repo, listing, file)) for file in blobs]
    present = sum(there)
    if present < total:
        if check is not None:
            check_headers(name, listing, check)
        console.print_line(_announcement(name, listing.commit, wanted, total, present))
    progress = DownloadProgress(console, f"Downloading {name}", total)
    try:
        download_together([partial(_download_file, name.repo, listing, file) for file in blobs], there, progress.show)
    finally:
        progress.end()
    folder = _enter(name, revision or DEFAULT_REVISION, wanted)
    return Snapshot(name.repo, folder.name, folder).path_of(variant)


def _download_file(repo: str, listing: Listing, file: RepoFile, watch: Watch) -> None:
    target = _blob(repo, listing, file)
    if target.exists():
        watch(file.num_bytes)
        return
    download(opener_of(repo, listing, file), target, Expected(file.num_bytes, listing.digests[file.path]), watch)


def _enter(name: HubName, revision: str, files: list[RepoFile]) -> Path:
    """Let the library link the downloaded blobs into a snapshot, and return its folder."""
    from huggingface_hub import snapshot_download
    from tqdm import tqdm

    class Silent(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    with explained(name, revision):
        return Path(
            snapshot_download(
                name.repo,
                revision=revision,
                allow_patterns=[glob.escape(file.path) for file in files],
                cache_dir=cache_root(),
                endpoint=endpoint(),
                tqdm_class=Silent,
            )
        )


def _announcement(name: HubName, commit: str, files: list[RepoFile], total: int, present: int) -> str:
    """Say what is taken, and check that the disk has room for it.

    Raises:
        CannotStart: it has not.
    """
    root = cache_root()
    existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < total - present:
        raise CannotStart(
            f"{name} needs {size_text(total - present)} in {root}, where {size_text(free)} are free; remove models "
            "(`quire models`), or set HF_HUB_CACHE to another disk."
        )
    weights = [file for file in files if file.path.endswith((".gguf", ".safetensors"))]
    already = f", of which {size_text(present)} are there" if present else ""
    return (
        f"{name} at {commit[:7]}: {_files(len(weights), 'weight')}, {_files(len(files) - len(weights), 'small')}, "
        f"{size_text(total)}{already}; into {root}, where {size_text(free)} are free."
    )


def _files(count: int, kind: str) -> str:
    return f"{count} {kind} file{'' if count == 1 else 's'}"


def _blob(repo: str, listing: Listing, file: RepoFile) -> Path:
    return repo_folder(repo) / "blobs" / listing.digests[file.path]


def _short(path: Path) -> str:
    """Return the end of a path in the cache: the commit, and the file."""
    parts = path.parts
    return "/".join(parts[parts.index("snapshots") + 1 :])
