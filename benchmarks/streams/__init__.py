"""What the benchmark `streams` is made of."""
