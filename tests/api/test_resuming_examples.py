"""The programs of docs/reference/http.md that resume an answer run as they are written, over connections that break.

The one for browsers runs in tests/e2e/test_event_source.py.
"""

from __future__ import annotations

import re
import shutil
import sys

import pytest

from tests.api.cutting_proxy import cutting
from tests.api.example_programs import output_of
from tests.api.resuming import events_of, told
from tests.api.serving import make_app, serving
from tests.fakes import FakeEngine, Script
from tests.house.source import ROOT

ADDRESS = "http://127.0.0.1:8000"
ANSWER = [f"{number} \u732b\n" for number in range(1, 41)]
STREAM_ID = re.compile(r"^x-quire-stream-id: (\S+)\r?$", re.MULTILINE | re.IGNORECASE)
NUM_HAD = 12  # the number that the page comes back with
POSITION = re.compile(r"[?&]after=(\d+)")


def example(language: str) -> str:
    """The program of that language in the section about resuming."""
    page = (ROOT / "docs/reference/http.md").read_text(encoding="utf-8")
    section = page.partition("\n## Resuming\n")[2].partition("\n## ")[0]
    (found,) = re.findall(rf"```{language}\n(.*?)\n```", section, re.DOTALL)
    return str(found)


async def run(*program: str) -> str:
    """Run a program, and return the text that it prints."""
    return (await output_of(*program)).decode()


async def test_curl_reads_on_behind_its_last_number_and_cancels():
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    begin, again, cancel = re.split(r"\n(?=curl )", example("sh"))
    app = await make_app(FakeEngine(Script(answer=ANSWER)))
    async with serving(app) as url:
        begun = await run("sh", "-c", begin.replace(ADDRESS, url))
        stream_id = STREAM_ID.findall(begun)[0]
        rest = await run("sh", "-c", again.replace(ADDRESS, url).replace("chatcmpl-...", stream_id))
        await run("sh", "-c", cancel.replace(ADDRESS, url).replace("chatcmpl-...", stream_id))
    had = [event for event in events_of(begun.partition("\r\n\r\n")[2]) if event.id.isdigit()]
    assert told([*had[: NUM_HAD + 1], *events_of(rest)]) == told(events_of(begun.partition("\r\n\r\n")[2]))
    assert events_of(rest)[0].id != "0"


@pytest.mark.parametrize("cuts", [(5, 1), (0, 1, 1)], ids=["in the answer", "before its first chunk"])
async def test_the_stock_openai_client_goes_on_with_the_documented_lines(cuts: tuple[int, ...]):
    program = example("python")
    engine = FakeEngine(Script(answer=ANSWER))
    app = await make_app(engine)
    async with serving(app) as url, cutting(url, *cuts) as (broken, proxy):
        output = await run(sys.executable, "-c", program.replace(ADDRESS, broken))
    assert output == "".join(ANSWER)
    assert (proxy.num_cut, len(engine.requests)) == (len(cuts), 1)
    positions = [int(found) for head in proxy.heads for found in POSITION.findall(head)]
    assert len(positions) == 2
    assert positions == sorted(positions)
