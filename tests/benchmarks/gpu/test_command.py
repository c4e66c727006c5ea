"""The benchmark `gpu`: rejected options, the order of sections, JSON per section, budgets, and interrupts."""

import json
import signal
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import main
from benchmarks.gpu import command as bench_gpu
from benchmarks.gpu.figures import Results
from benchmarks.gpu.sanitizer import SANITIZERS
from benchmarks.gpu.sections import Row, Section
from tests.benchmarks.gpu.samples import sample_results

FAKE = Path(__file__).parent / "fake_section.py"


@pytest.fixture(name="fakes")
def _fakes(monkeypatch):
    """Two fake sections on a machine that seems to have a GPU."""

    def command(known, section, rows, events, seconds) -> list[str]:
        return [sys.executable, str(FAKE), str(events), *rows]

    def section(name: str, *rows: str) -> Section:
        return Section(name, f"fake {name}", 20, "fake", tuple(Row(row, 10) for row in rows))

    sections = [section("S0", "a"), section("S4", "b", "crash", "cannot", "c")]
    monkeypatch.setattr(bench_gpu, "SECTIONS", sections)
    monkeypatch.setattr(bench_gpu, "WARM_UP", section("W", "w1", "w2")._replace(cap_s=10))
    monkeypatch.setattr(bench_gpu, "WARM_UP_LEAST_S", 10.0)
    monkeypatch.setattr(bench_gpu, "_command", command)
    monkeypatch.setattr(bench_gpu, "resolve_device", lambda wanted: "cuda")
    return sections


def names(out: Path, section: str) -> list[str]:
    """The figures of a section in the merged file."""
    found = json.loads((out / "gpu.json").read_text())["sections"]
    return [figure["name"] for each in found if each["section"] == section for figure in each["figures"]]


