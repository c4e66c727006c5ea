"""The connection that a scope brings, or one that does nothing."""

import pytest

from app.api.connection import EXTENSION, SEND, connection_of, direct_send


class Given:
    """A connection that a server gave."""

    def unread_bytes(self) -> int:
        return 7

    def abort(self) -> None:
        """Do nothing."""

    def set_kernel_patience(self, *, is_on: bool) -> None:
        """Do nothing."""


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_the_connection_that_the_server_gives_is_found(kind):
    given = Given()
    assert connection_of({"type": kind, "extensions": {EXTENSION: given}}) is given


@pytest.mark.parametrize("extensions", [{}, {"extensions": None}, {"extensions": {}}])
def test_without_a_server_the_connection_does_nothing(extensions):
    connection = connection_of({"type": "http", **extensions})
    connection.abort()
    connection.set_kernel_patience(is_on=False)
    assert connection.unread_bytes() == 0


async def test_the_servers_own_send_is_found_where_there_is_one():
    async def own(message):
        """The server's."""

    async def wrapped(message):
        """What the application was given."""

    assert direct_send({"type": "http", "extensions": {SEND: own}}, wrapped) is own
    assert direct_send({"type": "http", "extensions": None}, wrapped) is wrapped
