"""The parts of `quire bench cpu`: what is measured, on whom, in which order, and how it is shown."""
