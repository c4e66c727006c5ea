"""What compute-sanitizer says is read: its errors, that it cannot run, that it is not there."""

import time

import pytest

from benchmarks.gpu.sanitizer import num_errors, sanitize
from benchmarks.gpu.tasks import CannotMeasure


def test_its_summary_is_read():
    assert num_errors("x\n========= ERROR SUMMARY: 3 errors\n") == 3
    with pytest.raises(RuntimeError, match="no summary: Segmentation"):
        num_errors("Segmentation fault")


def test_it_may_not_be_there():
    with pytest.raises(CannotMeasure, match="not installed"):
        sanitize("memcheck", None, time.monotonic() + 9)


def test_its_errors_are_counted_and_its_words_kept(tmp_path, capsys):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho \"$@\" >&2\necho '========= ERROR SUMMARY: 2 errors'\n")
    tool.chmod(0o755)
    figure = sanitize("synccheck", str(tool), time.monotonic() + 9)
    assert (figure.name, figure.values) == ("synccheck", (2.0,))
    assert "--tool synccheck" in figure.about["said"] and "--tool synccheck" in capsys.readouterr().err
    tool.write_text("#!/bin/sh\nexec sleep 9\n")
    with pytest.raises(CannotMeasure, match="not done within"):
        sanitize("synccheck", str(tool), time.monotonic() + 1)
