"""The SVG bar chart as a drawing: well-formed, to scale, with text that cannot break it."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.chart import Bar, Line, bar_chart

NS = "{http://www.w3.org/2000/svg}"


def bars_of(svg: str) -> list[ET.Element]:
    """The bars; the background has no x."""
    return [rect for rect in ET.fromstring(svg).iter(f"{NS}rect") if rect.get("x")]


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=20))
def test_heights_are_proportional_to_values(values: list[float]) -> None:
    """The tallest bar belongs to the largest value, and all keep its scale up to rounding."""
    heights = [
        float(r.get("height", "")) for r in bars_of(bar_chart("t", "a", [Bar("g", v) for v in values], []))
    ]
    scale = max(heights) / max(values)
    assert heights == pytest.approx([value * scale for value in values], abs=0.2)


def test_groups_are_coloured_and_labelled_once() -> None:
    """Bars of one group share a colour even when they do not come next to each other."""
    svg = bar_chart("t", "a", [Bar("x", 1), Bar("y", 2), Bar("x", 3)], [Line(1, "one")])
    colours = [rect.get("fill") for rect in bars_of(svg)]
    assert colours[0] == colours[1] != colours[2]
    texts = [text.text for text in ET.fromstring(svg).iter(f"{NS}text")]
    assert texts.count("x") == texts.count("y") == texts.count("one") == 1


@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), min_size=1))
def test_any_label_is_drawn_as_text(label: str) -> None:
    """Markup in a label stays a label."""
    root = ET.fromstring(bar_chart(label, "a", [Bar("g", 1)], []))
    assert label in [text.text for text in root.iter(f"{NS}text")]


@pytest.mark.parametrize("bars", [[], [Bar("g", -1)]])
def test_what_cannot_be_drawn_is_refused(bars: list[Bar]) -> None:
    """No bars, or one below zero."""
    with pytest.raises(ValueError, match="at least one bar"):
        bar_chart("t", "a", bars, [])
