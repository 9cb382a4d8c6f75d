"""Draws line plots as SVG, with both axes named, without a library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 76, 190, 44, 56
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#6b7280", "#be185d")

Points = Sequence[tuple[float, float]]


def lines(title: str, across: str, up: str, series: Mapping[str, Points], *, logarithmic: bool = False) -> str:
    """Return the SVG text. `logarithmic` is the vertical axis; the horizontal one is linear from zero."""
    every = [point for points in series.values() for point in points]
    right = max(x for x, _ in every)
    ticks = _decades(every) if logarithmic else _steps(max(y for _, y in every))
    low, high = (ticks[0], ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        share = math.log(max(y, low) / low) / math.log(high / low) if logarithmic else (y - low) / (high - low)
        return LEFT + x / right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="26" font-size="16" font-weight="600" fill="#111827">{escape(title)}</text>',
    ]
    for tick in ticks:
        _, y = place(0, tick)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#4b5563">{tick:,g}</text>')
    for tick in _steps(right):
        if tick <= right:
            x, y = place(tick, low)
            parts.append(f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle" fill="#4b5563">{tick:,g}</text>')
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 14}" fill="#4b5563">{escape(across)}</text>')
    parts.append(
        f'<text x="18" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 18 {middle:.0f})" '
        f'fill="#4b5563">{escape(up)}</text>'
    )
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in sorted(points)))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<rect x="{WIDTH - RIGHT + 14}" y="{TOP + 4 + 22 * number}" width="14" height="4" fill="{colour}"/>'
            f'<text x="{WIDTH - RIGHT + 34}" y="{TOP + 11 + 22 * number}" fill="#111827">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _steps(most: float) -> list[float]:
    """Return four to eight round numbers from zero to at least `most`."""
    size = 10 ** math.floor(math.log10(most or 1))
    step = next(size * share for share in (0.2, 0.5, 1, 2) if most / (size * share) <= 6)
    return [step * number for number in range(math.ceil(most / step) + 1)]


def _decades(points: Points) -> list[float]:
    """Return the powers of ten around all values."""
    positive = [y for _, y in points if y > 0]
    first, last = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]
