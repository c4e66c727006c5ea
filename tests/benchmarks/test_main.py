"""`python -m benchmarks`: the list, each benchmark's help, and mistakes."""

import pytest

from benchmarks.__main__ import BENCHMARKS, main


def test_without_a_name_it_lists_them(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name}" in said for name in BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_says_what_it_does(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"usage: python -m benchmarks {name}" in capsys.readouterr().out


def test_an_unknown_name_is_refused_with_the_nearest(capsys):
    assert main(["isolaton"]) == 2
    assert "unknown benchmark 'isolaton'; did you mean 'isolation'" in capsys.readouterr().err
    assert main(["prefix", "--repaet", "1"]) == 2
