"""Requests are counted by route and status, and by what refused them, under labels of this server."""

import pytest

from app.contract.errors import Draining, EngineFailed, Overloaded, QueueTimeout, client_codes
from app.observe.request_log import RequestLog

ROUTES = ("/", "/static/{name:path}", "/v1/models", "/v1/models/{model:path}", "/readyz", "/ws")


@pytest.fixture
def log() -> RequestLog:
    """The log of a server with a few routes."""
    return RequestLog(ROUTES)


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/", "/"),
        ("/static/app.js", "/static/{name}"),
        ("/v1/models", "/v1/models"),
        ("/v1/models/any/name", "/v1/models/{model}"),
        ("/v1/models/", "/v1/models/{model}"),
        ("/ws", "/ws"),
        ("/wp-login.php", "other"),
        ("", "other"),
        (None, "other"),
    ],
)
def test_a_request_counts_for_the_route_that_its_path_belongs_to(log: RequestLog, path: str | None, route: str):
    log.write(path=path, status=200, reason="stop")
    assert log.counts.answers == {(route, "200"): 1}


def test_paths_and_reasons_of_clients_make_no_labels(log: RequestLog):
    refusals = dict(log.counts.refusals)
    for number in range(100):
        log.write(path=f"/{number}", status=404, reason=f"reason {number}")
    assert log.counts.answers == {("other", "404"): 100} and log.counts.refusals == refusals


def test_a_request_without_a_response_has_a_code_of_its_own(log: RequestLog):
    log.write(path="/", status=0, reason="client_disconnected")
    assert log.counts.answers == {("/", "none"): 1}


def test_every_error_that_clients_can_get_is_counted_from_zero_on(log: RequestLog):
    assert log.counts.refusals == dict.fromkeys(client_codes(), 0)
    for kind in (Overloaded, QueueTimeout, EngineFailed):
        log.write(path="/v1/models", status=kind.http_status, reason=kind.code)
        assert log.counts.refusals[kind.code] == 1


def test_an_error_after_the_beginning_of_a_response_counts(log: RequestLog):
    log.write(path="/v1/models", status=200, reason=QueueTimeout.code)
    assert log.counts.refusals[QueueTimeout.code] == 1 and log.counts.answers == {("/v1/models", "200"): 1}


def test_a_probe_of_a_server_that_drains_was_not_refused(log: RequestLog):
    log.write(is_routine=True, path="/readyz", status=503, reason=Draining.code)
    assert log.counts.refusals[Draining.code] == 0 and log.counts.answers == {("/readyz", "503"): 1}
