"""What an account sees: numbers of groups, its own requests in full, of others states and counts of blocks."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.client.live_picture import LivePicture
from app.contract.engine_picture import CopyRecord, GroupState, StateRecord
from app.contract.live_state import HEADER
from app.streaming.live.account_view import AccountView
from app.streaming.live.picture_blocks import PictureBlocks
from tests.cases import examples
from tests.streaming.live.pictures import FIGURES, group, picture, table
from tests.streaming.live.vectors import SEVERAL, SHARES, step

OWN_FIELDS = {"id", "prompt", "cached", "computed", "output", "limit", "tables"}


def message_of(view: AccountView, made, records=None):
    return view.next_message(
        PictureBlocks(made), made.records if records is None else records, made.num_lost_records, FIGURES
    )


def state_of(message) -> dict:
    whole = message.whole()
    return json.loads(whole[HEADER.size : HEADER.size + HEADER.unpack_from(whole)[2]])


def seen_by(account: str, made, *, shows_all: bool = False) -> tuple[dict, LivePicture]:
    message, seen = message_of(AccountView(account, shows_all=shows_all), made), LivePicture()
    seen.receive(message.whole())
    return state_of(message), seen


def test_own_requests_are_shown_in_full_and_others_are_not():
    state, seen = seen_by("boris", picture(1, SEVERAL))
    assert {one["n"]: (one["own"], set(one) >= OWN_FIELDS) for one in state["groups"]} == {
        1: (False, False), 2: (True, True), 3: (True, True), 4: (False, False), 5: (False, False),
    }  # fmt: skip
    assert all(not OWN_FIELDS & set(one) for one in state["groups"] if not one["own"])
    assert [*seen.owners[:10]] == [0, 0, 0, 2, 2, 2, 0, 0, 0, 0]


def test_a_view_of_all_shows_whose_all_blocks_are_and_still_no_ids():
    state, seen = seen_by("boris", picture(1, SEVERAL), shows_all=True)
    assert [*seen.owners[:10]] == [1, 1, 1, 2, 2, 2, 0, 0, 4, 4]
    assert [one.get("id") for one in state["groups"]] == [None, "chatcmpl-b", "chatcmpl-c", None, None]


def test_what_a_step_computed_for_others_is_one_share_in_whole_blocks():
    records = [step(1000.0, ("chatcmpl-a", 17, 0, 0), ("chatcmpl-b", 5, 0, 0), ("chatcmpl-d", 1, 2, 1))]
    assert seen_by("boris", picture(1, SEVERAL, records))[0]["records"][0][4] == [[2, 5, 0, 0], [0, 48, 2, 1]]
    shares = seen_by("boris", picture(1, SEVERAL, records), shows_all=True)[0]["records"][0][4]
    assert shares == [[1, 17, 0, 0], [2, 5, 0, 0], [4, 1, 2, 1]]


def test_copies_are_told_where_the_blocks_are_shown():
    records = [CopyRecord(1000.0, 2, 3), CopyRecord(1000.0, 4, 6)]
    for shows_all, told in ((False, [["copy", -0.1, 4, 6]]), (True, [["copy", -0.1, 2, 3], ["copy", -0.1, 4, 6]])):
        assert seen_by("boris", picture(1, SEVERAL, records), shows_all=shows_all)[0]["records"] == told


def test_a_group_keeps_its_number_and_no_other_gets_it():
    view = AccountView("", shows_all=True)
    a, b, c = (group(f"chatcmpl-{name}", [table([1])]) for name in "abc")
    seen = [[one["n"] for one in state_of(message_of(view, picture(n, groups)))["groups"]]
            for n, groups in enumerate([[a], [b, a], [b], [c, b]], 1)]  # fmt: skip
    assert seen == [[1], [2, 1], [2], [3, 2]]


def test_a_request_that_has_ended_since_is_in_the_records_with_its_number():
    view = AccountView("", shows_all=False)
    message_of(view, picture(1, [group("chatcmpl-a", [table([1])])]))
    records = [step(1000.1, ("chatcmpl-a", 0, 1, 0)), StateRecord(1000.15, "chatcmpl-a", "", GroupState.ENDED)]
    assert state_of(message_of(view, picture(2, records=records)))["records"] == [
        ["step", 0.0, 2.5, False, [[1, 0, 1, 0]]], ["state", 0.05, 1, "ended"],
    ]  # fmt: skip


@pytest.mark.parametrize("shows_all", [False, True])
def test_a_request_that_began_and_ended_between_two_pictures_is_its_accounts(shows_all):
    records = [
        step(1000.01, ("chatcmpl-a", 17, 0, 0), ("chatcmpl-b", 5, 0, 0)),
        StateRecord(1000.02, "chatcmpl-a", "anna", GroupState.ENDED),
        StateRecord(1000.02, "chatcmpl-b", "boris", GroupState.ENDED),
    ]
    view = AccountView("anna", shows_all=shows_all)
    assert state_of(message_of(view, picture(1, records=records)))["records"] == [
        ["step", -0.09, 2.5, False, [[1, 17, 0, 0], [0, 16, 0, 0]]],
        ["state", -0.08, 1, "ended"], ["state", -0.08, 2, "ended"],
    ]  # fmt: skip
    again = state_of(message_of(view, picture(2, [group("chatcmpl-a", [table([1])], "boris")])))
    assert [one["own"] for one in again["groups"]] == [False]  # nothing is kept of who has ended


def test_a_request_of_another_account_that_ends_is_named_in_no_step_of_the_message_that_has_it_no_more():
    """A watcher would take it for one of its own, whose group it has missed."""
    held = group("chatcmpl-b", [table([1])], "boris")
    view = AccountView("anna", shows_all=True)
    message_of(view, picture(1, [held]))
    records = [step(1000.15, ("chatcmpl-b", 0, 1, 0)), StateRecord(1000.16, "chatcmpl-b", "boris", GroupState.ENDED)]
    [[*_, shares], _] = state_of(message_of(view, picture(2, records=records)))["records"]
    assert shares == [[0, 0, 1, 0]]


def test_host_blocks_of_others_are_counted_and_have_no_owner():
    groups = [group("a", [table([], host=[1, 2])], "anna"), group("b", [table([], host=[3])], "boris")]
    made = picture(1, groups, num_host_blocks=8)
    assert seen_by("boris", made)[0]["host"] == {"total": 8, "used": 3, "owners": [[2, 1]]}
    assert seen_by("boris", made, shows_all=True)[0]["host"]["owners"] == [[1, 2], [2, 1]]


SECRETS = ["chatcmpl-5ecret", "zanzibar"]


@settings(max_examples=examples(100), deadline=None)
@given(
    shows_all=st.booleans(),
    num_prompts=st.lists(st.integers(10_000, 30_000), min_size=2, max_size=4),
    own=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_nothing_of_others_is_in_any_byte(shows_all, num_prompts, own):
    """Neither an id, nor an account, nor the size of a prompt."""
    groups, records = [], []
    for place, num_prompt in enumerate(num_prompts):
        name, account = (f"chatcmpl-own{place}", "me") if own[place] else (f"{SECRETS[0]}{place}", SECRETS[1])
        groups.append(
            group(name, [table([2 * place + 1, 2 * place + 2], num_tokens=20)], account, num_prompt=num_prompt)
        )
        records += [
            StateRecord(1000.0, name, account, GroupState.RUNNING),
            CopyRecord(1000.0, 2 * place + 1, 2 * place + 2),
        ]
    view = AccountView("me", shows_all=shows_all)
    for number in (1, 2):
        message = message_of(view, picture(number, groups, records))
        for data in filter(None, (message.whole(), message.difference)):
            assert not any(secret.encode() in data for secret in SECRETS)
            for place, num_prompt in enumerate(num_prompts):
                if not own[place] and num_prompt not in [n for i, n in enumerate(num_prompts) if own[i]]:
                    assert str(num_prompt).encode() not in data


tables = st.lists(st.lists(st.integers(1, 30), max_size=8, unique=True), min_size=1, max_size=3)
some_blocks = st.sets(st.integers(1, 30))
groups_of_a_picture = st.dictionaries(st.integers(0, 6), tables, max_size=5)


@settings(max_examples=examples(100), deadline=None)
@given(
    shows_all=st.booleans(),
    pictures=st.lists(st.tuples(groups_of_a_picture, some_blocks, some_blocks), max_size=6),
)
def test_whoever_follows_sees_what_a_newcomer_sees(shows_all, pictures):
    view, seen = AccountView("me", shows_all=shows_all), LivePicture()
    for number, (found, cached, copied) in enumerate(pictures, 1):
        groups = [
            group(f"chatcmpl-{name}", [*map(table, lists, range(3))], "me" if name % 2 else "you")
            for name, lists in found.items()
        ]
        records = [CopyRecord(1000.0, 31, target) for target in copied]
        message = message_of(view, picture(number, groups, records, 31, cached=cached))
        seen.receive(message.whole() if message.difference is None else message.difference)
        newcomer = LivePicture()
        newcomer.receive(message.whole())
        assert (seen.flags, seen.owners, seen.state) == (newcomer.flags, newcomer.owners, newcomer.state)
        shown = {each["n"] for each in state_of(message)["groups"] if shows_all or each["own"]}
        assert set(seen.owners) <= shown | {0}


def test_the_shares_of_the_vectors_are_long_steps():
    assert seen_by("anna", picture(1, SEVERAL, [SHARES]))[0]["records"][0][:4] == ["step", -0.05, 2.5, True]
