"""The tests. A package of its own: else one of the same name among installed packages would be found in its place."""
