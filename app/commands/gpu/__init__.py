"""What `quire bench gpu` is made of."""
