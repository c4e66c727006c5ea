"""Find what would be compiled for a model, for some GPUs and settings: how would its kernels be launched?

    python -m tests.engine.execute.gpu.found_options FOLDER SETTINGS CASES

CASES is JSON, pairs of a compute capability and the setting `dependent_launches`. Writes, as JSON, a list for each:
[name, value] of all values that the constant IS_DEPENDENT and the option `launch_pdl` have.
"""

from __future__ import annotations

import os

os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported

import json
import sys

from app.engine.execute.gpu.compile_worker import find


def launches(folder: str, settings: dict, capability: list[int], dependent_launches: bool) -> list:
    """The different values of the constant and of the option, over all kernels."""
    job = {
        "settings": {
            "model": folder, "device": "cuda", "load_format": "dummy", **settings,
            "dependent_launches": dependent_launches,
        },
        "capability": capability,
        "num_processors": [132],
        "calibrates": False,
    }  # fmt: skip
    found = [compile_it.keywords for compile_it in find(job).found.values()]
    assert len(found) > 10
    constants = {("IS_DEPENDENT", keywords["IS_DEPENDENT"]) for keywords in found}
    return sorted(constants | {("launch_pdl", keywords.get("launch_pdl", False)) for keywords in found})


if __name__ == "__main__":
    folder, settings, cases = sys.argv[1:]
    print(json.dumps([launches(folder, json.loads(settings), *case) for case in json.loads(cases)]))
