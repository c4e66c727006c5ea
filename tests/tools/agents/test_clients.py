"""Each client is told of the server in its own way, and of nobody else."""

from __future__ import annotations

import json
import tomllib

import pytest

from tools.agents.clients import CONTEXT, MODEL, setups
from tools.agents.packages import PACKAGES, VERSIONS
from tools.agents.scripted_server import CONTEXT as SERVED_CONTEXT
from tools.agents.scripted_server import NAME

URL = "http://127.0.0.1:4321"
SETUPS = setups(URL)


def test_every_client_and_wire_is_there_once():
    assert {setup.client for setup in SETUPS} == PACKAGES.keys() == VERSIONS.keys()
    assert len({setup.name for setup in SETUPS}) == len(SETUPS)
    assert {setup.wire for setup in SETUPS} == {"chat", "responses", "responses-websocket", "messages"}


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_a_client_knows_the_address_the_model_and_its_context(setup):
    known = json.dumps([*setup.variables.values(), *setup.files.values()])
    assert URL in known and MODEL in known and str(CONTEXT) in known
    assert known.count("http") == known.count(URL)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_its_files_can_be_read(setup):
    for name, text in setup.files.items():
        assert isinstance({"json": json.loads, "toml": tomllib.loads}[name.rpartition(".")[2]](text), dict)


def test_clients_are_told_of_the_model_that_is_served():
    assert (MODEL, CONTEXT) == (NAME, SERVED_CONTEXT)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_a_further_turn_goes_on_with_the_session(setup):
    assert {*setup.further} - {*setup.first} in ({"--continue"}, {"resume", "--last"})
