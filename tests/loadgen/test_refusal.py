"""Errors of all servers, in a few words."""

import pytest

from app.loadgen.refusal import MAX_MESSAGE, read_refusal


@pytest.mark.parametrize(
    ("body", "name", "message"),
    [
        (b'{"error": {"message": "Busy.", "code": "overloaded", "type": "server_error"}}', "503 overloaded", "Busy."),
        (b'{"error": {"message": "Busy.", "code": null, "type": "busy"}}', "503 busy", "Busy."),
        (b'{"object": "error", "message": "Busy.", "code": 503}', "503", "Busy."),
        (b'{"error": "Busy.", "error_type": "overloaded"}', "503", "Busy."),
        (b'{"detail": "Busy."}', "503", "Busy."),
        (b"<html>\n <b>Busy</b>\n</html>", "503", "<html> <b>Busy</b> </html>"),
        (b"[1]", "503", "[1]"),
        (b"", "503", ""),
        (b"\xff", "503", "\ufffd"),
    ],
)
def test_every_shape_has_a_name_and_a_message(body, name, message):
    assert read_refusal(503, body) == (name, message)


def test_a_page_is_cut():
    assert len(read_refusal(502, b"x" * 10_000).message) == MAX_MESSAGE
