"""The examples of docs/reference/examples.md run, and print what the routes answer."""

import json
import re
import shutil
import sys

import pytest

from app.api.routes.operations import OPERATIONS
from tests.api.example_programs import output_of
from tests.api.serving import make_app, serving, with_grammars
from tests.fakes import FakeEngine
from tests.house.source import ROOT
from tools.examples_page import EXAMPLES, URL, examples_page
from tools.node import NODE

# Python imports for longer than an example runs: its examples share a process, each with names of its own.
ALL_IN_PYTHON = """
import json, sys
for code in json.loads(sys.argv[1]):
    exec(code, {"__name__": "__main__"})
    print(end="\\0", flush=True)
"""
PROGRAMS = {
    "sh": ("sh", "-c"),
    "python": (sys.executable, "-c", ALL_IN_PYTHON),
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
        codes = [code.replace(URL, url) for code in codes]
        if language == "python":
            *outputs, rest = (await output_of(*PROGRAMS[language], json.dumps(codes))).split(b"\0")
            assert rest == b""
        else:
            outputs = [await output_of(*PROGRAMS[language], code) for code in codes]
    for code, output in zip(codes, outputs, strict=True):
        assert output.strip() and not re.search(rb"""\berror["']?: ?{\s*["']?message""", output), (code, output)


def test_every_route_has_an_example():
    shown = {re.sub("guide$", "{model}", example.path) for example in EXAMPLES}
    served = {operation.path.replace(":path", "") for operation in OPERATIONS} | {"/metrics", "/openapi.json"}
    of_answers = {path for path in served if "/{id}" in path}
    assert served - shown == of_answers, "their examples need an answer: they are in http.md"
    assert shown < served


def test_the_page_is_linked():
    assert "(examples.md)" in (ROOT / "docs/reference/http.md").read_text(encoding="utf-8")
