"""Servers that are killed while their answers are read, at many points."""
