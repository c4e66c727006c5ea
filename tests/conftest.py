"""Before any test module is imported: without a GPU, Triton's kernels run in its interpreter."""

import os

from app.devices import has_nvidia_driver

if not has_nvidia_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # The interpreter multiplies tiles with numpy. Some kernels of its OpenBLAS (for Haswell, Zen) sum a row in another
    # order when it stands elsewhere in a tile, as no GPU does. This one does not, and runs on any x86-64.
    os.environ["OPENBLAS_CORETYPE"] = "Prescott"
