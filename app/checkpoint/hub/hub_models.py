"""Models of the Hugging Face hub: found in the cache of the hub's library, or downloaded into it.

The library lists repositories, knows tokens, and enters files into its cache. The files themselves are downloaded by
`download`, because the library throws away what has arrived when it is interrupted.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.hub.download import Expected, Open, Watch, download, open_url, part_bytes
from app.checkpoint.hub.hub_cache import HubName, Snapshot, cache_root, find_any, repo_folder, snapshot_at, snapshots
from app.checkpoint.hub.hub_errors import endpoint, explained
from app.checkpoint.hub.repo_files import RepoFile, Variant, choose, needed, variants
from app.checkpoint.hub.together import download_together
from app.contract.errors import CannotStart, Unreachable
from app.observe.console import Console
from app.observe.download_progress import DownloadProgress, size_text

DEFAULT_REVISION = "main"
TIMEOUT_S = 10.0
_COMMIT_DIGITS = 40
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TRUE = ("1", "ON", "YES", "TRUE")


class Listing(NamedTuple):
    """The files of a repository at a commit, and the digest of each by its path."""

    commit: str
    files: list[RepoFile]
    digests: dict[str, str]


def find_or_pull(name: HubName, revision: str | None, console: Console) -> Path:
    """Return the path of a model; without a `revision`, the network is asked only for what is not there.

    If the hub cannot be reached, what is there is taken, and a line says so.

    Raises:
        ModelRefused: the hub has no such model, or does not give it.
        CannotStart: it is not there, and cannot be downloaded now.
    """
    if revision is not None and len(revision) != _COMMIT_DIGITS:
        return _ask_once(name, revision, cache_root())
    snapshot = snapshot_at(name.repo, revision or DEFAULT_REVISION)
    if snapshot is not None and (path := snapshot.find(name)) is not None:
        return path
    return pull_or_find(name, revision, console)


@cache
def _ask_once(name: HubName, revision: str, root: Path) -> Path:
    """Return the model at a branch or tag: one answer for the whole process, also if the branch moves meanwhile."""
    return pull_or_find(name, revision, Console(sys.stderr))


def pull_or_find(name: HubName, revision: str | None, console: Console) -> Path:
    """Pull a model; if the hub cannot be reached, return what is there, and say so.

    Raises:
        ModelRefused: the hub has no such model, or does not give it.
        CannotStart: it is not there, and cannot be downloaded now.
    """
    try:
        return pull(name, revision, console)
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


def pull(name: HubName, revision: str | None, console: Console) -> Path:
    """Download what a model needs and is not there yet; say how much, and show the progress.

    Raises:
        ModelRefused: the hub has no such model, or does not give it.
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
        console.print_line(_announcement(name, listing.commit, wanted, total, present))
    progress = DownloadProgress(console, f"Downloading {name}", total)
    try:
        download_together([partial(_download_file, name.repo, listing, file) for file in blobs], there, progress.show)
    finally:
        progress.end()
    folder = _enter(name, revision or DEFAULT_REVISION, wanted)
    return Snapshot(name.repo, folder.name, folder).path_of(variant)


def list_files(name: HubName, revision: str | None) -> Listing:
    """Ask the hub for the files of a repository.

    Raises:
        ModelRefused: there is no such repository or revision.
        Unreachable: the hub does not answer, or HF_HUB_OFFLINE is set.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE:
        raise Unreachable(f"{name} cannot be downloaded: HF_HUB_OFFLINE is set.")
    from huggingface_hub import HfApi  # slow to import, and needed for downloads only

    with explained(name, revision):
        found = HfApi(endpoint=endpoint()).model_info(
            name.repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S
        )
    sizes, digests = {}, {}
    for file in found.siblings or []:
        digest = str(file.lfs.sha256 if file.lfs else file.blob_id)
        # Digests become names of files, and paths end in the snapshot's folder.
        if file.size is not None and _DIGEST.fullmatch(digest) and ".." not in file.rfilename.split("/"):
            sizes[file.rfilename], digests[file.rfilename] = int(file.size), digest
    return Listing(str(found.sha), [RepoFile(*item) for item in sizes.items()], digests)


def choose_whole(name: HubName, listing: Listing) -> Variant:
    """Return the variant of a repository that is asked for.

    Raises:
        ModelRefused: none fits, or several do; or the repository lacks a part of it.
    """
    variant = choose(name.repo, listing.files, quant=name.quant, file=name.file)
    if missing := variant.missing_parts():
        raise rejected(f"{name}: the repository lacks {missing[0]}, so its weights are incomplete.")
    return variant


def opener_of(repo: str, listing: Listing, file: RepoFile) -> Open:
    """Return a function that opens a file of a repository, from an offset on."""

    def open_from(offset: int) -> Any:
        """Ask for the address anew at each attempt: signed addresses expire."""
        from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

        url = hf_hub_url(repo, file.path, revision=listing.commit, endpoint=endpoint())
        try:
            with explained(HubName(repo), listing.commit):
                location = get_hf_file_metadata(url, timeout=TIMEOUT_S, endpoint=endpoint()).location
        except Unreachable as error:
            raise OSError(error.message) from None  # tried again
        if urlsplit(location).scheme not in ("http", "https"):
            raise rejected(f"The hub sends {file.path} of {repo} to {location!r}, which is no address of the web.")
        token = get_token()
        is_hub = urlsplit(location)[:2] == urlsplit(url)[:2]  # scheme and host: a token is not sent in clear
        headers = {"Authorization": f"Bearer {token}"} if token and is_hub else {}
        return open_url(location, offset, headers)

    return open_from


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
