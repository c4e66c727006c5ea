#!/bin/sh
# Make .venv with the plain package. Safe to run again. Called by `make setup`.
set -eu

python=${PYTHON:-python3}
torch_cpu_index=https://download.pytorch.org/whl/cpu

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Quire needs Python 3.11 or later; $python is $("$python" -V 2>&1). Try: make PYTHON=python3.11 setup" >&2
    exit 2
}

if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv || {
        rm -rf .venv
        echo "Could not make .venv; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 2
    }
fi
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

# torch for GPUs brings the Triton that it was built with; only where the interpreter runs the kernels is one pinned.
has_gpu() { [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ]; }
if has_gpu; then grep -v '^triton==' constraints.txt; else cat constraints.txt; fi > .venv/constraints.txt

# On Linux PyPI's torch brings gigabytes of CUDA packages. Without an NVIDIA GPU the CPU build is taken from
# PyTorch's own index, where that can be reached; elsewhere pip's configured index decides.
needs_cpu_torch() {
    [ "$(uname -s)" = Linux ] && ! has_gpu && ! pip show --quiet torch 2>/dev/null &&
        .venv/bin/python -c "import urllib.request as u; u.urlopen('$torch_cpu_index/torch/', timeout=5)" 2>/dev/null
}
if needs_cpu_torch; then
    echo "Installing the CPU build of torch"
    # Without its dependencies: those come from pip's configured index, in the versions of constraints.txt.
    pip install --quiet --no-deps --constraint .venv/constraints.txt --index-url "$torch_cpu_index" torch
fi

echo "Installing Quire into .venv"
pip install --quiet --constraint .venv/constraints.txt --editable .
