"""The embedded model `guide`: its corpus, and the program that trains, measures and ships it.

It is trained in two parts, one that reads the question and one that knows the answers by heart, and both become one
Llama. `python -m training.guide` does all of it; the other modules are its parts.
"""
