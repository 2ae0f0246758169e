#!/usr/bin/env python3
"""Makes docs/img/demo.svg: the terminal of a real run of `anabranch-lab demo`, some seconds into it.

    ./x setup && docs/img/demo.py [--at SECONDS] [--program target/release/anabranch-lab]

Runs the demo in a terminal of 80 columns, keeps what the screen shows when its clock passes --at, and writes it only
if the demo ended well. Nothing is drawn that was not on the screen. Needs Python 3 alone.
"""

import argparse
import os
import pty
import re
import sys
import tempfile
from html import escape
from pathlib import Path

CELL, LINE, TOP, LEFT = 8.4, 19, 30, 16
PLAIN = "#c9d1d9"
# What the demo uses of SGR: strong, faint, green, red.
STYLES = {"0": (PLAIN, False), "1": ("#ffffff", True), "2": ("#8b949e", False), "32": ("#4ade80", False),
          "1;31": ("#f87171", True)}


def run(program):
    """Everything the demo wrote, and its exit code."""
    out = tempfile.mkdtemp(prefix="anabranch-demo-")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.environ.pop("NO_COLOR", None)
        os.execv(program, [program, "demo", "--out", out])
    written = bytearray()
    try:
        while piece := os.read(terminal, 65536):
            written += piece
    except OSError:
        pass  # The other end of a terminal is closed so on Linux.
    return written.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def picture(written, at):
    """Lines of the first picture whose clock is at `at` seconds or later. A redraw begins with `ESC [ lines F`."""
    for drawn in re.split(r"\x1b\[\d+F", written)[1:]:
        lines = drawn.replace("\r", "").split("\x1b[K\n")
        clock = re.search(r"([\d.]+) s$", lines[0])
        if clock and float(clock.group(1)) >= at:
            return lines[:-1]
    sys.exit(f"demo.py: the demo was over before {at} s; choose an earlier moment with --at")


def spans(line):
    """Column, text and style of its pieces."""
    column, style = 0, "0"
    for piece in re.split(r"(\x1b\[[\d;]*m)", line):
        if piece.startswith("\x1b"):
            style = piece[2:-1]
            continue
        # Blanks cut: a gap is a gap, and each run of text is placed by its column.
        for text in re.finditer(r"\S+(?: \S+)*", piece):
            yield column + text.start(), text.group(), STYLES[style]
        column += len(piece)


def svg(lines):
    while lines and not lines[-1].strip():
        lines.pop()
    width, height = LEFT * 2 + 80 * CELL, TOP + LINE * len(lines)
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-size="14" '
           "font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace\">")
    yield "<title>The terminal during ./x demo</title>"
    yield '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>'
    for row, line in enumerate(lines):
        for column, text, (fill, bold) in spans(line):
            weight = ' font-weight="bold"' if bold else ""
            yield (f'<text x="{LEFT + column * CELL:.1f}" y="{TOP + row * LINE}" fill="{fill}"{weight} '
                   f'textLength="{len(text) * CELL:.1f}" lengthAdjust="spacingAndGlyphs" '
                   f'xml:space="preserve">{escape(text)}</text>')
    yield "</svg>"


def main():
    top = Path(__file__).resolve().parents[2]
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--at", type=float, default=10.0, help="seconds into the download; default 10")
    arguments.add_argument("--program", default=top / "target/release/anabranch-lab", help="the built anabranch-lab")
    arguments = arguments.parse_args()
    written, code = run(str(arguments.program))
    if code != 0:
        sys.exit(f"{written}\ndemo.py: the demo ended with {code}; nothing is drawn")
    text = "\n".join(svg(picture(written, arguments.at)))
    (top / "docs/img/demo.svg").write_text(text + "\n")
    print(written.rpartition("\x1b[K")[2].strip())


main()
