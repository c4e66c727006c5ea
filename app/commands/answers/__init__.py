"""Answers in the terminal: of a model in this process, or of a server."""
