"""The settings that uvicorn and the process get before the server runs."""

from dataclasses import replace

import pytest

from app.config.settings import make_config
from app.contract.errors import ConfigurationError
from app.contract.sampling_defaults import DefaultSource, SamplingDefaults
from app.server.guard import ConnectionLimits
from app.server.run import open_journal, open_kv_disk, ready_line, uvicorn_config
from tests.fakes import MODEL_INFO


async def app(scope, receive, send):
    """An application that is never called."""


def test_uvicorn_gets_the_limits_and_adds_no_headers_or_logs():
    config = uvicorn_config(app, make_config({"max_request_bytes": 4096}))
    assert config.ws_max_size == 4096
    assert config.ws_per_message_deflate is False
    assert (config.server_header, config.proxy_headers, config.access_log) == (False, False, False)
    assert config.timeout_graceful_shutdown is not None


def test_http_and_websockets_share_one_guard_with_the_given_limits():
    limits = ConnectionLimits(max_headers=5)
    config = uvicorn_config(app, make_config({"max_connections_per_ip": 7}), limits)
    guard = config.http.keywords["guard"]
    assert config.ws.keywords["guard"] is guard
    assert guard.limits is limits
    assert guard.max_connections == 7


@pytest.mark.parametrize(("stall_timeout", "ping_timeout"), [(30, 40), (1, 30), (300, 310), (0, None)])
def test_the_ping_timeout_is_longer_than_the_stall_timeout(stall_timeout, ping_timeout):
    config = uvicorn_config(app, make_config({"stall_timeout": stall_timeout}))
    assert config.ws_ping_timeout == ping_timeout
    assert config.ws_ping_interval


def test_the_ready_line_names_the_model_its_limits_and_the_address():
    line = ready_line(MODEL_INFO, ["http://127.0.0.1:8000"])
    assert "fake" in line
    assert "2,048" in line
    assert "65,536" in line
    assert "\n" not in line
    assert line.endswith(" on http://127.0.0.1:8000"), "the address is last, where it is easy to find"
    assert "Ready: fake (text only), " in ready_line(replace(MODEL_INFO, is_text_only=True), ["http://127.0.0.1:8000"])
    both = ready_line(MODEL_INFO, ["http://127.0.0.1:8000", "http://10.1.2.3:8000"])
    assert both.endswith(" on http://127.0.0.1:8000 and http://10.1.2.3:8000")


def test_a_line_before_it_has_the_sampling_defaults_and_who_says_them():
    sources = {"temperature": DefaultSource.FILE, "top_p": DefaultSource.SETTING}
    defaults = SamplingDefaults(temperature=0.6, top_p=0.9, sources=sources)
    first, last = ready_line(replace(MODEL_INFO, defaults=defaults), ["http://127.0.0.1:8000"]).splitlines()
    assert first == "  sampling defaults: top-p 0.9 (a setting); temperature 0.6 (from the model's files)"
    assert last.startswith("Ready: ")


def test_a_home_that_there_is_not_is_one_line():
    with pytest.raises(ConfigurationError, match=r"^journal is ~nobody-here/x, but there is no such home folder"):
        open_journal("~nobody-here/x")
    with pytest.raises(ConfigurationError, match=r"^kv_disk is ~nobody-here/x, but"):
        open_kv_disk(make_config({"kv_disk": "~nobody-here/x"}).server)
