"""Points: every situation comes, before the answers are over, and a seed gives the same ones again."""

from benchmarks.chaos.points import Situation, points


def test_every_situation_comes_in_turn_and_before_the_end():
    found = [*points(50, 1, num_streams=20, num_tokens=4000)]
    assert [point.number for point in found] == [*range(1, 51)]
    assert {point.situation for point in found} == {*Situation}
    assert all(point.num_tokens + point.num_later < 4000 for point in found)
    assert all(point.num_tokens or point.num_accepted for point in found)
    restored = [point.num_later for point in found if point.situation is Situation.RESTORE]
    assert min(restored) == 0 < max(restored)


def test_a_seed_gives_the_same_points_again():
    assert [*points(20, 3, 20, 900)] == [*points(20, 3, 20, 900)] != [*points(20, 4, 20, 900)]
