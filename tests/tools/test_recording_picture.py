"""The picture of a recording: text stands where a terminal has it, and appears when it was written."""

import re
from xml.etree import ElementTree

import pytest

from app.client.client import connect
from tests.house.source import ROOT
from tools.recording import CLIENT, DESCRIPTION, KILLER, PICTURE, PROGRAM, SERVER
from tools.recording_picture import CHAR, COLUMNS, HELD_S, LINE, Piece, draw

SVG = "{http://www.w3.org/2000/svg}"


def picture(*pieces: Piece) -> ElementTree.Element:
    """A picture of the terminals "a" and "b"."""
    return ElementTree.fromstring(draw({"a": 5, "b": 2}, pieces, "Two <terminals>"))


def texts(pane: ElementTree.Element) -> list[tuple[str, int, float]]:
    """The texts of a terminal, below its title, and how many columns and rows each is from the first."""
    found = [one for one in pane.iter(f"{SVG}text") if one.get("class") != "title"]
    x, y = (float(found[0].get(name)) for name in "xy")
    return [(one.text, round((float(one.get("x")) - x) / CHAR), (float(one.get("y")) - y) / LINE) for one in found]


def test_text_goes_on_where_it_ended_and_is_wrapped():
    root = picture(Piece("a", 0, "one\nt"), Piece("b", 1, "<&>"), Piece("a", 2, f"wo{'-' * COLUMNS}\n\n!"))
    first, second = root.findall(f"{SVG}svg")
    assert texts(first) == [
        ("one", 0, 0),
        ("t", 0, 1),
        ("wo" + "-" * (COLUMNS - 3), 1, 1),
        ("---", 0, 2),
        ("!", 0, 4),
    ]
    assert texts(second) == [("<&>", 0, 0)]
    assert root.find(f"{SVG}title").text == "Two <terminals>"


def test_terminals_stand_below_each_other_as_high_as_their_rows():
    first, second = picture(Piece("a", 0, "1"), Piece("b", 0, "1")).findall(f"{SVG}svg")
    heights = [float(pane.find(f"{SVG}rect").get("height")) for pane in (first, second)]
    assert heights[0] == heights[1] + 3 * LINE
    assert float(first.get("y")) == 0 and float(second.get("y")) > heights[0]


def test_text_that_is_too_long_moves_up_when_it_is_written():
    root = picture(Piece("b", 0, "1\n2\n"), Piece("b", 1, "3\n4"), Piece("b", 2, "4"), Piece("b", 5, "\n5"))
    style = root.find(f"{SVG}style").text
    moves = re.findall(r"([\d.]+)%\{transform:translateY\((-?[\d.]+)px", style.split("@keyframes s1{")[1])
    length = 5 + HELD_S
    assert [(float(share), float(pixels)) for share, pixels in moves] == [
        (0, 0),
        (100 * 1 / length, -2 * LINE),
        (100 * 5 / length, -3 * LINE),
    ]
    assert f"transform:translateY({-3 * LINE:g}px)" in root.findall(f"{SVG}svg")[1].find(f".//{SVG}g").get("style")


def test_pieces_appear_at_their_times_those_of_one_moment_together():
    root = picture(Piece("a", 0, "0"), Piece("a", 2, "2"), Piece("b", 2.01, "3"), Piece("a", 5, "5"))
    style = root.find(f"{SVG}style").text
    length = 5 + HELD_S
    assert f"animation: none {length:.2f}s" in style
    shown = {number: float(share) for number, share in re.findall(r"keyframes (\w+)\{.*\}([\d.]+)%\{", style)}
    assert shown == {"f1": pytest.approx(100 * 2 / length, abs=0.01), "f2": pytest.approx(100 * 5 / length, abs=0.01)}
    named = [
        (group.get("style"), group.find(f"{SVG}text").text)
        for group in root.iter(f"{SVG}g")
        if "transform" not in group.get("style")
    ]
    assert named == [("animation-name:f1", "2"), ("animation-name:f2", "5"), ("animation-name:f1", "3")]


def test_commands_look_typed():
    root = picture(Piece("a", 0, "$ ls\n", is_typed=True), Piece("a", 1, "x"))
    assert [one.get("class") for one in root.iter(f"{SVG}text")] == ["title", "typed", None, "title"]


def test_the_picture_in_the_readme_is_a_whole_recording():
    root = ElementTree.fromstring(PICTURE.read_text(encoding="utf-8"))
    panes = ["".join(one.text or "" for one in pane.iter(f"{SVG}text")) for pane in root.findall(f"{SVG}svg")]
    assert [pane.startswith(title) for title, pane in zip((CLIENT, KILLER, SERVER), panes, strict=True)] == [True] * 3
    assert "".join(PROGRAM.split()) in "".join(panes[0].split())
    assert "$ kill -9 " in panes[1]
    assert panes[2].count("Ready: ") == 2 and "The server was ended by SIGKILL" in panes[2]
    assert root.find(f"{SVG}title").text == DESCRIPTION
    assert "docs/images/killed.svg" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_program_of_the_recording_is_python():
    compile(PROGRAM, "ask.py", "exec")
    assert f"from {connect.__module__} import {connect.__name__}" in PROGRAM
