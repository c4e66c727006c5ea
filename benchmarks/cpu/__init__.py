"""The parts of the benchmark `cpu`: what is measured, on whom, in which order, and how it is shown."""
