"""Reads Chromium's trace events: how long scripts ran in each frame."""

from collections import Counter
from typing import Any

SCRIPTS = {"FunctionCall", "EvaluateScript", "FireAnimationFrame", "TimerFire", "EventDispatch", "RunMicrotasks",
           "v8.callFunction"}  # fmt: skip
LAYOUT = {"Layout", "UpdateLayoutTree", "UpdateLayerTree", "PrePaint", "Paint"}
FRAME = "WebFrameWidgetImpl::BeginMainFrame"


def scripting_of_frames(events: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Milliseconds of scripting, and of layout inside of scripts, from the begin of each frame to that of the next."""
    thread = Counter((event["pid"], event["tid"]) for event in events if event["name"] == FRAME).most_common(1)[0][0]
    own = [event for event in events if (event["pid"], event["tid"]) == thread]
    starts = sorted(event["ts"] for event in own if event["name"] == FRAME)
    scripts = merged([event for event in own if event["name"] in SCRIPTS])
    layouts = merged([event for event in own if event["name"] in LAYOUT])
    forced = [part for script in scripts for part in overlaps(script, layouts)]
    in_scripts, in_forced = binned(scripts, starts), binned(forced, starts)
    return [(all_ - part) / 1000 for all_, part in zip(in_scripts, in_forced, strict=True)], [
        x / 1000 for x in in_forced
    ]


def merged(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """The union of events as intervals, in order."""
    found: list[tuple[float, float]] = []
    for start, end in sorted((event["ts"], event["ts"] + event.get("dur", 0)) for event in events):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def overlaps(span: tuple[float, float], others: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The parts of a span that other intervals cover."""
    return [(max(span[0], a), min(span[1], b)) for a, b in others if a < span[1] and b > span[0]]


def binned(spans: list[tuple[float, float]], starts: list[float]) -> list[float]:
    """The time of spans within each interval between two starts; a span counts where it begins."""
    times = [0.0] * (len(starts) - 1)
    frame = 0
    for start, end in spans:
        while frame < len(times) and start >= starts[frame + 1]:
            frame += 1
        if frame < len(times) and start >= starts[frame]:
            times[frame] += end - start
    return times
