"""The doctor reports every check, and one that fails hides no other."""

import socket

from app import cli
from app.commands.doctor import Mark, findings
from app.config import make_config

NAMES = ["python", "cpu", "torch", "gpu", "model", "memory", "disk", "files", "port"]


def by_name(**values: object):
    """The findings for a configuration."""
    found = list(findings(make_config({"port": 0, **values})))
    assert [finding.name for finding in found] == NAMES
    return {finding.name: finding for finding in found}


def test_the_embedded_model_is_fine():
    found = by_name()
    assert Mark.FAIL not in {finding.mark for finding in found.values()}
    assert "guide" in found["model"].text
    assert "KV cache" in found["memory"].text


def test_a_missing_model_fails_by_name_and_the_rest_goes_on():
    found = by_name(model="/nowhere/at/all")
    assert found["model"].mark is Mark.FAIL
    assert "/nowhere/at/all" in found["model"].text
    assert found["port"].mark is Mark.OK


def test_more_cache_than_memory_fails():
    assert by_name(num_kv_blocks=2**40)["memory"].mark is Mark.FAIL


def test_a_small_cache_is_a_warning():
    assert by_name(num_kv_blocks=4)["memory"].mark is Mark.WARN


def test_a_failed_check_ends_with_1(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli.main(["doctor", "--port", str(taken.getsockname()[1])]) == 1
    assert "FAIL  port" in capsys.readouterr().out
    assert cli.main(["doctor", "--port", "0"]) == 0
