"""A connection to a server, as commands open one, and the errors of one that cannot be used."""

from __future__ import annotations

import http.client
import os
import ssl

from app.config.base_url import BaseUrl
from app.contract.errors import CannotStart, ConfigurationError

KEY_VARIABLES = ("QUIRE_API_KEY", "OPENAI_API_KEY")
"""The environment variables that a key is read from, the first one that is set."""
NO_ROUTE = (404, 405, 501)
"""The statuses of an answer where a server has no such route."""
NO_KEY = 401
"""The status of an answer to a request whose key is missing or wrong."""


def read_key(given: str | None) -> str | None:
    """Return the API key for a server: the one of the option, else the first one in QUIRE_API_KEY, else in
    OPENAI_API_KEY; None without.

    Raises:
        ConfigurationError: HTTP cannot send it.
    """
    found = (os.environ.get(name, "").partition(",")[0].strip() for name in KEY_VARIABLES)
    key = given or next(filter(None, found), None)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigurationError(
            "the API key has characters that HTTP cannot send, which are all but printable ones of ASCII; correct it"
        )
    return key


def connection_to(url: BaseUrl, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection that is opened by its first request; no read waits longer than the timeout."""
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    return kind(url.host, url.port, timeout=timeout_s)


def authorization(key: str | None) -> dict[str, str]:
    """Return the header with a key."""
    return {"authorization": f"Bearer {key}"} if key else {}


def reason(error: Exception) -> str:
    """Return why a connection failed, in the system's words where it has any."""
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS; give its address with http://"
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError) or not error.errno or error.errno < 0:
        return str(error) or type(error).__name__
    return os.strerror(error.errno)


def unreachable(url: BaseUrl, error: Exception, instead: str = "") -> CannotStart:
    """Return the error of a server that cannot be reached; `instead` is what else the user can do."""
    return CannotStart(f"cannot reach {url} ({reason(error)}); start a server with `quire serve`{instead}", param="url")


def gone(url: BaseUrl, error: Exception) -> CannotStart:
    """Return the error of a server that has answered in this chat, and cannot be reached any more."""
    return CannotStart(
        f"cannot reach {url} any more ({reason(error)}); nothing is lost: ask again once the server runs, or /save "
        "FILE",
        param="url",
    )


def no_api(url: BaseUrl) -> ConfigurationError:
    """Return the error of an address where no OpenAI-compatible API is."""
    return ConfigurationError(
        f"{url} has no OpenAI-compatible API: neither /v1/models nor /v1/chat/completions is there; give the address "
        "before them, such as http://127.0.0.1:8000",
        param="url",
    )


def key_refused(url: BaseUrl, key: str | None) -> ConfigurationError:
    """Return the error of a server that needs another key."""
    kind = "needs an API key" if key is None else "does not accept this API key"
    return ConfigurationError(f"{url} {kind}; give its own with --api-key KEY, or set QUIRE_API_KEY", param="api_key")
