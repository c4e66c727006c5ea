"""What `quire bench streams` is made of."""
