"""The modules of the benchmark `streams`."""
