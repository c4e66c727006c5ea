"""The modules of the benchmark `isolation`."""
