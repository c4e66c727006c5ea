"""The load generator of `quire bench serve`: requests, the client, the figures of a run, and their presentation."""
