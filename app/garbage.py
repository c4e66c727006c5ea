"""The garbage collector of a process that serves: it leaves alone what lives for ever, and looks less often."""

import gc

# Requests and steps are freed by counting references; cycles are rare, and looking for them costs every newcomer.
THRESHOLDS = (20_000, 10, 10)


def settle() -> None:
    """Take what lives now for eternal, and collect later ones seldom. Any thread; call it when all is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
