"""A hundred schemas and conversations with tools, as ordinary users send them, and what a real model answers."""
