"""The Dockerfile installs what the package needs where it runs, for a CPU and for a GPU."""

import re
import tomllib

from app.kernels.triton.c_compiler import INSTALL
from tests.house.source import ROOT

BUILD, RUNTIME = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
SETUP = (ROOT / "tools/setup.sh").read_text(encoding="utf-8")


def test_a_gpus_image_has_the_c_compiler_that_the_server_asks_for():
    packages = re.search(r"apt-get install ([\w\- ]+)`", INSTALL)[1]
    assert f"--no-install-recommends {packages}" in RUNTIME


def test_a_gpus_image_has_the_extra_and_the_triton_that_its_torch_brings():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    extra = re.search(r"echo '\[(\w+)\]'", RUNTIME)[1]
    assert any(name.startswith("triton") for name in extras[extra])
    # The pin is for the interpreter: where torch has CUDA it would contradict torch's own.
    assert "'/^triton==/d'" in RUNTIME and "'^triton=='" in SETUP


def test_both_stages_have_one_python():
    assert BUILD.split()[0] == RUNTIME.split()[0]


def test_the_user_of_the_container_owns_the_folder_of_compiled_kernels():
    folder = re.search(r"TRITON_CACHE_DIR=(\S+)", RUNTIME)[1]
    assert f"install --directory --owner=quire {folder}" in RUNTIME
    assert "VOLUME" not in RUNTIME, "what a later image bakes in below a volume is lost"
