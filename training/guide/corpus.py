"""The corpus: topics with their wordings, keyword lines and answers, and what is held out of them.

A corpus file is a list of topics:

    @@ name            a new topic
    + phrase, phrase   its keyword line (may be repeated)
    ! social           a mark: `social` topics have no keywords
    ! denies NAME      a mark: a sentence of the answer denies something about this name (product_names.py)
    - wording          one question that this topic answers
    * wording          one that README, the page or every beginner asks: it must be right, so it is never held out
    ? wording          one that somebody asked who did not know the others: these are like what the model will be asked
    >>                 the answer is everything from here to the next topic

`{default:port}` and `{param:max_tokens}` in an answer stand for defaults of app/config/settings.py and
app/contract/sampling_params.py, so that no answer can disagree with the code. `unknown.txt` ends with two lists of
foreign questions: `far` ones, and `near` ones that sound like ours.

Held out is, of every topic, the wording with the smallest hash, and of the foreign questions the 24 smallest of each
kind: nobody chooses, and neither the tokenizer nor the training ever sees them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from app.config.settings import settings
from app.contract.sampling_params import SamplingParams

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
HELD_OUT = HERE / "held_out.jsonl"
UNKNOWN = "unknown"
UNKNOWN_KINDS = ("far", "near")
NUM_UNKNOWN_HELD_OUT = 24  # of each kind: one question is then 4 points

_PLACEHOLDER = re.compile(r"\{(default|param):(\w+)\}")


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing to know: how people ask for it, and the one answer."""

    name: str
    answer: str
    wordings: tuple[str, ...]
    keywords: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()  # the wordings that README, the page or every beginner asks
    asked: tuple[str, ...] = ()  # those that somebody asked who did not know the others
    is_social: bool = False
    denies: frozenset[str] = frozenset()


class HeldOut(NamedTuple):
    """A question that nothing was trained on; `kind` is `known`, `far` or `near`."""

    topic: str
    kind: str
    question: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """What training may see (`topics`, with the held-out wordings removed) and what it may not (`held_out`)."""

    topics: tuple[Topic, ...]
    held_out: tuple[HeldOut, ...]

    @property
    def names(self) -> list[str]:
        """The topics' names, in order."""
        return [topic.name for topic in self.topics]

    @property
    def answers(self) -> dict[str, str]:
        """The answer of each topic."""
        return {topic.name: topic.answer for topic in self.topics}

    @property
    def digest(self) -> str:
        """A hash of every wording and answer; it is stored in the shipped weights to notice a stale model."""
        shown = [(topic.name, topic.answer, topic.wordings, topic.keywords, topic.is_social) for topic in self.topics]
        text = json.dumps([*shown, *self.held_out])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(slots=True)
class _Draft:
    """A topic, or a list of foreign questions, while its file is being read."""

    wordings: list[str] = dataclasses.field(default_factory=list)
    shown: list[str] = dataclasses.field(default_factory=list)
    asked: list[str] = dataclasses.field(default_factory=list)
    keywords: list[str] = dataclasses.field(default_factory=list)
    answer: list[str] = dataclasses.field(default_factory=list)
    marks: set[str] = dataclasses.field(default_factory=set)


