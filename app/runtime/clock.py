"""Monotonic time and processor time, which tests can replace."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since an arbitrary start; never goes backwards."""

monotonic: Clock = time.monotonic
thread_time: Clock = time.thread_time
"""Seconds of processor time that the calling thread has taken."""
