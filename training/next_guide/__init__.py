"""How the next `guide` will be trained, in two parts: one reads the question, one knows the answers by heart.

It takes the place of the trainer in `training.guide`, whose corpus, questions and checks it uses, when its answers are
better; docs/log.md says how far it is. `python -m training.next_guide` trains it into `build/next_guide`.
"""
