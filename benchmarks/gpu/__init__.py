"""What the benchmark `gpu` is made of."""
