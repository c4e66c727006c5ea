"""The embedded model `guide`: its corpus, and the program that trains, measures and ships it.

`python -m training.guide` does all of it; the other modules are its parts.
"""
