"""Before any test module is imported: without a GPU, Triton's kernels run in its interpreter."""

import os
from pathlib import Path

if not Path("/proc/driver/nvidia/version").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
