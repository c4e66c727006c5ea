"""Credit is cumulative, in whatever order grants come."""

from app.streaming.flow.flow_window import Credit


def uptos(credit: Credit, num_choices: int) -> list[int]:
    return [credit.upto(choice) for choice in range(num_choices)]


def test_numbers_never_fall_however_often_and_in_whatever_order_grants_come():
    credit = Credit(256)
    for upto, expected in (
        ((300, 10), [300, 256]),
        ((300, 10), [300, 256]),
        ((1, 400), [300, 400]),
        ((0, 0), [300, 400]),
    ):
        credit.grant(upto)
        assert uptos(credit, 2) == expected


def test_a_grant_of_another_length_counts_as_far_as_it_goes():
    credit = Credit()
    credit.grant((7, 3, 5))
    credit.grant((2, 4))
    credit.grant((8,))
    assert uptos(credit, 2) == [8, 4]


def test_only_grants_that_raise_a_number_are_counted():
    credit = Credit(10)
    for upto in ((10, 10), (11, 0), (11,), (0, 12), ()):
        credit.grant(upto)
    assert credit.num_raises == 2