def test_without_a_gpu_the_benchmark_cannot_start(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bench_gpu, "resolve_device", lambda wanted: "cpu")
    assert main(["gpu", "--out", str(tmp_path / "out")]) == 75
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--sections", "S9"), "unknown 'S9'"),
        (("--budget", "0"), "at least 5 seconds"),
        (("--budget", "nan"), "at least 5 seconds"),
        (("--sectoins", "S0"), "'--sections'"),
    ],
)
def test_invalid_options_are_rejected(options, says, capsys):
    assert main(["gpu", *options]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.usefixtures("fakes")
def test_sections_run_in_order_and_a_crash_fails_one_row(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["gpu", "--out", str(out)]) == 1
    assert sorted(names(out, "W")) == ["w1 first", "w2 first"]  # these run side by side
    assert names(out, "S0") == ["a first"]
    assert names(out, "S4") == ["b first", "crash first", "cannot first", "c first"]
    told = json.loads((out / "gpu.json").read_text())
    assert told["command"].startswith("python -m benchmarks") and told["versions"]["torch"]
    (found,) = [each for each in told["sections"] if each["section"] == "S4"]
    assert list(found["failures"]) == ["crash"] and found["left_out"] == {"cannot": "it is not installed"}
    ElementTree.parse(out / "gpu.svg")
    captured = capsys.readouterr()
    assert captured.err.index("S0: fake S0") < captured.err.index("S0 a first") < captured.err.index("S4: fake S4")
    assert captured.out.index("S0: ") < captured.out.index("S4: ") < captured.out.index("required and predicted")
    assert "left out, it is not installed" in captured.err
    assert sorted(path.name for path in out.iterdir()) == ["gpu.json", "gpu.log", "gpu.svg"]
    log = (out / "gpu.log").read_text()
    assert "----- S4\n" in log and log.count("about to crash") == 2, "both tries, whole"


@pytest.mark.usefixtures("fakes")
def test_a_section_without_failures_exits_with_0(tmp_path):
    out = tmp_path / "out"
    assert main(["gpu", "--sections", "S0", "--out", str(out)]) == 0
    assert [each["section"] for each in json.loads((out / "gpu.json").read_text())["sections"]] == ["S0"]


def test_the_json_of_a_section_is_written_before_the_next_begins(fakes, tmp_path, monkeypatch):
    seen = []

    class FakeRun(bench_gpu.SectionRun):
        def run(self):
            seen.append((self.section.name, sorted(Results.load(tmp_path / "gpu.json").sections)))
            known = Results.load(self.folder / "known.json")
            seen.append((self.section.name, sorted(known.sections)))
            return self.result

    monkeypatch.setattr(bench_gpu, "SectionRun", FakeRun)
    main(["gpu", "--out", str(tmp_path)])
    assert seen == [("S0", []), ("S0", ["W"]), ("S4", ["S0", "W"]), ("S4", ["S0", "W"])]


@pytest.mark.usefixtures("fakes")
def test_what_processes_say_is_kept_whole_where_the_run_is_stopped(tmp_path, monkeypatch):
    class FakeRun(bench_gpu.SectionRun):
        def run(self):
            (self.folder / "S0.log").write_text("a traceback\n" * 9999)
            (self.folder / "server.log").write_text("the server's")
            raise KeyboardInterrupt

    monkeypatch.setattr(bench_gpu, "SectionRun", FakeRun)
    assert main(["gpu", "--sections", "S0", "--out", str(tmp_path)]) == 130
    log = (tmp_path / "gpu.log").read_text()
    assert log == "----- S0\n" + "a traceback\n" * 9999 + "\n----- server\nthe server's\n"


def test_sections_beyond_the_budget_are_left_out(fakes, tmp_path, monkeypatch):
    started = []

    class FakeRun(bench_gpu.SectionRun):
        def run(self):
            started.append((self.section.name, round(self.seconds)))
            return self.result

    monkeypatch.setattr(bench_gpu, "SectionRun", FakeRun)
    monkeypatch.setattr(bench_gpu, "run_together", lambda section, *rest: bench_gpu.SectionResult(section.name))
    main(["gpu", "--out", str(tmp_path), "--budget", "30"])
    assert started == [("S0", 20), ("S4", 20)]
    fakes[0] = fakes[0]._replace(cap_s=3)
    main(["gpu", "--out", str(tmp_path), "--budget", "6"])
    ((name, seconds),) = started[2:]
    assert name == "S4" and 3 < seconds <= 6
    found = Results.load(tmp_path / "gpu.json").sections["S0"]
    assert found.left_out == {"a": "no time was left"}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_keeps_the_figures(fakes, tmp_path, monkeypatch, capsys, stop):
    sample = sample_results()

    class FakeRun(bench_gpu.SectionRun):
        def run(self):
            self.result.figures += sample.sections[self.section.name].figures
            if self.section.name == "S4":
                raise stop
            return self.result

    monkeypatch.setattr(bench_gpu, "SectionRun", FakeRun)
    arguments = ["gpu", "--out", str(tmp_path)]
    if stop is SystemExit:
        with pytest.raises(SystemExit):
            main(arguments)
    else:
        assert main(arguments) == 130
    assert len(names(tmp_path, "S4")) == 5
    assert "Llama-3.1-8B, 256 requests" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.long
def test_the_process_of_a_section_accepts_its_command_line(tmp_path, monkeypatch):
    """A section that cannot run here reports each row, and ends."""
    monkeypatch.setattr(bench_gpu, "resolve_device", lambda wanted: "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")  # no compute-sanitizer
    assert main(["gpu", "--sections", "S1,S7", "--budget", "60"]) == 1
    found = Results.load(tmp_path / "gpu.json").sections
    assert "Traceback" in found["S1"].failures["ragged batches"]
    assert found["S1"].failures["ragged batches"] in (tmp_path / "gpu.log").read_text()
    if not any(Path(each).exists() for each in SANITIZERS):
        captured = "compute-sanitizer is not installed here"
        assert found["S7"].left_out == dict.fromkeys(("memcheck", "synccheck"), captured)
