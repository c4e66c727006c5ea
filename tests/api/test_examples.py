"""The examples of docs/reference/examples.md run, and print what the routes answer."""

import asyncio
import os
import re
import shutil
import sys

import pytest

from app.api.routes.operations import OPERATIONS
from tests.api.serving import HANG_S, make_app, serving, with_grammars
from tests.fakes import FakeEngine
from tests.house.source import ROOT
from tools.examples_page import EXAMPLES, URL, examples_page
from tools.node import NODE

PROGRAMS = {
    "sh": ("sh", "-c"),
    "python": (sys.executable, "-c"),
    "js": (NODE, "--input-type=module", "-e"),
}
BLOCKS = re.findall(r"```(\w+)\n(.*?)\n```", examples_page(), re.DOTALL)


@pytest.mark.parametrize("language", PROGRAMS)
async def test_the_examples_run(language):
    if shutil.which(PROGRAMS[language][0]) is None:
        pytest.skip(f"{PROGRAMS[language][0]} is not installed")
    codes = [code for name, code in BLOCKS if name == language]
    assert len(codes) == len(EXAMPLES)
    app = with_grammars(await make_app(FakeEngine()))
    async with serving(app) as url:
        for code in codes:
            process = await asyncio.create_subprocess_exec(
                *PROGRAMS[language],
                code.replace(URL, url),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ | {"NO_PROXY": "127.0.0.1"},
            )
            async with asyncio.timeout(HANG_S):
                output, errors = await process.communicate()
            assert process.returncode == 0, errors.decode()
            assert output.strip() and not re.search(rb"""\berror["']?: ?{\s*["']?message""", output), (code, output)


def test_every_route_has_an_example():
    shown = {re.sub("guide$", "{model}", example.path) for example in EXAMPLES}
    served = {operation.path.replace(":path", "") for operation in OPERATIONS} | {"/metrics", "/openapi.json"}
    of_answers = {path for path in served if "/{id}" in path}
    assert served - shown == of_answers, "their examples need an answer: they are in http.md"
    assert shown < served


def test_the_page_is_linked():
    assert "(examples.md)" in (ROOT / "docs/reference/http.md").read_text(encoding="utf-8")
