"""The promises: what tests them exists, and a failure is told."""

from benchmarks.__main__ import BENCHMARKS
from benchmarks.soak.promises import PROMISES, Promise, check, check_all
from tests.house.source import ROOT


def test_what_tests_a_promise_exists():
    for promise in PROMISES.values():
        module, *arguments = promise.tested_by
        if module == "benchmarks":
            assert arguments[0] in BENCHMARKS
        for name in arguments:
            if name.startswith("tests/"):
                path, _, test = name.partition("::")
                assert (ROOT / path).exists()
                assert not test or f"def {test}(" in (ROOT / path).read_text()


def test_the_page_lists_each_promise_with_what_tests_it():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = [tuple(map(str.strip, line.split("|")[1:-1])) for line in page.splitlines() if line.startswith("| R")]
    listed = {name: (what, tested_by) for name, what, _, tested_by in rows}
    assert [*listed] == [*PROMISES, "R18"]
    for name, promise in PROMISES.items():
        assert listed[name] == (promise.what, promise.named)


def test_a_promise_that_is_not_kept_is_told(capsys):
    promises = {
        "R1": Promise("it is listed", ("benchmarks",)),
        "R2": Promise("it is known", ("benchmarks", "nonsense")),
    }
    found = check_all(promises)
    assert [checked.is_kept for checked in found.values()] == [True, False]
    assert "R2, it is known: FAILED" in capsys.readouterr().out
    assert "unknown benchmark" in check(promises["R2"]).says
