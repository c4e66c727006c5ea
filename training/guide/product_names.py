"""The names that the product is made of, and whether the corpus knows them and says the truth about them.

A name is known when an answer or a keyword line has one of its spellings. `words/excluded_names.txt` leaves names
out, each with a reason; `words/waiting_names.txt` holds the few that wait for the next training. A sentence of an
answer that denies something and has a name needs the mark `! denies NAME` of its topic, so that nobody denies by
accident.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from app.api.http.middleware import METRICS_PATH
from app.api.routes.engine_events import EVENTS_PATH
from app.api.routes.operations import OPERATIONS
from app.checkpoint.specs.registry import FAMILIES
from app.checkpoint.tensor_types import SUPPORTED
from app.cli import COMMANDS
from app.config.settings import settings
from training.guide.corpus import Corpus, Topic, read_words

MAX_WAITING = 20

_OTHER_ROUTES = (METRICS_PATH, EVENTS_PATH, "/openapi.json", "/ws", "/live")
_SPELT_FAMILIES = {
    "Phi-3 and Phi-4": ("Phi-3", "Phi3"),
    "Granite 4 without Mamba": ("Granite 4",),
    "Granite 3 with experts": ("Granite-MoE",),
}
_DENIAL = re.compile(r"\b(?:not|no|never|cannot|without|none|nothing)\b|n't\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?:;]\s+|\n")


@lru_cache
def product_names() -> dict[str, tuple[str, ...]]:
    """Return every setting, command, route, family of models and file type, with its spellings."""
    options = {item.name: item.name.replace("_", "-") for item in settings()}
    names = {name: (f"--{option}", f"--no-{option}", f"QUIRE_{name.upper()}") for name, option in options.items()}
    names |= {f"quire {command}": (f"quire {command}",) for command in COMMANDS}
    routes = [one.path.partition("/{")[0] for one in OPERATIONS]
    names |= {path: (path,) for path in (*routes, *_OTHER_ROUTES)}
    titles = [family.title for family in FAMILIES.values()]
    names |= {title: _SPELT_FAMILIES.get(title, (title,)) for title in titles}
    return names | {kind: (kind,) for kind in ("safetensors", "GGUF", *SUPPORTED)}


def problems_of_names(corpus: Corpus) -> list[str]:
    """Say in one line each which names are missing, listed in vain, or denied without a mark."""
    text = "\n".join(topic.answer + "\n" + "\n".join(topic.keywords) for topic in corpus.topics)
    unknown = {name for name, spellings in product_names().items() if not _has_any(text, spellings)}
    excluded, waiting = set(_listed("excluded_names")), set(_listed("waiting_names"))
    listed = excluded | waiting
    found = [f"{name}: no answer has it; write it into one, or list it." for name in sorted(unknown - listed)]
    found += [f"{name}: it is listed, although an answer has it." for name in sorted(listed - unknown & listed)]
    if len(waiting) > MAX_WAITING:
        found.append(f"{len(waiting)} names wait for the next training; at most {MAX_WAITING} may.")
    return found + [line for topic in corpus.topics for line in _denials(topic)]


def _denials(topic: Topic) -> Iterator[str]:
    """Yield a line for each name that an answer denies without a mark."""
    for sentence in _SENTENCE_END.split(topic.answer):
        if _DENIAL.search(sentence):
            for name, spellings in product_names().items():
                if _has_any(sentence, spellings) and name.lower() not in topic.denies:
                    yield f"{topic.name}: {sentence.strip()!r} denies something about {name}; is it so? Then mark it."


def _has_any(text: str, spellings: Iterable[str]) -> bool:
    """Whether one of `spellings` stands in `text` as a word of its own."""
    return any(re.search(rf"(?<![\w/-]){re.escape(spelling)}(?![\w-]|/\w)", text) for spelling in spellings)


def _listed(name: str) -> list[str]:
    """Return the names of a list of `words/`: each line is a name, and after a colon the reason."""
    return [line.rpartition(": ")[0] for line in read_words(name, separator="\n")]
