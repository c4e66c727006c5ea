"""`python -m benchmarks`: the list, each benchmark's help, and invalid names."""

import pytest

from benchmarks.__main__ import BENCHMARKS, main


def test_without_a_name_the_benchmarks_are_listed(capsys):
    assert main([]) == 0
    output = capsys.readouterr().out
    assert all(f"  {name}" in output for name in BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"usage: python -m benchmarks {name}" in capsys.readouterr().out


def test_an_unknown_name_is_rejected_with_the_nearest(capsys):
    assert main(["isolaton"]) == 2
    assert "unknown benchmark 'isolaton'; did you mean 'isolation'" in capsys.readouterr().err
    assert main(["prefix", "--repaet", "1"]) == 2
