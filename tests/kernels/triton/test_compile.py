"""The GPU kernels are compiled without a GPU, for Hopper and Ampere, and their machine code is checked."""

import ast
import json
import os
import subprocess
import sys

import pytest

from tests.house.source import ROOT, dotted
from tests.kernels.triton.compile_sweep import sweep
from tests.kernels.triton.compile_table import TABLE, Configuration, failures

KERNELS = ROOT / "app/kernels/triton"
MAX_KERNELS = 60
JOBS = 2
COMPILED = [(configuration, arch) for configuration in TABLE for arch in configuration.architectures]


def compile_kernels(*options: str) -> dict[tuple[str, int], list[dict]]:
    """The reports of each configuration and architecture, by a process in which Triton does not interpret."""
    command = [sys.executable, "-m", "tests.kernels.triton.compile_kernels", "--jobs", str(JOBS), *options]
    # The sanitizers of `make kernels` are for the kernels' library, not for a compiler.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    reports: dict[tuple[str, int], list[dict]] = {}
    for report in map(json.loads, done.stdout.splitlines()):
        reports.setdefault((report["configuration"], report["arch"]), []).append(report)
    failed = any(report["failures"] for group in reports.values() for report in group)
    assert done.returncode == failed, done.stderr[-3000:]
    return reports


@pytest.fixture(scope="module", name="reports")
def _reports():
    return compile_kernels()


@pytest.mark.long
@pytest.mark.parametrize(
    ("configuration", "arch"), COMPILED, ids=[f"{configuration.name}, sm_{arch}" for configuration, arch in COMPILED]
)
def test_machine_code_passes_the_checks(configuration, arch, reports):
    for report in reports[configuration.name, arch]:
        assert report["failures"] == [], f"{configuration.name} for sm_{arch}: {report}"


def test_the_checks_detect_bad_machine_code():
    report = {
        "arch": 90, "spill_loads": 0, "spill_stores": 0, "shared": 0, "hmma": 5, "hgmma": 1, "ldgsts": 1,
        "cctl.e.pf2": 1, "before_wait": [],
    }  # fmt: skip
    old = report | {"arch": 80, "before_wait": None}
    needs = Configuration("a product", ("_kernel",), lambda: None, ("HGMMA", "LDGSTS", "CCTL.E.PF2"))
    assert failures(report, needs) == []
    assert failures(old | {"hgmma": 0, "cctl.e.pf2": 0}, needs) == []
    bad = [{"spill_loads": 1}, {"spill_stores": 1}, {"shared": 232449}, {"hgmma": 0}, {"ldgsts": 0}, {"cctl.e.pf2": 0}]
    bad += [{"before_wait": None}, {"before_wait": ["EXIT"]}]
    bad += [old | {"shared": 166913}, old | {"hmma": 0}, old | {"before_wait": []}]
    assert [len(failures(report | change, needs)) for change in bad] == [1] * len(bad)


def test_the_table_is_short_and_its_names_are_unique():
    assert sum(len(configuration.kernels) for configuration in TABLE) <= MAX_KERNELS
    assert len({configuration.name for configuration in [*TABLE, *sweep()]}) == len([*TABLE, *sweep()])


def test_every_launched_kernel_is_compiled():
    """Launched kernels are the functions with `triton.jit` that no other one calls."""
    kernels = {
        f"{path.stem}.{node.name}": node
        for path in sorted(KERNELS.rglob("*.py"))
        for node in ast.parse(path.read_bytes()).body
        if _is_jit(node)
    }
    calls = {
        dotted(node.func) for kernel in kernels.values() for node in ast.walk(kernel) if isinstance(node, ast.Call)
    }
    launched = {name for name, kernel in kernels.items() if kernel.name not in calls}
    assert len(launched) >= 6
    assert launched - {name for configuration in TABLE for name in configuration.kernels} == set()


def _is_jit(node: ast.stmt) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(dotted(getattr(item, "func", item)) == "triton.jit" for item in decorators)


@pytest.mark.kernels
def test_every_configuration_of_the_sweep_passes_the_checks():
    failed = [report for group in compile_kernels("--all").values() for report in group if report["failures"]]
    assert failed == []
