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
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from app.checkpoint.folder import rejected
from app.checkpoint.hub.download import Expected, download, open_url, part_bytes, reason_of
from app.checkpoint.hub.hub_cache import HubName, Snapshot, cache_root, find_any, repo_folder, snapshot_at, snapshots
from app.checkpoint.hub.repo_files import RepoFile, choose, needed
from app.contract.errors import CannotStart, ModelRefused, Unreachable
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
    return _pull_or_find(name, revision, console)


@cache
def _ask_once(name: HubName, revision: str, root: Path) -> Path:
    """Return the model at a branch or tag: one answer for the whole process, also if the branch moves meanwhile."""
    return _pull_or_find(name, revision, Console(sys.stderr))


def _pull_or_find(name: HubName, revision: str | None, console: Console) -> Path:
    try:
        return pull(name, revision, console)
    except Unreachable as error:
        there = snapshots(name.repo) if revision is None else [snapshot_at(name.repo, revision)]
        path = find_any(name, [snapshot for snapshot in there if snapshot is not None])
        if path is None:
            raise
        console.print_line(f"{error.message} Using what was downloaded before: {_short(path)}.")
        return path


def pull(name: HubName, revision: str | None, console: Console) -> Path:
    """Download what a model needs and is not there yet; say how much, and show the progress.

    Raises:
        ModelRefused: the hub has no such model, or does not give it.
        CannotStart: the hub cannot be reached, or the disk is full.
    """
    listing = list_files(name, revision)
    variant = choose(name.repo, listing.files, quant=name.quant, file=name.file)
    if missing := variant.missing_parts():
        raise rejected(f"{name}: the repository lacks {missing[0]}, so its weights are incomplete.")
    wanted = needed(listing.files, variant)
    snapshot = snapshot_at(name.repo, revision or DEFAULT_REVISION)
    if snapshot is not None and snapshot.commit == listing.commit and {*wanted} <= {*snapshot.present()}:
        return snapshot.path_of(variant)
    there = {file: part_bytes(_blob(name.repo, listing, file)) for file in wanted}
    total, present = sum(file.num_bytes for file in wanted), sum(there.values())
    if present < total:
        console.print_line(_announcement(name, listing.commit, wanted, total, present))
    progress = DownloadProgress(console, f"Downloading {name}", total)
    done = 0
    try:
        for file in wanted:
            _download_file(name.repo, listing, file, lambda arrived, before=done: progress.show(before + arrived))
            done += file.num_bytes
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

    with _explained(name, revision):
        found = HfApi(endpoint=_endpoint()).model_info(
            name.repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S
        )
    sizes, digests = {}, {}
    for file in found.siblings or []:
        digest = str(file.lfs.sha256 if file.lfs else file.blob_id)
        # Digests become names of files, and paths end in the snapshot's folder.
        if file.size is not None and _DIGEST.fullmatch(digest) and ".." not in file.rfilename.split("/"):
            sizes[file.rfilename], digests[file.rfilename] = int(file.size), digest
    return Listing(str(found.sha), [RepoFile(*item) for item in sizes.items()], digests)


def _download_file(repo: str, listing: Listing, file: RepoFile, watch: Any) -> None:
    target = _blob(repo, listing, file)
    if target.exists():
        watch(file.num_bytes)
        return

    def open_from(offset: int) -> Any:
        """Ask for the address anew at each attempt: signed addresses expire."""
        from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

        url = hf_hub_url(repo, file.path, revision=listing.commit, endpoint=_endpoint())
        try:
            with _explained(HubName(repo), listing.commit):
                location = get_hf_file_metadata(url, timeout=TIMEOUT_S, endpoint=_endpoint()).location
        except Unreachable as error:
            raise OSError(error.message) from None  # tried again
        if urlsplit(location).scheme not in ("http", "https"):
            raise rejected(f"The hub sends {file.path} of {repo} to {location!r}, which is no address of the web.")
        token = get_token()
        is_hub = urlsplit(location).netloc == urlsplit(url).netloc
        headers = {"Authorization": f"Bearer {token}"} if token and is_hub else {}
        return open_url(location, offset, headers)

    download(open_from, target, Expected(file.num_bytes, listing.digests[file.path]), watch)


def _enter(name: HubName, revision: str, files: list[RepoFile]) -> Path:
    """Let the library link the downloaded blobs into a snapshot, and return its folder."""
    from huggingface_hub import snapshot_download
    from tqdm import tqdm

    class Silent(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    with _explained(name, revision):
        return Path(
            snapshot_download(
                name.repo,
                revision=revision,
                allow_patterns=[glob.escape(file.path) for file in files],
                cache_dir=cache_root(),
                endpoint=_endpoint(),
                tqdm_class=Silent,
            )
        )


@contextmanager
def _explained(name: HubName, revision: str | None) -> Iterator[None]:
    """Turn the library's errors into ours."""
    from huggingface_hub import errors

    try:
        yield
    except (ModelRefused, CannotStart):
        raise
    except errors.GatedRepoError:
        raise rejected(
            f"{name.repo} is gated: log in with `hf auth login`, and accept its licence at "
            f"{_endpoint() or 'https://huggingface.co'}/{name.repo}."
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise rejected(
            f"There is no folder {name.repo}, and the hub has no model of that name, or it is private; check the name, "
            "or log in with `hf auth login`."
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelRefused(f"{name.repo} has no revision {revision!r} on the hub.", param="revision") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise rejected(
                f"The hub does not give {name.repo} to you (HTTP {status}): log in with `hf auth login`, with a token "
                "that may read it."
            ) from None
        raise Unreachable(f"{name} cannot be downloaded: the hub answers with HTTP {status}.") from None
    except Exception as error:  # the library and its HTTP client raise many types
        raise Unreachable(f"{name} cannot be downloaded: {reason_of(error)}.") from None


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


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _short(path: Path) -> str:
    """Return the end of a path in the cache: the commit, and the file."""
    parts = path.parts
    return "/".join(parts[parts.index("snapshots") + 1 :])
