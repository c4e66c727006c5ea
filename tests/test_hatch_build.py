"""A wheel contains the kernels if there is a compiler, and is for any platform otherwise."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import brotli
import pytest

from app.kernels.cpu.compiling import INSTRUCTION_SETS, SOURCES, source_key, supported_sets
from tests.kernels.cpu.compilers import use_compiler

ROOT = Path(__file__).parents[1]
PAGE = ["/app/static/vendor/*", "/app/static/compressed/*"]  # of a wheel
linux_only = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="kernels are built on Linux x86-64 only"
)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The hook's module, with stubs for hatchling, which is installed only during a build."""
    names = ["hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"]
    for name in (*names, "hatchling.builders.hooks.plugin.interface"):
        module: Any = ModuleType(name)
        module.BuildHookInterface = type("BuildHookInterface", (), {"__class_getitem__": lambda cls, item: cls})
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    monkeypatch.setattr(loaded, "install", lambda root: None)
    return loaded


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project that contains only the kernels."""
    target = tmp_path / "project" / "app" / "kernels" / "cpu"
    shutil.copytree(SOURCES, target / "native", ignore=shutil.ignore_patterns("lib"))
    shutil.copy(SOURCES.parent / "compiling.py", target)
    return tmp_path / "project"


def build(hook: ModuleType, root: Path, target: str = "wheel", version: str = "standard") -> tuple[dict, list[str]]:
    """The build data of the hook, and its warnings."""
    builder = hook.BuildHook()
    warnings: list[str] = []
    builder.root, builder.target_name, builder.app = str(root), target, SimpleNamespace(display_warning=warnings.append)
    data: dict[str, Any] = {"artifacts": []}
    builder.initialize(version, data)
    return data, warnings


@linux_only
def test_a_wheel_for_this_platform_contains_every_instruction_set(
    hook: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_compiler("good", tmp_path, monkeypatch)
    lib = root / "app" / "kernels" / "cpu" / "native" / "lib"
    lib.mkdir()
    (lib / "avx2-of-other-sources.so").touch()
    data, warnings = build(hook, root)
    names = {f"{name}-{source_key()}.so" for name in INSTRUCTION_SETS}
    assert {file.name for file in lib.iterdir()} == names, "libraries of other sources are removed"
    assert {f"/app/kernels/cpu/native/lib/{name}" for name in names} < set(data["artifacts"])
    assert (data["pure_python"], data["tag"], warnings) == (False, "py3-none-linux_x86_64", [])
    use_compiler("none", tmp_path / "later", monkeypatch)
    assert build(hook, root) == (data, []), "an up-to-date library is not compiled again"


@linux_only
@pytest.mark.parametrize("kind", ["none", "failing"])
def test_without_a_working_compiler_the_wheel_is_for_any_platform(
    kind: str, hook: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_compiler(kind, tmp_path, monkeypatch)
    data, warnings = build(hook, root)
    assert data == {"artifacts": PAGE}
    assert len(warnings) == 1 and "lacks the CPU kernels" in warnings[0]


@pytest.mark.parametrize(("target", "version"), [("sdist", "standard"), ("wheel", "editable")])
def test_neither_an_sdist_nor_an_editable_install_compiles(
    target: str, version: str, hook: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch
):
    def compile_kernels(root: Path) -> tuple[list[Path], str]:
        raise AssertionError("the kernels were compiled")

    monkeypatch.setattr(hook, "compile_kernels", compile_kernels)
    assert build(hook, root, target, version) == ({"artifacts": ["/app/static/vendor/*"]}, [])


def test_other_platforms_compile_nothing(hook: ModuleType, root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert build(hook, root) == ({"artifacts": PAGE}, [])


@linux_only
@pytest.mark.kernels
@pytest.mark.skipif(not supported_sets(), reason="this machine cannot run the kernels")
def test_an_installed_wheel_needs_no_compiler(tmp_path: Path):
    project, installed = tmp_path / "project", tmp_path / "installed"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, project / name)
    shutil.copytree(ROOT / "app" / "static" / "vendor", project / "app" / "static" / "vendor")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, ".", "--wheel-dir", str(tmp_path)], cwd=project, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        assert len(libraries) == len(INSTRUCTION_SETS)
        assert any(name.endswith("native/simd.h") for name in archive.namelist()), "the key needs the sources"
        archive.extractall(installed)
    script = (
        "from app.kernels.cpu.compiling import supported_sets\n"
        "from app.kernels.cpu.library import library_file, load_library\n"
        "for name in supported_sets():\n"
        "    assert load_library(name) is not None\n"
        "    print(library_file(name))\n"
    )
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(str(installed)) for line in done.stdout.splitlines())
    assert not list((tmp_path / "cache").glob("**/*.so"))


def test_a_wheel_contains_the_page_compressed_and_an_editable_install_does_not(
    hook: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_compiler("none", tmp_path, monkeypatch)
    static = root / "app" / "static"
    static.mkdir(parents=True)
    (static / "app.js").write_text("one();\n" * 100)
    (static / "tiny.js").write_text("1")
    (static / "font.woff2").write_bytes(b"0" * 1000)
    build(hook, root, version="editable")
    assert not (static / "compressed").exists()
    (static / "compressed").mkdir()
    (static / "compressed" / "stale.br").touch()
    data, _ = build(hook, root)
    assert "/app/static/compressed/*" in data["artifacts"]
    digest = hashlib.sha256((static / "app.js").read_bytes()).hexdigest()
    assert {path.name for path in (static / "compressed").iterdir()} == {f"{digest}.br", f"{digest}.gz"}
    assert brotli.decompress((static / "compressed" / f"{digest}.br").read_bytes()) == (static / "app.js").read_bytes()
    before = {path.name for path in (static / "compressed").iterdir()}
    build(hook, root)
    assert {path.name for path in (static / "compressed").iterdir()} == before
