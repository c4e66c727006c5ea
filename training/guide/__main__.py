"""`python -m training.guide`: train the embedded model, ship it, and print how good it is."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from training.guide.corpus import CORPUS, HELD_OUT, HERE, Corpus, load_corpus, write_held_out
from training.guide.evaluate import evaluate, make_answerer
from training.guide.export import export, install, load_shipped
from training.guide.join import Thresholds, join
from training.guide.lint import problems
from training.guide.product_names import problems_of_names
from training.guide.reciter import Recitals
from training.guide.results import table, write_results
from training.guide.tokenizer import GuideTokenizer, train_tokenizer
from training.guide.train import Recipe, train_reader, train_reciter

SHIPPED = HERE.parents[1] / "app" / "models" / "guide"
SAMPLE_ROWS = 16


def main() -> int:
    """Run the whole program; returns the exit code: 2 for a corpus with problems."""
    options = _parse()
    corpus = load_corpus(options.corpus)
    found = [*problems(corpus), *problems_of_names(corpus)]
    if found:
        print("\n".join(found), file=sys.stderr)
        return 2
    if not options.evaluate_only:
        recipe = dataclasses.replace(Recipe(), seed=options.seed, threads=options.threads)
        started = time.monotonic()
        write_held_out(corpus.held_out, HELD_OUT)
        _build(corpus, recipe, options.out)
    shipped = load_shipped(options.out)
    scores = evaluate(corpus, make_answerer(shipped, GuideTokenizer(options.out / "tokenizer.json")))
    print(table(scores))
    if not options.evaluate_only:
        write_results(options.results, corpus, recipe, shipped, scores, time.monotonic() - started)
        print(f"written: {options.out} and {options.results}")
    return 0


def _build(corpus: Corpus, recipe: Recipe, out: Path) -> None:
    """Train and export into a scratch folder, and put the result in place only when all of it is there."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "tokenizer.json"
        train_tokenizer(corpus, recipe.vocab_size, recipe.seed, file)
        tokenizer = GuideTokenizer(file)
        print(f"{len(corpus.topics)} topics, vocabulary {tokenizer.vocab_size}", flush=True)
        report = partial(print, flush=True)
        reciter = train_reciter(corpus, tokenizer, recipe, report)
        reader = train_reader(corpus, tokenizer, recipe, report)
        thresholds = Thresholds(recipe.unsure_below, recipe.rejection_bonus)
        sample = Recitals(corpus, tokenizer, recipe.seed).make(SAMPLE_ROWS, recipe.row)
        model = join(reciter, reader, tokenizer, corpus, thresholds, sample)
        export(model, tokenizer.markers, corpus.digest, Path(scratch))
        install(Path(scratch), out)


def _parse() -> argparse.Namespace:
    defaults = Recipe()
    parser = argparse.ArgumentParser(prog="python -m training.guide", description=__doc__)
    parser.add_argument("--seed", type=int, default=defaults.seed, help="seed of everything (default %(default)s)")
    parser.add_argument("--threads", type=int, default=defaults.threads, help="torch threads (default %(default)s)")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder of the model (default %(default)s)")
    parser.add_argument("--results", type=Path, default=HERE / "RESULTS.md", help="report (default %(default)s)")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder of the corpus (default %(default)s)")
    parser.add_argument("--evaluate-only", action="store_true", help="measure the model that is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
