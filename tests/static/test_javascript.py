"""The page's types and its pure modules, checked without a browser."""

import pytest

from tools.node import TESTS, check_types, run_tests


@pytest.mark.long  # `make check` does the same
def test_the_types_that_the_comments_state_hold() -> None:
    checked = check_types()
    assert checked.returncode == 0, checked.stdout


def test_the_pure_modules_pass_their_tests_under_node() -> None:
    tested = run_tests()
    assert tested.returncode == 0, tested.stdout
    assert f"# pass {sum(path.read_text().count(chr(10) + 'test(') for path in TESTS.rglob('*.test.js'))}" in (
        tested.stdout
    )
