"""The failure of a stream: errors meant for users are told, all others are logged and not told."""

from __future__ import annotations

import logging

import pytest

from app.api.http.stream_failure import failure_of
from app.contract.errors import Overloaded


def test_an_error_meant_for_users_is_told_and_not_logged(caplog: pytest.LogCaptureFixture):
    error = Overloaded("Too much is pending.", retry_after_s=3)
    assert failure_of(error) == error.info()
    assert not caplog.records


def test_another_error_is_logged_and_not_told(caplog: pytest.LogCaptureFixture):
    error = KeyError("secret")
    failure = failure_of(error)
    assert failure.http_status == 500 and "secret" not in failure.message
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and record.exc_info is not None and record.exc_info[1] is error
