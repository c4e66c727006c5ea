"""Explains in one line why the hub does not give a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from app.checkpoint.checkpoint_folder import rejected
from app.checkpoint.hub.download import reason_of
from app.checkpoint.hub.hub_cache import HubName
from app.contract.errors import CannotStart, ModelRefused, Unreachable

USUAL_ENDPOINT = "https://huggingface.co"


def endpoint() -> str | None:
    """Return the address of the hub, if it is not the usual one."""
    return os.environ.get("HF_ENDPOINT") or None


@contextmanager
def explained(name: HubName, revision: str | None) -> Iterator[None]:
    """Turn the errors of the hub's library in the block into ours.

    Raises:
        ModelRefused: the hub has no such model or revision, or does not give it.
        Unreachable: the hub does not answer, or has failed.
    """
    from huggingface_hub import errors

    try:
        yield
    except (ModelRefused, CannotStart):
        raise
    except errors.GatedRepoError:
        raise rejected(
            f"{name.repo} is gated: log in with `hf auth login`, and accept its licence at "
            f"{endpoint() or USUAL_ENDPOINT}/{name.repo}."
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
        host = endpoint() or USUAL_ENDPOINT
        raise Unreachable(
            f"{name} cannot be downloaded from {host}: {reason_of(error)}; check the network and HTTPS_PROXY, or "
            "set HF_ENDPOINT to a mirror. `quire models` lists what is on this machine."
        ) from None
