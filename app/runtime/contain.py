"""Contains the failure of one request."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from app.contract.errors import NOT_OURS


class contain:  # noqa: N801  # used like `contextlib.suppress`
    """Passes exceptions of a block to `on_error`, so that they end one request, but not the thread or task of all.

    Exceptions in `reraise`, which end the process or the task, are raised again. An object can be used several times.
    """

    __slots__ = ("_on_error", "_reraise")

    def __init__(
        self, on_error: Callable[[BaseException], None], reraise: tuple[type[BaseException], ...] = NOT_OURS
    ) -> None:
        self._on_error = on_error
        self._reraise = reraise

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or isinstance(error, self._reraise):
            return False
        self._on_error(error)
        return True
