"""`python -m benchmarks gpu_host`; see command.py."""
