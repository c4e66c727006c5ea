"""Finds one file in the package indexes that pip is configured with; pip itself need not be installed.

Read are pip's files and its `PIP_*` variables: index-url, extra-index-url, find-links, no-index, cert, proxy. Asked are
folders and pages of links first, then the indexes, by the simple repository API (HTML and JSON).
"""

from __future__ import annotations

import base64
import configparser
import http.client
import json
import os
import ssl
import sys
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from app.checkpoint.hub.download import open_url, reason_of
from app.contract.errors import Unreachable

PYPI = "https://pypi.org/simple"
MAX_PAGE_BYTES = 32 * 2**20
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_SECTIONS = ("global", "install", "download")  # later ones win
_SCHEMES = ("http", "https", "file")


class PipConfig(NamedTuple):
    """The options of pip about where packages are."""

    indexes: tuple[str, ...] = (PYPI,)
    links: tuple[str, ...] = ()
    cert: str | None = None
    proxy: str | None = None

    def opener(self) -> urllib.request.OpenerDirector:
        """Return an opener with the configured certificates and proxy; by default the system's."""
        handlers: list[urllib.request.BaseHandler] = []
        if self.cert is not None and os.path.exists(self.cert):
            handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.cert)))
        if self.proxy:
            handlers.append(urllib.request.ProxyHandler({"http": self.proxy, "https": self.proxy}))
        return urllib.request.build_opener(*handlers)


def read_pip_config() -> PipConfig:
    """Read pip's configuration files and environment; a variable wins over files, a later file over earlier ones."""
    values: dict[str, str] = {}
    for file in _files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in _SECTIONS:
            if parser.has_section(section):
                values.update((key.replace("_", "-"), value) for key, value in parser.items(section) if value)
    for key in ("index-url", "extra-index-url", "find-links", "no-index", "cert", "proxy"):
        if variable := os.environ.get("PIP_" + key.upper().replace("-", "_")):
            values[key] = variable
    indexes = (values.get("index-url", PYPI), *values.get("extra-index-url", "").split())
    has_no_index = values.get("no-index", "").lower() in ("1", "true", "yes", "on")
    links = tuple(values.get("find-links", "").split())
    return PipConfig(() if has_no_index else indexes, links, values.get("cert"), values.get("proxy"))


def find_file(project: str, filename: str, config: PipConfig) -> str:
    """Return the address of a file of a project; `file:` for a local one.

    Raises:
        Unreachable: no index has it, or none can be reached; the message names the first that failed.
    """
    problems = []
    try:
        pages = [*map(_as_url, config.links), *(f"{_as_url(index).rstrip('/')}/{project}/" for index in config.indexes)]
    except ValueError as error:
        raise Unreachable(f"An address in pip's configuration cannot be read: {error}; correct it.") from None
    for page in pages:
        try:
            for url in _links(page, config.opener()):
                if unquote(urlsplit(url).path).rpartition("/")[2] == filename:
                    return url
        except (OSError, http.client.HTTPException, ValueError) as error:
            problems.append(f"{_without_password(page)}: {reason_of(error)}")
    asked = f" ({problems[0]})" if problems else ""
    raise Unreachable(
        f"{filename} is in none of pip's package indexes{asked}; check the network, or set PIP_INDEX_URL to an index, "
        "or PIP_FIND_LINKS to a folder that has it."
    )


def open_file(url: str, offset: int, opener: urllib.request.OpenerDirector, accept: str = "*/*") -> Any:
    """Open a file of an index from an offset on; a name and password in its address are sent to that host alone.

    Raises:
        OSError, http.client.HTTPException: it cannot be opened.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise OSError(f"its address begins with {parts.scheme}:, which is not supported")
    headers = {"Accept": accept}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return open_url(url, offset, headers, opener)


def _files() -> list[Path]:
    """Return pip's configuration files, in the order in which they are read."""
    given = os.environ.get("PIP_CONFIG_FILE")
    if given == os.devnull:
        return []
    system = [Path(folder, "pip", "pip.conf") for folder in os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
    home = Path(os.path.expanduser("~"))
    user = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "pip", "pip.conf")
    files = [*reversed(system), Path("/etc/pip.conf"), home / ".pip" / "pip.conf", user, Path(sys.prefix, "pip.conf")]
    return [*files, Path(given)] if given else files


def _as_url(place: str) -> str:
    return place if urlsplit(place).scheme in _SCHEMES else Path(os.path.expanduser(place)).absolute().as_uri()


def _links(page: str, opener: urllib.request.OpenerDirector) -> list[str]:
    """Return the addresses of the files that a page or a local folder links to."""
    if page.startswith("file:"):
        local = Path(unquote(urlsplit(page).path))
        if local.is_dir() and not (local / "index.html").exists():
            return [file.as_uri() for file in sorted(local.iterdir())]
        page = (local / "index.html" if local.is_dir() else local).as_uri()
    with open_file(page, 0, opener, _ACCEPT) as response:
        kind, base, content = response.headers.get("Content-Type", ""), page, response.read(MAX_PAGE_BYTES)
    if response.url and not page.startswith("file:"):
        base = _with_login(response.url, page)
    if "json" in kind:
        return [_with_login(urljoin(base, url), page) for url in _json_targets(content)]
    parser = _Anchors(base)
    try:
        parser.feed(content.decode("utf-8", "replace"))
    except AssertionError as error:  # how Python's parser refuses a page
        raise ValueError(str(error)) from None
    return [_with_login(urldefrag(url)[0], page) for url in parser.found]


def _json_targets(content: bytes) -> list[str]:
    """Return the targets of a page of links in JSON.

    Raises:
        ValueError: it is no such page.
    """
    try:
        urls = [file["url"] for file in json.loads(content)["files"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        urls = [None]
    if not all(isinstance(url, str) for url in urls):
        raise ValueError("its JSON is no list of files")
    return urls


class _Anchors(HTMLParser):
    """Collects the targets of a page's links."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.base = base
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the target of a link; called by the parser."""
        target = dict(attrs).get("href")
        if target and tag == "base":
            self.base = urljoin(self.base, target)
        elif target and tag == "a":
            self.found.append(urljoin(self.base, target))


def _with_login(url: str, page: str) -> str:
    """Return `url` with the name and password of `page`, if both are on the same host."""
    parts, source = urlsplit(url), urlsplit(page)
    host = source.netloc.rpartition("@")[2]
    is_same = (parts.scheme, parts.netloc) == (source.scheme, host)
    return urlunsplit(parts._replace(netloc=source.netloc)) if is_same else url


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
