"""Monotonic time behind one name, so that tests can put a fake in its place."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since an arbitrary start; never goes backwards."""

monotonic: Clock = time.monotonic
