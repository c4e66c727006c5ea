"""Readers of mixtures of experts, one for each family of models."""
