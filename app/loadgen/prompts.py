"""What is asked: random words, or random token ids. No two prompts are alike, so no prefix cache helps anybody."""

from __future__ import annotations

import random

# Short ones, which most vocabularies have as one token each.
_WORDS = """
    air answer apple arm back ball bank bar base bear bed bell bird blood blue board boat body bone book box boy branch
    bread bridge brother brown bus cake camp car card care case cat chair chance child church city class clock cloud
    coat coffee cold color corner country course cow cross cup dance dark day deal deep desk dinner dog door dream dress
    drink driver dust ear earth east edge egg end engine evening eye face fact family farm father field fire fish floor
    flower food foot forest friend front fruit game garden gate girl glass gold grass gray green ground group hair hall
    hand hat head heart heat hill history home horse hour house ice idea iron island job key king kitchen lake land law
    leaf leg letter life light line list lunch machine man map mark market meal metal milk mind minute money moon
    morning mother mountain mouth music name neck night north nose note number office oil orange order page paint paper
    park part party path people person picture piece place plan plant plate point power price queen question rain red
    rest rice ring river road rock roof room root rose salt sand school sea seat ship shirt shoe shop side sign silver
    sister skin sky sleep snow song sound south space spring star state station step stone store storm story street
    sugar summer sun table tea team test thing time tooth tower town train tree trip truck uncle valley voice wall war
    watch water way week west wheel wind window wine winter wood word work world year yellow young
"""
WORDS = tuple(_WORDS.split())


def words(count: int, rng: random.Random) -> str:
    """Return `count` random words; a server makes about as many tokens of them."""
    return " ".join(rng.choices(WORDS, k=count))


def token_ids(count: int, vocab_size: int, rng: random.Random) -> list[int]:
    """Return `count` random ids below `vocab_size`."""
    return rng.choices(range(vocab_size), k=count)
