"""A search for the costliest grammars: see command.py."""
