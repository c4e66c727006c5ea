"""The benchmarks of a checkout: `python -m benchmarks NAME`."""
