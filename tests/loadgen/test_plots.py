"""Pictures: well-formed, reproducible and within their frame; and what happens without matplotlib."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from app.loadgen import plots
from app.loadgen.plots import LIMIT, Curve, Curves, Key, Picture, save, svg, written
from benchmarks.bars import Bar, Bars

SVG = "{http://www.w3.org/2000/svg}"
BARS = Bars("Rates & more", [Bar("one", 5.0, "5 of 10", full_scale=10.0, marks={"limit": 10.0})])
CURVE = Curve([(0, 0.0), (1, 50.0), (2, 4000.0)], name="p50 <&>")
CURVES = Curves("Times", [CURVE], [(0, "p0"), (2, "p99")])


def picture(*panels: plots.Panel) -> Picture:
    return Picture('1 < 2 & "3"', "a machine", [Key("ours"), Key("at most", LIMIT, "limit")], [[panels]])


def texts(drawn: str) -> list[str]:
    """All texts in a picture."""
    return ["".join(each.itertext()) for each in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def test_a_picture_is_well_formed_and_has_its_labels_as_text():
    found = texts(svg(picture(BARS, CURVES)))
    words = {'1 < 2 & "3"', "a machine", "ours", "at most", "Rates & more", "one", "5 of 10", "Times"}
    assert words <= set(found)
    assert {"p0", "p99"} <= set(found)


def test_the_same_picture_is_the_same_bytes():
    assert svg(picture(BARS, CURVES)) == svg(picture(BARS, CURVES))


def test_a_picture_has_no_background_and_colours_for_light_and_dark_pages():
    drawn = svg(picture(BARS, CURVES))
    root = ElementTree.fromstring(drawn)
    patch = next(each for each in root.iter(f"{SVG}g") if each.get("id") == "patch_1")
    assert "fill: none" in patch[0].get("style", "") or "opacity: 0" in patch[0].get("style", "")
    assert "#000000" not in drawn and "#ffffff" not in drawn


def test_a_curve_with_a_name_has_a_title():
    titles = [each.text for each in ElementTree.fromstring(svg(picture(CURVES))).iter(f"{SVG}title")]
    assert "p50 <&>" in titles


def test_a_column_has_the_height_of_its_panels():
    drawn = [ElementTree.fromstring(svg(picture(*[BARS] * count))) for count in (1, 2)]
    heights = [float(root.get("height", "").removesuffix("pt")) for root in drawn]
    assert heights[1] - heights[0] == pytest.approx(0.75 * (plots.HEAD + BARS.height + plots.BELOW))


def test_values_of_0_do_not_extend_a_logarithmic_axis():
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    CURVES.draw(axes, 0)
    low, high = axes.get_ylim()
    assert 1 < low < 50 and 4000 < high < 10_000


@pytest.mark.parametrize("curves", [(), (Curve([(0, 0.0)]),)])
def test_an_empty_panel_has_a_note(curves):
    assert "nothing was measured" in texts(svg(picture(Curves("Times", curves))))


def test_a_picture_is_saved_and_its_path_is_printed(tmp_path):
    file = tmp_path / "a.svg"
    save(picture(BARS), file)
    assert ElementTree.parse(file).getroot().tag == f"{SVG}svg"
    assert list(tmp_path.iterdir()) == [file]
    assert written(tmp_path / "a.json", file) == f"written: {tmp_path / 'a.json'}, {file}"


def test_without_matplotlib_nothing_is_drawn_and_a_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    save(picture(BARS), tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []
    line = written(tmp_path / "a.json", tmp_path / "a.svg")
    assert line == f"written: {tmp_path / 'a.json'}; a.svg needs matplotlib: pip install matplotlib"


def test_no_command_loads_matplotlib_until_it_draws():
    code = "import app.commands.bench_serve, benchmarks.__main__, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
