"""What `quire bench` and the benchmarks measure with: the machine, loads, and their options."""
