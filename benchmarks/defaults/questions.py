"""Forty plain questions, each with what a right answer contains. They were written before any was asked."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_TOKENS = 80


class Question(NamedTuple):
    """A question, and the words of which a right answer has one."""

    text: str
    words: str

    def is_right(self, answer: str) -> bool:
        """Whether an answer has one of the words, as a word of its own in small or capital letters."""
        return re.search(rf"\b(?:{self.words})\b", answer, re.IGNORECASE) is not None


QUESTIONS = (
    Question("What is the capital of France?", "Paris"),
    Question("What is the capital of Germany?", "Berlin"),
    Question("What is the capital of Italy?", "Rome"),
    Question("What is the capital of Spain?", "Madrid"),
    Question("What is the capital of Japan?", "Tokyo"),
    Question("What is the capital of Egypt?", "Cairo"),
    Question("What is the capital of Russia?", "Moscow"),
    Question("What is the capital of China?", "Beijing"),
    Question("What is the capital of England?", "London"),
    Question("What is the capital of Greece?", "Athens"),
    Question("What is 2 + 2?", "4|four"),
    Question("What is 5 + 3?", "8|eight"),
    Question("What is 10 - 4?", "6|six"),
    Question("What is 3 times 3?", "9|nine"),
    Question("How many days are in a week?", "7|seven"),
    Question("How many months are in a year?", "12|twelve"),
    Question("How many hours are in a day?", "24|twenty-four"),
    Question("How many minutes are in an hour?", "60|sixty"),
    Question("How many seconds are in a minute?", "60|sixty"),
    Question("How many legs does a spider have?", "8|eight"),
    Question("What is the opposite of hot?", "cold|cool"),
    Question("What is the opposite of up?", "down"),
    Question("What is the largest planet in our solar system?", "Jupiter"),
    Question("Which planet is called the red planet?", "Mars"),
    Question("What star do the planets of our solar system orbit?", "Sun"),
    Question("What is the chemical formula of water?", "H2O|H₂O|H_2O"),
    Question("What gas do plants take from the air?", "carbon dioxide|CO2|CO₂"),
    Question("Who wrote Romeo and Juliet?", "Shakespeare"),
    Question("Who painted the Mona Lisa?", "Vinci|Leonardo"),
    Question("Who was the first president of the United States?", "Washington"),
    Question("What is the largest ocean on Earth?", "Pacific"),
    Question("What is the tallest mountain in the world?", "Everest"),
    Question("At what temperature does water boil?", "100|212"),
    Question("At what temperature does water freeze?", "0|32|zero"),
    Question("What language is spoken in Brazil?", "Portuguese"),
    Question("What colour is grass?", "green"),
    Question("What colour is the sky on a clear day?", "blue"),
    Question("Which farm animal says moo?", "cow|cows|cattle"),
    Question("What sweet food do bees make?", "honey"),
    Question("On which continent is Kenya?", "Africa"),
)
