"""The files of a repository of the Hugging Face hub, as it lists them, and how each is opened."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.hub.download import Open, open_url
from app.checkpoint.hub.hub_cache import HubName
from app.checkpoint.hub.hub_errors import endpoint, explained
from app.checkpoint.hub.repo_files import RepoFile, Variant, choose
from app.contract.errors import Unreachable

DEFAULT_REVISION = "main"
TIMEOUT_S = 10.0
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TRUE = ("1", "ON", "YES", "TRUE")


class Listing(NamedTuple):
    """The files of a repository at a commit, and the digest of each by its path."""

    commit: str
    files: list[RepoFile]
    digests: dict[str, str]


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
