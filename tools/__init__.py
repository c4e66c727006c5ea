"""What the Makefile runs besides tests and benchmarks: `python -m tools.NAME`."""
