"""The compose file builds the image of this checkout, and keeps, watches and stops its server."""

import asyncio
import re
import subprocess
import sys
from typing import Any

import yaml

from app.config.settings import ServerConfig, settings
from tests.api.serving import HANG_S, make_app, serving
from tests.house.source import ROOT

FILE = ROOT / "deploy/compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
QUIRE: dict[str, Any] = COMPOSE["services"]["quire"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
STOP_MARGIN_S = 15


def test_the_server_is_alone_and_of_this_checkout():
    assert [*COMPOSE["services"]] == ["quire"]
    assert (FILE.parent / QUIRE["build"] / "Dockerfile").samefile(ROOT / "Dockerfile")


def test_each_variable_is_a_setting():
    assert QUIRE["environment"].keys() <= {item.variable for item in settings()}


def test_each_volume_is_mounted_on_a_folder_of_the_server():
    """A new volume gets the owner of the folder in the image; only the server may read the journal's."""
    folders = dict(mount.split(":") for mount in QUIRE["volumes"])
    assert folders.keys() == COMPOSE["volumes"].keys()
    user = re.search(r"^USER (\w+)$", DOCKERFILE, re.MULTILINE)[1]
    made = re.findall(rf"install --directory --owner={user} ([^\n&\\]+)", DOCKERFILE)
    assert set(folders.values()) <= {folder for line in made for folder in line.split()}
    journal = QUIRE["environment"]["QUIRE_JOURNAL"]
    assert journal.startswith(f"{folders['state']}/")
    assert f"--mode=700 {folders['state']}\n" in DOCKERFILE


def test_a_stop_leaves_time_for_the_drain():
    assert QUIRE["stop_grace_period"] == f"{ServerConfig().drain_timeout + STOP_MARGIN_S:.0f}s"
    assert QUIRE["restart"] == "unless-stopped"


async def test_the_health_check_tells_a_server_from_none():
    async with serving(await make_app()) as url:
        assert await asyncio.to_thread(health_of, url) == 0
    assert await asyncio.to_thread(health_of, url) == 1


def health_of(url: str) -> int:
    """The exit code of the health check, of a server with another address."""
    program, *arguments = QUIRE["healthcheck"]["test"][1:]
    assert program == "python"
    command = [argument.replace("http://127.0.0.1:8000", url) for argument in arguments]
    return subprocess.run([sys.executable, *command], stderr=subprocess.DEVNULL, timeout=HANG_S).returncode
