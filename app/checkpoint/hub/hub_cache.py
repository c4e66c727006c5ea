"""The cache of the Hugging Face hub's library on disk, read by its documented layout without importing the library.

    models--OWNER--NAME/refs/main               the commit of a branch or tag
    models--OWNER--NAME/snapshots/COMMIT/FILE   a link to ../../blobs/DIGEST
    models--OWNER--NAME/trees/COMMIT.json       the files that the repository has on the hub, if it was listed

Other programs keep models there too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from app.checkpoint.checkpoint_folder import read_json
from app.checkpoint.hub.repo_files import RepoFile, Variant, choose, needed, variants
from app.checkpoint.model_files import GGUF, SAFETENSORS
from app.contract.errors import ModelRefused

_PREFIX = "models--"
_INDEX = "model.safetensors.index.json"


class HubName(NamedTuple):
    """A model of the hub: its repository, and the quant or the file of it that is asked for."""

    repo: str
    quant: str = ""
    file: str = ""

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else f"{self.repo}/{self.file}" if self.file else self.repo


class Snapshot(NamedTuple):
    """One commit of a repository in the cache."""

    repo: str
    commit: str
    folder: Path

    def present(self) -> list[RepoFile]:
        """Return the files that are there."""
        found = []
        for folder, _, names in os.walk(self.folder):
            for name in names:
                file = Path(folder, name)
                if file.exists():  # not a link without its blob
                    found.append(RepoFile(file.relative_to(self.folder).as_posix(), file.stat().st_size))
        return sorted(found)

    def listed(self) -> list[RepoFile] | None:
        """Return the files that the repository has at this commit; None if that is not known."""
        try:
            files = json.loads((self.folder.parents[1] / "trees" / f"{self.commit}.json").read_bytes())["files"]
            return [RepoFile(str(path), int(about["size"])) for path, about in files.items()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def find(self, name: HubName) -> Path | None:
        """Return the path of a model if it is completely there: a folder of safetensors, or a GGUF file."""
        try:
            variant = choose(name.repo, self.listed() or self.present(), quant=name.quant, file=name.file)
        except ModelRefused:
            return None
        return self.path_of(variant) if self.is_whole(variant) else None

    def is_whole(self, variant: Variant) -> bool:
        """Return whether a variant can be served, as far as names of files say: GGUF needs nothing but its files."""
        wanted = variant.files if variant.format == GGUF else needed(self.listed() or (), variant)
        if variant.missing_parts() or not {file.path for file in wanted} <= {file.path for file in self.present()}:
            return False
        if variant.format == GGUF:
            return True
        try:
            index = self.folder / _INDEX
            shards = read_json(index).get("weight_map", {}).values() if index.exists() else ()
        except (ModelRefused, AttributeError):
            return False
        return (self.folder / "config.json").exists() and all((self.folder / str(shard)).exists() for shard in shards)

    def path_of(self, variant: Variant) -> Path:
        """Return the path of a variant of this snapshot."""
        return self.folder if variant.format == SAFETENSORS else self.folder / variant.files[0].path

    def name_of(self, variant: Variant) -> HubName:
        """Return the name that stands for a variant: by its file where the quant alone would stand for several."""
        return name_of(self.repo, variant, variants(self.listed() or self.present()))


def name_of(repo: str, variant: Variant, known: Iterable[Variant]) -> HubName:
    """Return the name that stands for a variant of a repository among those that it has; see `Snapshot.name_of`."""
    if variant.format == SAFETENSORS:
        return HubName(repo)
    label = variant.label_among(known)
    return HubName(repo, label) if label == variant.quant else HubName(repo, "", label)


def cache_root() -> Path:
    """Return the hub library's cache folder: `HF_HUB_CACHE`, else `hub` in `HF_HOME` (~/.cache/huggingface)."""
    environ = os.environ
    base = environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = environ.get("HF_HOME") or os.path.join(base, "huggingface")
    folder = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expanduser(os.path.expandvars(folder)))


def repo_folder(repo: str) -> Path:
    """Return the folder of a repository in the cache."""
    return cache_root() / (_PREFIX + repo.replace("/", "--"))


def repos() -> list[str]:
    """Return the names of all models in the cache, without those that have no owner: no name stands for them."""
    try:
        names = sorted(entry.name for entry in cache_root().iterdir() if entry.name.startswith(_PREFIX))
    except OSError:
        return []
    found = (name.removeprefix(_PREFIX).replace("--", "/", 1) for name in names)
    return [repo for repo in found if "/" in repo]


def snapshots(repo: str) -> list[Snapshot]:
    """Return the snapshots of a repository, newest first."""
    try:
        folders = list((repo_folder(repo) / "snapshots").iterdir())
    except OSError:
        return []
    folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    return [Snapshot(repo, folder.name, folder) for folder in folders]


def leftovers(repo: str) -> list[Path]:
    """Return the files of downloads that were interrupted: parts, and whole files where there is no snapshot."""
    blobs, is_listed = repo_folder(repo) / "blobs", bool(snapshots(repo))
    return sorted(blob for blob in blobs.glob("*") if blob.name.endswith(".incomplete") or not is_listed)


def snapshot_at(repo: str, revision: str) -> Snapshot | None:
    """Return the snapshot of a branch, tag or commit, as it was last downloaded."""
    folder = repo_folder(repo)
    try:
        commit = (folder / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = revision
    return next((found for found in snapshots(repo) if found.commit == commit), None)


def find_any(name: HubName, candidates: Iterable[Snapshot]) -> Path | None:
    """Return the path of a model in the first snapshot that has it completely."""
    return next((path for snapshot in candidates if (path := snapshot.find(name)) is not None), None)
