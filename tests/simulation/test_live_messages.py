"""The messages of the live view over simulated runs: differences make what a whole message says, after every step."""

import pytest

from app.client.live_picture import LivePicture
from app.contract.engine_picture import EnginePicture
from app.streaming.live.account_view import AccountView
from app.streaming.live.live_message import LiveMessage
from app.streaming.live.picture_blocks import PictureBlocks
from tests.simulation.scenario import make_scenario
from tests.simulation.simulation import Simulation
from tests.streaming.live.pictures import FIGURES


class Follower:
    """One that watches as an account and takes every message, the first one whole."""

    def __init__(self, account: str, *, shows_all: bool) -> None:
        self.num_pictures = 0
        self._settings = (account, shows_all)
        self._view = AccountView(account, shows_all=shows_all)
        self._seen = LivePicture()

    def take(self, picture: EnginePicture) -> None:
        """Take the difference, and compare what is known then with the whole message, and with one of a new view."""
        message = message_of(self._view, picture)
        self._seen.receive(message.whole() if message.difference is None else message.difference)
        whole, new = LivePicture(), LivePicture()
        whole.receive(message.whole())
        for name in ("number", "state", "flags", "owners"):
            assert getattr(self._seen, name) == getattr(whole, name)
        account, shows_all = self._settings
        new.receive(message_of(AccountView(account, shows_all=shows_all), picture).whole())
        assert new.flags == self._seen.flags  # its numbers of owners begin with 1 again
        assert [owner > 0 for owner in new.owners] == [owner > 0 for owner in self._seen.owners]
        self.num_pictures += 1


def message_of(view: AccountView, picture: EnginePicture) -> LiveMessage:
    return view.next_message(PictureBlocks(picture), picture.records, picture.num_lost_records, FIGURES)


@pytest.mark.parametrize("num_steps", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_whoever_takes_all_differences_knows_the_whole_picture_after_every_step(num_steps: int):
    num_pictures = seed = 0
    while num_pictures < num_steps:
        simulation = Simulation(make_scenario(seed))
        watched = simulation.checker.watched
        followers = [Follower("", shows_all=True), Follower("t", shows_all=False)]

        def checked(check=watched.check, followers=followers) -> EnginePicture:
            picture = check()
            for follower in followers:
                follower.take(picture)
            return picture

        watched.check = checked
        simulation.run(num_steps)
        num_pictures += followers[0].num_pictures
        seed += 1
