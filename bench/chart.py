"""A bar chart as SVG text, drawn with nothing but string formatting. Pure."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from msgspec import Struct

_BAR, _GAP, _GROUP_GAP = 26, 6, 22
_LEFT, _TOP, _HEIGHT, _BOTTOM = 52, 48, 220, 40
_RIGHT = 110
_KEY_WIDTH = 90
_COLOURS = ("#4269d0", "#3ca951", "#efb118", "#ff725c", "#a463f2", "#6cc5b0")


class Bar(Struct, frozen=True):
    """One bar; neighbours of the same group share a label, those of one `series` a colour.

    Without a series the group has a colour of its own and needs no key.
    """

    group: str
    value: float
    series: str = ""


class Line(Struct, frozen=True):
    """A horizontal reference line with its label at the right end."""

    value: float
    label: str


def bar_chart(title: str, axis: str, bars: Sequence[Bar], lines: Sequence[Line]) -> str:
    """The chart as an SVG document; bars stand in groups, in the order of each group's first bar.

    Raises ValueError without bars or for a negative value.
    """
    if not bars or any(item.value < 0 for item in (*bars, *lines)):
        raise ValueError("a bar chart needs at least one bar, and no value below 0")
    top = max(item.value for item in (*bars, *lines)) * 1.1 or 1.0
    groups = list(dict.fromkeys(bar.group for bar in bars))
    names = list(dict.fromkeys(bar.series or bar.group for bar in bars))
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    key = list(dict.fromkeys(bar.series for bar in bars if bar.series))
    parts = [part for number, name in enumerate(key) for part in _key(number, name, colours[name])]
    x = float(_LEFT + _GROUP_GAP)
    for group in groups:
        start = x
        for bar in (bar for bar in bars if bar.group == group):
            parts += _bar(x, bar.value, top, colours[bar.series or bar.group])
            x += _BAR + _GAP
        parts.append(_text((start + x - _GAP) / 2, _TOP + _HEIGHT + 20, group, "middle"))
        x += _GROUP_GAP
    width = max(x, _LEFT + _KEY_WIDTH * len(key)) + _RIGHT
    parts = [*_axis(axis, top, x), *parts, *(_line(line, top, x) for line in lines)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
            f'height="{_TOP + _HEIGHT + _BOTTOM}" font-family="sans-serif">',
            '<rect width="100%" height="100%" fill="white"/>',
            _text(_LEFT, 24, title, "start", size=15),
            *parts,
            "</svg>\n",
        ]
    )


def _bar(x: float, value: float, top: float, colour: str) -> list[str]:
    y = _y(value, top)
    height = _TOP + _HEIGHT - y
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_BAR}" height="{height:.1f}" fill="{colour}"/>',
        _text(x + _BAR / 2, y - 4, f"{value:.2f}", "middle", size=10),
    ]


def _key(number: int, name: str, colour: str) -> list[str]:
    x = _LEFT + _KEY_WIDTH * number
    return [
        f'<circle cx="{x + 5}" cy="37" r="5" fill="{colour}"/>',
        _text(x + 14, 41, name, "start", size=11),
    ]


def _axis(name: str, top: float, right: float) -> list[str]:
    base = _TOP + _HEIGHT
    ticks = [top / 1.1 * share for share in (0, 0.25, 0.5, 0.75, 1)]
    return [
        f'<line x1="{_LEFT}" y1="{base}" x2="{right:.1f}" y2="{base}" stroke="#333"/>',
        f'<line x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{base}" stroke="#333"/>',
        *(_text(_LEFT - 6, _y(tick, top) + 4, f"{tick:.2f}", "end", size=10) for tick in ticks),
        f'<g transform="translate(14 {_TOP + _HEIGHT / 2:.0f}) rotate(-90)">',
        _text(0, 0, name, "middle") + "</g>",
    ]


def _line(line: Line, top: float, right: float) -> str:
    y = _y(line.value, top)
    return (
        f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" '
        'stroke="#333" stroke-dasharray="4 3"/>' + _text(right + 4, y + 4, line.label, "start", size=10)
    )


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _y(value: float, top: float) -> float:
    return _TOP + _HEIGHT * (1 - value / top)
