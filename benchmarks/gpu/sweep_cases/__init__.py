"""What S6 asks before a design is changed: which way is the faster one, on shapes where it matters."""
