"""What `/metrics` of a server shows at rest, family by family: the order is no content."""

from pathlib import Path

from tests.api.serving import client_of, make_app

GOLDEN = Path(__file__).with_name("golden.txt")


def families_of(text: str) -> set[str]:
    """The texts of all families."""
    return set(text.split("# HELP ")[1:])


async def test_the_families_of_a_server_are_those_of_the_golden_file():
    async with client_of(await make_app()) as client:
        assert families_of((await client.get("/metrics")).text) == families_of(GOLDEN.read_text(encoding="utf-8"))
