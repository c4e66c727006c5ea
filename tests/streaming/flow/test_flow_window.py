"""Credit is cumulative, in any order of the grants."""

from app.streaming.flow.flow_window import Credit


def uptos(credit: Credit, num_choices: int) -> list[int]:
    return [credit.upto(choice) for choice in range(num_choices)]


def test_credit_never_falls_in_any_order_of_grants():
    credit = Credit(256)
    for upto, expected in (
        ((300, 10), [300, 256]),
        ((300, 10), [300, 256]),
        ((1, 400), [300, 400]),
        ((0, 0), [300, 400]),
    ):
        credit.grant(upto)
        assert uptos(credit, 2) == expected


def test_a_grant_may_name_more_or_fewer_choices():
    credit = Credit()
    credit.grant((7, 3, 5))
    credit.grant((2, 4))
    credit.grant((8,))
    assert uptos(credit, 2) == [8, 4]


def test_only_grants_that_raise_credit_are_counted():
    credit = Credit(10)
    for upto in ((10, 10), (11, 0), (11,), (0, 12), ()):
        credit.grant(upto)
    assert credit.num_raises == 2
