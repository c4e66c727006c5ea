"""What a command that meets an error of a server ends with."""

from __future__ import annotations

import pytest

from app.cli import EXIT_CANNOT_START, EXIT_ENGINE_FAILED
from app.client.opening import ServerRefused


@pytest.mark.parametrize(
    ("status", "exit_code"), [(429, EXIT_CANNOT_START), (503, EXIT_CANNOT_START), (500, EXIT_ENGINE_FAILED)]
)
def test_errors_that_pass_end_a_command_as_one_that_cannot_start_now(status: int, exit_code: int) -> None:
    assert ServerRefused("Not yet.", status=status).exit_code == exit_code
