"""The time that a step of a server may take while outputs are being generated (`--itl-target`)."""

from __future__ import annotations

from app.config.settings import SchedulerConfig

# Of the default: twenty tokens a second, faster than reading speed.
ITL_TARGET_S = 0.05


def step_target_s(settings: SchedulerConfig) -> float:
    """Return the target in seconds: the one that is set, else the default; 0 is none."""
    return ITL_TARGET_S if settings.itl_target is None else settings.itl_target
