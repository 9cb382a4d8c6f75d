"""Makes a picture of the demo from a real run of it on a terminal, with each line at its time.

Usage: python tools/record.py                   write docs/images/demo.svg
       python tools/record.py out.svg --seed 7  write another file, with other arguments for the demo

Needs nothing but the standard library and an installed `holdfast`. Without animation, the whole picture is shown.
"""

import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "demo.svg"
PROGRAM = Path(sys.executable).with_name("holdfast")
TIMEOUT_S = 120
COLUMNS = 120
CELL_WIDTH, LINE_HEIGHT, MARGIN = 7.8, 18, 16
STYLES = {"1": "bold", "2": "dim", "31": "red", "32": "green", "33": "yellow", "36": "cyan"}
ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")

FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" aria-label="holdfast demo">
<style>
text {{ font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d6deeb; white-space: pre; }}
.bold {{ font-weight: bold; fill: #ffffff; }}
.dim {{ fill: #7f8c98; }}
.red {{ fill: #ff6b6b; font-weight: bold; }}
.green {{ fill: #8ce99a; }}
.yellow {{ fill: #ffd43b; }}
.cyan {{ fill: #66d9e8; }}
@media (prefers-reduced-motion: no-preference) {{ text {{ animation: appear 1ms linear both; }} }}
@keyframes appear {{ from {{ opacity: 0; }} to {{ opacity: 1; }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#1b2330"/>
{lines}
</svg>
"""


class Line(NamedTuple):
    """A line of the terminal, and its time."""

    at_s: float
    text: str


def main(arguments: list[str]) -> int:
    path = Path(arguments[0]) if arguments else IMAGE
    code, lines = recorded(["demo", "--url", "agent.db", *arguments[1:]])
    shown = [Line(0.0, "\x1b[2m$\x1b[0m holdfast demo --url agent.db"), *lines]
    path.write_text(drawn(shown), encoding="utf-8")
    print(f"wrote {path}: {len(shown)} lines, exit code {code}")
    return code


def recorded(command: list[str]) -> tuple[int, list[Line]]:
    """Run a command on a terminal of its own. Return its exit code, and its lines with their times."""
    inside, outside = pty.openpty()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        environment = {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1", "COLUMNS": str(COLUMNS)}
        environment.pop("NO_COLOR", None)
        # The demo prints commands by name only if a shell would find this program.
        environment["PATH"] = f"{PROGRAM.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
        process = subprocess.Popen([PROGRAM, *command], cwd=folder, stdout=outside, stderr=outside, env=environment)
        os.close(outside)
        lines, rest = list[Line](), b""
        while time.monotonic() - began_s < TIMEOUT_S:
            if not select.select([inside], [], [], 0.05)[0]:
                continue
            try:
                data = os.read(inside, 65_536)
            except OSError:  # the other end is closed
                break
            *whole, rest = (rest + data).split(b"\r\n")
            at_s = time.monotonic() - began_s
            lines.extend(Line(at_s, line.decode()) for line in whole)
        os.close(inside)
        return process.wait(TIMEOUT_S), lines


def drawn(lines: list[Line]) -> str:
    """Return the lines as an SVG picture."""
    rows: list[str] = []
    for number, line in enumerate(lines):
        y = MARGIN + (number + 0.75) * LINE_HEIGHT
        delay = f' style="animation-delay: {line.at_s:.2f}s"' if line.at_s else ""
        rows.append(f'<text x="{MARGIN}" y="{y:.1f}" xml:space="preserve"{delay}>{styled(line.text)}</text>')
    width = 2 * MARGIN + CELL_WIDTH * max(len(ESCAPE.sub("", line.text)) for line in lines)
    return FRAME.format(width=width, height=2 * MARGIN + LINE_HEIGHT * len(lines), lines="\n".join(rows))


def styled(text: str) -> str:
    """Return text with terminal colours as spans with classes."""
    parts: list[str] = []
    style = ""
    for number, piece in enumerate(ESCAPE.split(text)):
        if number % 2:
            style = STYLES.get(piece, "")
        elif piece:
            parts.append(f'<tspan class="{style}">{escape(piece)}</tspan>' if style else escape(piece))
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
