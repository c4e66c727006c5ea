"""Readers of a config.json into a `ModelSpec`, one for each family of models; registry.py lists them."""
