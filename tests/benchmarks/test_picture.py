"""Pictures are well-formed whatever their words are, and fit light and dark pages."""

from xml.etree import ElementTree

from benchmarks.picture import line, picture, rect, text

SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_is_well_formed_and_says_its_title_twice():
    parts = [text(1, 2, "a < b & c", "dim", "end"), rect("ours", 0, 0, 0.2, 12), line("limit", 1, 2, 3, 4)]
    root = ElementTree.fromstring(picture('1 < 2 & "3"', 880, 100, "  .ours { fill: red }\n", "", parts))
    assert root.get("viewBox") == "0 0 880 100"
    assert [node.text for node in (root.find(f"{SVG}title"), root.find(f"{SVG}text"))] == ['1 < 2 & "3"'] * 2
    assert [node.text for node in root.findall(f"{SVG}text")][1:] == ["a < b & c"]
    assert root.find(f"{SVG}rect").get("width") == "1.0"


def test_rules_for_dark_pages_stand_in_their_own_block():
    style = ElementTree.fromstring(picture("t", 1, 1, ".a { fill: red }", ".a { fill: blue }", [])).find(f"{SVG}style")
    light, dark = style.text.split("@media (prefers-color-scheme: dark) {")
    assert ".a { fill: red }" in light and ".a { fill: blue }" in dark
    assert light.count("{") == light.count("}") and dark.count("{") + 1 == dark.count("}")
