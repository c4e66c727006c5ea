"""Before any test module is imported: without a GPU, Triton's kernels run in its interpreter."""

import os

from app.devices import has_nvidia_driver

if not has_nvidia_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")
