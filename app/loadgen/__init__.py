"""What `quire bench serve` is made of: what is asked and when, the client, the figures, and how they are shown."""
