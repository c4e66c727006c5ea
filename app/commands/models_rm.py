"""`quire models rm NAME`: deletes a model of the hub library's cache, or `smollm2`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.checkpoint.checkpoint_folder import EMBEDDED
from app.checkpoint.hub import smollm2
from app.checkpoint.hub.hub_cache import HubName, Snapshot, cache_root, leftovers, repo_folder, snapshots
from app.checkpoint.hub.repo_files import choose, matching, variants
from app.checkpoint.names import hub_name
from app.commands.options import Parser
from app.config.nearest import nearest
from app.contract.errors import ConfigurationError
from app.observe.download_progress import size_text


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion: its object, in words, the bytes that it frees, and the function that does it."""

    what: str
    num_bytes: int
    execute: Callable[[], None]


def add_options(parser: Parser) -> None:
    """Add the model, the revision, and whether to ask."""
    parser.usage = "quire models rm NAME [OPTIONS]"
    parser.add_argument("name", metavar="NAME", help="A name that `quire models` shows.")
    parser.add_argument("--revision", metavar="COMMIT", help="Delete only this commit; by default all that are there.")
    parser.add_argument("--yes", action="store_true", help="Do not ask.")
    parser.add_argument("--json", action="store_true", help="Print what was deleted as JSON; it asks on stderr.")


def run(args: argparse.Namespace) -> int:
    """Say what would be deleted and its size, ask, and delete. The exit code is 1 if the answer is no."""
    deletion = plan(args.name, args.revision)
    if not args.yes:
        question = f"Delete {deletion.what}, {size_text(deletion.num_bytes)}? [y/N] "
        print(question, end="", flush=True, file=sys.stderr)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("Nothing was deleted.", file=sys.stderr)
            return 1
    deletion.execute()
    if args.json:
        print(json.dumps({"deleted": deletion.what, "bytes": deletion.num_bytes}))
    else:
        print(f"Deleted {deletion.what}; {size_text(deletion.num_bytes)} ({deletion.num_bytes} bytes) are free again.")
    return 0


def plan(model: str, revision: str | None = None) -> Deletion:
    """Find what a name stands for; nothing is deleted yet.

    Raises:
        ConfigurationError: nothing of that name can be deleted; the message says why.
    """
    if model == EMBEDDED:
        raise ConfigurationError(f"{EMBEDDED} is a part of Quire; it cannot be deleted.", param="name")
    if model == smollm2.NAME:
        return _of_smollm2()
    base, _, shown = model.partition("@")
    name = hub_name(base)
    if name is None:
        raise ConfigurationError(
            f"{model} is no model of the hub's cache{nearest(model, (smollm2.NAME,))}; your own files are yours to "
            "delete.",
            param="name",
        )
    return _of_hub(name, revision or shown)


def _of_smollm2() -> Deletion:
    parts = smollm2.leftovers()
    folder = smollm2.local_file().parent
    if smollm2.is_there():  # and with it what stands beside it
        what = str(folder)
    elif parts:
        what = f"{_incomplete(parts)} of {smollm2.NAME}"
    else:
        raise ConfigurationError(f"{smollm2.NAME} is not on this machine; `quire models` lists what is.", param="name")
    return Deletion(what, _bytes_of(folder), lambda: shutil.rmtree(folder))


def _of_hub(name: HubName, revision: str) -> Deletion:
    from huggingface_hub import scan_cache_dir  # slow to import

    chosen = [found for found in snapshots(name.repo) if found.commit.startswith(revision) and _has(found, name)]
    parts = [] if revision else leftovers(name.repo)
    if not chosen and not parts:
        raise ConfigurationError(f"{name} is not on this machine; `quire models` lists what is.", param="name")
    cached = scan_cache_dir(cache_root())
    # Of this repository alone: another one may have the same commit.
    own = frozenset(repo for repo in cached.repos if repo.repo_path.name == repo_folder(name.repo).name)
    if chosen and not own:
        raise ConfigurationError(
            f"The cache of {name.repo} is damaged, so revisions in it cannot be deleted; delete the folder "
            f"{repo_folder(name.repo)}.",
            param="name",
        )
    strategy = replace(cached, repos=own).delete_revisions(*(snapshot.commit for snapshot in chosen))
    contents = sorted({f"{name.repo} {label}" for snapshot in chosen for label in _labels(snapshot)})
    commits = ", ".join(snapshot.commit[:7] for snapshot in chosen)
    words = [*([f"{', '.join(contents) or name.repo} (revision {commits})"] if chosen else [])]
    words += [f"{_incomplete(parts)} of {name.repo}"] if parts else []

    def execute() -> None:
        for part in parts:
            part.unlink(missing_ok=True)
        strategy.execute()
        if not snapshots(name.repo):
            shutil.rmtree(repo_folder(name.repo), ignore_errors=True)

    size = strategy.expected_freed_size + sum(part.stat().st_size for part in parts)
    return Deletion(" and ".join(words), size, execute)


def _incomplete(parts: Sequence[Path]) -> str:
    return f"{len(parts)} incomplete {'file' if len(parts) == 1 else 'files'}"


def _labels(snapshot: Snapshot) -> list[str]:
    found = variants(snapshot.present())
    return [variant.label_among(found) for variant in found]


def _has(snapshot: Snapshot, name: HubName) -> bool:
    """Return whether a snapshot has what is asked for.

    Raises:
        ConfigurationError: it has more, which would be deleted too, because a revision is deleted as a whole.
    """
    found = variants(snapshot.present())
    if not name.quant and not name.file:
        return True
    fitting = matching(found, name.quant, name.file)
    if fitting and len(found) > 1:
        chosen = choose(name.repo, snapshot.present(), quant=name.quant, file=name.file)
        others = ", ".join(variant.label_among(found) for variant in found if variant != chosen)
        raise ConfigurationError(
            f"{name} shares its revision with {others}, and a revision is deleted as a whole: "
            f"`quire models rm {name.repo}` deletes all of it.",
            param="name",
        )
    return bool(fitting)


def _bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
