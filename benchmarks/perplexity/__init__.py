"""The parts of the benchmark `perplexity`: the model, the text, other arithmetic to compare with, and the scores."""
