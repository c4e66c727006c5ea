"""What the page of quire.live.v1 says of privacy is what messages have."""

import json

import pytest

from app.contract.live_state import HEADER, LiveGroup
from app.streaming.live.account_view import AccountView
from app.streaming.live.picture_blocks import PictureBlocks
from tests.streaming.live.pictures import FIGURES, group, picture, table
from tests.streaming.live.vectors import step
from tools.live_page import live_page

PAGE = " ".join(live_page().split())


def seen_by(account: str, *, shows_all: bool) -> dict:
    """The JSON part of the first message of an engine with one request, of Anna, whose prompt has 17 tokens."""
    made = picture(1, [group("chatcmpl-a", [table([1, 2])], "anna")], [step(1000.0, ("chatcmpl-a", 17, 0, 0))])
    view = AccountView(account, shows_all=shows_all)
    whole = view.next_message(PictureBlocks(made), made.records, 0, FIGURES).whole()
    state: dict = json.loads(whole[HEADER.size : HEADER.size + HEADER.unpack_from(whole)[2]])
    return state


@pytest.mark.parametrize("shows_all", [False, True])
def test_figures_are_totals_the_same_for_every_key_as_the_page_says(shows_all):
    """So a watcher learns the size of another's only prompt, which the page may not deny."""
    own, other = (seen_by(account, shows_all=shows_all)["figures"] for account in ("anna", "boris"))
    assert own == other and own["prompt_tokens_per_s"] == FIGURES.prompt_tokens_per_s
    assert "`figures` are totals of all requests, the same for every key, as those of `/metrics`" in PAGE
    assert "exactly how many tokens its prompt and its answer have" in PAGE


def test_a_request_of_another_key_has_the_fields_that_the_page_says():
    [theirs] = seen_by("boris", shows_all=False)["groups"]
    fields = [*LiveGroup.__struct_fields__]
    assert [*theirs] == fields[: fields.index("id")]
    assert "Fields from `id` on are there for the account's own requests only." in PAGE


def test_what_a_step_computed_for_another_key_is_as_the_page_says():
    [[*_, shares]] = seen_by("boris", shows_all=False)["records"]
    assert shares == [[0, 32, 0, 0]]
    assert "What a step computed for others is one share, of owner 0, with its prompts in whole blocks" in PAGE