def load_corpus(folder: Path = CORPUS) -> Corpus:
    """Read all corpus files of `folder`, fill in the defaults, and set the held-out questions aside.

    Raises:
        ValueError: a line that is not of the format, a topic named twice, or a placeholder that names nothing.
    """
    drafts: dict[str, _Draft] = {}
    for file in sorted(folder.glob("*.txt")):
        _read(file, drafts)
    foreign = {kind: drafts.pop(kind) for kind in UNKNOWN_KINDS}
    drafts[UNKNOWN].asked += [question for draft in foreign.values() for question in draft.asked]
    held_out: list[HeldOut] = []
    topics: list[Topic] = []
    for name, draft in drafts.items():
        wordings = _distinct(draft.wordings)
        if name == UNKNOWN:
            for kind, questions in foreign.items():
                chosen = sorted(_distinct(questions.wordings), key=hash_key)[:NUM_UNKNOWN_HELD_OUT]
                held_out += [HeldOut(name, kind, question) for question in chosen]
                wordings += [question for question in _distinct(questions.wordings) if question not in chosen]
        else:
            chosen = [min(wordings, key=hash_key)]
            held_out += [HeldOut(name, "known", question) for question in chosen]
            wordings = [*draft.shown, *(question for question in wordings if question not in chosen)]
        answer = fill_placeholders("\n".join(draft.answer).strip())
        denies = frozenset(mark.removeprefix("denies ").lower() for mark in draft.marks if mark.startswith("denies "))
        topics.append(
            Topic(
                name,
                answer,
                (*wordings, *_distinct(draft.asked)),
                tuple(draft.keywords),
                tuple(draft.shown),
                tuple(_distinct(draft.asked)),
                bool(draft.marks & {"social", UNKNOWN}),
                denies,
            )
        )
    return Corpus(tuple(topics), tuple(held_out))


def hash_key(question: str) -> bytes:
    """The hash that decides what is held out."""
    return hashlib.blake2b(normalized(question).encode(), digest_size=8).digest()


def normalized(question: str) -> str:
    """Lower case without punctuation: two wordings that differ in less than that are the same."""
    return " ".join(re.findall(r"[\w/+.-]*\w", question.lower()))


def fill_placeholders(text: str) -> str:
    """Replace `{default:NAME}` and `{param:NAME}` by the defaults they name.

    Raises:
        ValueError: there is no such setting or sampling parameter, or it has no default to show.
    """
    sources: dict[str, dict[str, object]] = {
        "default": {item.name: item.default for item in settings()},
        "param": {field.name: field.default for field in dataclasses.fields(SamplingParams)},
    }

    def fill(match: re.Match[str]) -> str:
        value = sources[match[1]].get(match[2])
        if value is None:
            raise ValueError(f"{match[0]} in an answer names no default; write the name of a setting that has one.")
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

    return _PLACEHOLDER.sub(fill, text)


def write_held_out(held_out: Iterable[HeldOut], file: Path = HELD_OUT) -> None:
    """Write the held-out questions, one JSON object per line."""
    file.write_text("".join(json.dumps(item._asdict(), ensure_ascii=False) + "\n" for item in held_out), "utf-8")


def read_held_out(file: Path = HELD_OUT) -> list[HeldOut]:
    """Read what `write_held_out` wrote."""
    return [HeldOut(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]


def read_words(name: str, separator: str | None = None) -> list[str]:
    """Read a list of `words/`: split at `separator` and line ends, or at any white space."""
    text = (HERE / "words" / f"{name}.txt").read_text("utf-8")
    if separator is None:
        return text.split()
    return [word.strip() for line in text.splitlines() for word in line.split(separator) if word.strip()]


def _read(file: Path, drafts: dict[str, _Draft]) -> None:
    """Add the topics of one file to `drafts`."""
    draft, in_answer = _Draft(), False
    adders: dict[str, Callable[[str], None]] = {}
    for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
        if line.startswith("@@ "):
            name, draft, in_answer = line[3:].strip(), _Draft(), False
            if name in drafts:
                raise ValueError(f"{file.name}:{number}: topic {name!r} exists already; merge the two.")
            drafts[name] = draft
            adders = {
                "- ": draft.wordings.append,
                "* ": draft.shown.append,
                "? ": draft.asked.append,
                "+ ": lambda text, into=draft: into.keywords.extend(part.strip() for part in text.split(",")),  # type: ignore[misc]
                "! ": draft.marks.add,
            }
        elif in_answer:
            draft.answer.append(line)
        elif line == ">>":
            in_answer = True
        elif line[:2] in adders:
            adders[line[:2]](line[2:].strip())
        else:
            raise ValueError(f"{file.name}:{number}: {line!r} is not a line of a corpus; see training/guide/corpus.py.")


def _distinct(wordings: list[str]) -> list[str]:
    """Drop wordings that differ from an earlier one in case or punctuation only."""
    return list({normalized(wording): wording for wording in reversed(wordings)}.values())[::-1]
