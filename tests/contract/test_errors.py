"""The exceptions: their codes, statuses and close codes."""

import inspect

import pytest

from app.contract import errors

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.QuireError)]
STATUSES = {
    "json_invalid": 400,
    "invalid_value": 400,
    "unsupported_parameter": 400,
    "context_length_exceeded": 400,
    "kv_capacity_exceeded": 400,
    "no_chat_template": 400,
    "http_invalid": 400,
    "invalid_api_key": 401,
    "permission_denied": 403,
    "not_found": 404,
    "model_not_found": 404,
    "method_not_allowed": 405,
    "request_too_large": 413,
    "unsupported_media_type": 415,
    "host_not_allowed": 421,
    "rate_limit_exceeded": 429,
    "engine_error": 500,
    "overloaded": 503,
    "model_loading": 503,
    "draining": 503,
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_info_has_code_status_type_message_and_param(kind):
    error = kind("What was wrong.", param="field")
    info = error.info()
    assert (info.code, info.http_status, info.type) == (kind.code, kind.http_status, kind.type)
    assert (info.message, info.param, str(error)) == ("What was wrong.", "field", "What was wrong.")


@pytest.mark.parametrize(("code", "status"), STATUSES.items())
def test_each_code_has_its_status(code, status):
    assert status in {kind.http_status for kind in CLASSES if kind.code == code}


def test_request_errors_are_4xx_and_unavailability_is_503():
    for kind in CLASSES:
        if issubclass(kind, errors.RequestError):
            assert 400 <= kind.http_status < 500
        if issubclass(kind, errors.ServiceUnavailable):
            assert kind.http_status == 503
            assert kind.retry_after_s


def test_close_codes_are_valid():
    for kind in CLASSES:
        assert kind.ws_close_code in (1008, 1009, 1011, 1012) or 4000 <= kind.ws_close_code < 5000
