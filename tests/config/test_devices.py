"""A wanted GPU that cannot be there is told from files, before torch loads."""

from pathlib import Path

import pytest

from app.config import devices
from app.config.devices import CPU, CUDA, check_wanted_gpu
from app.contract.errors import CannotStart


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a machine with an NVIDIA driver, and of a torch with CUDA."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_torch_has", lambda library: library == "libtorch_cuda.so")
    return tmp_path


def test_a_gpu_that_may_be_there_is_left_to_torch(driver):
    check_wanted_gpu(CUDA, driver)


def test_other_devices_need_no_gpu(tmp_path):
    for wanted in (CPU, "auto"):
        check_wanted_gpu(wanted, tmp_path)


def test_a_machine_without_a_driver_is_named(driver, tmp_path):
    with pytest.raises(CannotStart, match="--device cuda is set, but this machine has no driver") as caught:
        check_wanted_gpu(CUDA, tmp_path / "empty")
    assert caught.value.exit_code == 75 and "use --device cpu" in caught.value.message


def test_a_variable_that_hides_all_gpus_is_named(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(CannotStart, match="CUDA_VISIBLE_DEVICES is '', which hides all GPUs"):
        check_wanted_gpu(CUDA, driver)


def test_a_torch_without_cuda_is_named(driver, monkeypatch):
    monkeypatch.setattr(devices, "_torch_has", lambda library: False)
    with pytest.raises(CannotStart, match="this torch is built without CUDA"):
        check_wanted_gpu(CUDA, driver)


def test_a_torch_for_amd_is_left_to_the_engine_which_has_words_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_torch_has", lambda library: library == "libtorch_hip.so")
    check_wanted_gpu(CUDA, tmp_path)
