"""Fake compilers that take no time: shell scripts that write the header of an empty library and their arguments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_GOOD = r"""#!/bin/sh
arguments="$*"
zeros='\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
while [ $# -gt 1 ]; do
    [ "$1" = -o ] && { printf "\177ELF$zeros$zeros$zeros\n"; echo "$arguments"; } > "$2"
    shift
done
"""
_FAILING = "#!/bin/sh\necho 'rows.cpp:7: error: unknown type' >&2\nexit 1\n"
_FAILING_LINKER = '#!/bin/sh\ncase "$*" in *-shared*) echo "cannot find -lgomp" >&2; exit 1;; esac\n' + _GOOD


# Compiles for ever in two processes, and writes their ids to a file beside it, so that a test can see them end.
_ENDLESS = """#!/bin/sh
/bin/sleep 600 &
echo "$$ $!" >> "$0.pids"
wait
"""
_KILLED = "#!/bin/sh\nkill -INT $$\n"
_COMPILERS = {
    "good": _GOOD,
    "failing": _FAILING,
    "failing-linker": _FAILING_LINKER,
    "endless": _ENDLESS,
    "killed": _KILLED,
}


def use_compiler(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a fake compiler of this kind (a key of `_COMPILERS`) the only one, or have `none`."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    (folder / "bin").mkdir(parents=True)
    for tool in ("sh", "echo"):
        (folder / "bin" / tool).symlink_to(f"/bin/{tool}")
    if kind != "none":
        script = folder / "bin" / "g++"
        script.write_text(_COMPILERS[kind])
        os.chmod(script, 0o755)
