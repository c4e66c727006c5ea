"""The models on this machine: the embedded one, `smollm2`, and those in the hub library's cache.

Models that other programs have put into the cache are among them. Everything is read from names of files and from
headers, without torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from app.checkpoint.checkpoint_folder import EMBEDDED
from app.checkpoint.hub import smollm2
from app.checkpoint.hub.hub_cache import Snapshot, leftovers, repo_folder, repos, snapshot_at, snapshots
from app.checkpoint.hub.repo_files import RepoFile, Variant, variants
from app.checkpoint.inspection import inspect
from app.checkpoint.model_files import SAFETENSORS, ModelFiles
from app.checkpoint.names import resolve
from app.commands.budget import active_weight_bytes, weight_bytes_by_kind
from app.config.settings import Config, make_config
from app.contract.errors import QuireError

_INCOMPLETE = "incomplete; `quire pull` continues it"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on the disk; `reason` says why it cannot be served, None if it can.

    `weight_bytes` are what its weights take in memory, and `active_bytes` what a token reads of them; 0 if it cannot.
    """

    name: str
    format: str
    num_bytes: int
    path: Path
    revision: str = ""  # of a hub model: the commit
    last_used: float | None = None  # seconds since 1970
    reason: str | None = None
    weight_bytes: int = 0
    active_bytes: int = 0


def stored_models() -> Iterator[StoredModel]:
    """Yield all models: the embedded one first, then by name."""
    guide = resolve(EMBEDDED)
    weights = [file.stat().st_size for file in guide.glob("*.safetensors")]
    yield _with_headers(StoredModel(EMBEDDED, SAFETENSORS, sum(weights), guide))
    if smollm2.is_there():
        file = smollm2.local_file()
        about = file.stat()
        [variant] = variants([RepoFile(file.name, about.st_size)])
        yield _with_headers(StoredModel(smollm2.NAME, variant.summary, about.st_size, file, last_used=about.st_atime))
    elif parts := smollm2.leftovers():
        yield _incomplete(smollm2.NAME, smollm2.local_file().parent, parts)
    for repo in repos():
        yield from of_repo(repo)


def of_repo(repo: str) -> Iterator[StoredModel]:
    """Yield the models of a repository in the hub's cache, also incomplete ones; a tokenizer alone is no model."""
    found = snapshots(repo)
    for snapshot in found:
        for variant in variants(snapshot.present()):
            yield _of_variant(snapshot, variant)
    if parts := leftovers(repo):
        yield _incomplete(repo, repo_folder(repo), parts)


def inspected(config: Config) -> ModelFiles | str:
    """Inspect the configured model, which is on the disk; or return why it cannot be served, without its folder."""
    path = Path(config.model.model)
    try:
        return inspect(config.model)
    except QuireError as error:
        return error.message.replace(f"{path}{os.sep}", "").replace(f"{path.parent}{os.sep}", "")


def _with_headers(model: StoredModel) -> StoredModel:
    """Add what the headers of a complete model say: why it cannot be served, or what a server would keep and read."""
    config = make_config({"model": str(model.path)})
    files = inspected(config)
    if isinstance(files, str):
        return replace(model, reason=files)
    return replace(
        model,
        weight_bytes=sum(weight_bytes_by_kind(config, files.spec, files.stored_type).values()),
        active_bytes=active_weight_bytes(config, files.spec, files.stored_type),
    )


def _incomplete(name: str, folder: Path, parts: list[Path]) -> StoredModel:
    about = [part.stat() for part in parts]
    size, last_used = sum(part.st_size for part in about), max(part.st_mtime for part in about)
    return StoredModel(name, "-", size, folder, last_used=last_used, reason=_INCOMPLETE)


def _of_variant(snapshot: Snapshot, variant: Variant) -> StoredModel:
    path = snapshot.path_of(variant)
    latest = snapshot_at(snapshot.repo, "main")
    suffix = "" if latest is None or latest.commit == snapshot.commit else f"@{snapshot.commit[:7]}"
    model = StoredModel(
        f"{snapshot.name_of(variant)}{suffix}",
        variant.summary,
        variant.num_bytes,
        path,
        snapshot.commit,
        max((snapshot.folder / file.path).stat().st_atime for file in variant.files),
    )
    return _with_headers(model) if snapshot.is_whole(variant) else replace(model, reason=_INCOMPLETE)
