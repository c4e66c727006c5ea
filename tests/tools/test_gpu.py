"""`make gpu`: parts fit their ten minutes, are rehearsed without a GPU, and keep all that is said."""

import sys
import threading
from pathlib import Path

import pytest

from benchmarks.gpu.sections import SECTIONS, WARM_UP
from tools import gpu, gpu_python
from tools.gpu import CANNOT_START, LIMIT_S, PARTS, Part, Step, run_part, run_step
from tools.gpu_python import CannotRun, make_python, requirements
from tools.gpu_wheels import PACKAGES

CAPS = {section.name: section.cap_s for section in SECTIONS}


def option(step: Step, name: str) -> str:
    """What follows an option."""
    return step.arguments[step.arguments.index(name) + 1]


@pytest.fixture(name="fake")
def _fake(monkeypatch):
    """A part whose steps are short programs."""

    def use(*steps: Step) -> None:
        monkeypatch.setitem(PARTS, "1", Part(steps, ()))

    return use


def test_no_part_takes_more_than_ten_minutes():
    for part in PARTS.values():
        assert sum(step.cap_s for step in part.steps) <= LIMIT_S


def test_sections_have_the_time_that_they_may_take():
    benchmarks = [step for part in PARTS.values() for step in part.steps if "benchmarks" in step.arguments]
    asked = [option(step, "--sections").split(",") for step in benchmarks]
    for step, names in zip(benchmarks, asked, strict=True):
        warm_up = WARM_UP.cap_s if {"S3", "S4", "S5"} & set(names) else 0
        assert sum(CAPS[name] for name in names) + warm_up <= float(option(step, "--budget")) < step.cap_s
    assert {name for names in asked for name in names} == set(CAPS)
    assert any({"S4", "S5"} <= set(names) for names in asked), "served throughput is told as a share of the other"


@pytest.mark.long
def test_a_part_is_rehearsed_up_to_the_first_call_of_a_device(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu, "make_python", lambda folder, wheels: Path(sys.executable))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", ["gpu", *PARTS, "--out", str(tmp_path / "out")])
    assert gpu.main() == CANNOT_START
    said = capsys.readouterr().err
    assert said == "gpu: everything is ready up to the first call of a device, and torch finds no NVIDIA GPU here.\n"
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_imported_is_told_whole():
    with pytest.raises(CannotRun, match="No module named 'no_such_module'"):
        gpu.rehearse([Part((), ("no_such_module",))], Path(sys.executable))


def test_steps_leave_all_that_they_said(fake, tmp_path):
    fake(Step("a b", ("-c", "print('x' * 99999)"), 60), Step("bad", ("-c", "raise ValueError('no')"), 60))
    assert run_part("1", Path(sys.executable), tmp_path / "out") == 1
    assert (tmp_path / "out/a-b.log").read_text() == "x" * 99999 + "\n"
    assert "ValueError: no" in (tmp_path / "out/bad.log").read_text()


@pytest.mark.parametrize(("said", "num_steps"), [("3 passed, 1 failed", 2), ("4 failed", 1)])
def test_where_nothing_of_the_first_tests_passes_the_rest_is_left_out(said, num_steps, fake, tmp_path):
    fake(Step("first", ("-c", f"print('{said}')"), 60, is_first=True), Step("rest", ("-c", ""), 60))
    run_part("1", Path(sys.executable), tmp_path)
    assert len(list(tmp_path.glob("*.log"))) == num_steps


@pytest.fixture
def time_is_up(monkeypatch):
    """The time of a step is up when it has said something, whatever time a busy machine took to start it."""

    class Timer(threading.Timer):
        def run(self):
            _, said, *_ = self.args
            while not said:
                if self.finished.wait(0.01):
                    return
            self.function(*self.args, **self.kwargs)

    monkeypatch.setattr(gpu, "Timer", Timer)


@pytest.mark.usefixtures("time_is_up")
def test_a_step_is_ended_when_its_time_is_up(monkeypatch):
    monkeypatch.setattr(gpu, "TELLING_S", 60)
    told = "import time\ntry: print(1, flush=True); time.sleep(600)\nexcept KeyboardInterrupt: print('what it has')"
    is_good, said = run_step([sys.executable, "-c", told], 1.5)
    assert (is_good, said) == (False, "1\nended at its cap of 2 s\nwhat it has\n")


@pytest.mark.usefixtures("time_is_up")
def test_a_step_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(gpu, "TELLING_S", 0.5)
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    is_good, said = run_step([sys.executable, "-c", deaf], 1.5)
    assert (is_good, said) == (False, "1\nended at its cap of 2 s\n")


def test_a_python_without_torch_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_python, "find_spec", lambda name: None)
    with pytest.raises(CannotRun, match="has no torch; name a Python that has it"):
        make_python(tmp_path / "gpu", tmp_path)
    assert not (tmp_path / "gpu").exists()


def test_what_no_wheel_has_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_python, "requirements", lambda: ["no-such-package-of-quire"])
    (tmp_path / "wheels").mkdir()
    with pytest.raises(CannotRun, match="no-such-package-of-quire"):
        make_python(tmp_path / "gpu", tmp_path / "wheels")


@pytest.mark.long
def test_an_environment_has_what_this_python_has_and_is_made_once(tmp_path, monkeypatch):
    (tmp_path / "wheels").mkdir()
    monkeypatch.setattr(gpu_python, "requirements", lambda: ["starlette", "torch"])
    python = make_python(tmp_path / "gpu", tmp_path / "wheels")
    is_good, said = run_step([str(python), "-c", "import starlette, torch; print(starlette.__file__)"], 60)
    assert is_good and str(tmp_path) not in said
    (tmp_path / "gpu/kept").touch()
    assert make_python(tmp_path / "gpu", tmp_path / "wheels") == python and (tmp_path / "gpu/kept").exists()


def test_what_the_package_needs_besides_torch_and_transformers_is_among_the_wheels():
    theirs = {"torch", "numpy", "tokenizers", "huggingface-hub", "transformers", "safetensors"}
    names = {gpu_name.lower() for each in requirements() if (gpu_name := name(each)) not in theirs}
    assert names <= set(PACKAGES)


def name(requirement: str) -> str:
    """The package that a requirement names."""
    return requirement.partition(";")[0].partition(">=")[0].strip()
