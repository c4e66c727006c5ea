"""The parts of `quire chat`: what is typed, what is answered, and how it is shown."""
