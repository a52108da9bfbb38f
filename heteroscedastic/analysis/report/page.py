"""Elements of an HTML page that is one file.

Style sheet and images are inline, text is escaped, and the page supports phones, keyboards and
screen readers.
"""

import base64
import html
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from heteroscedastic import files
from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.plots.figures import Figure

# The page is built from f-strings, as jinja2 would need more lines and another package.
_CSS = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fff; --soft: #f3f4f6;
        --line: #c9ccd3; --link: #00539c; --shade: #0004; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6ea; --paper: #16171b; --soft: #23252b; --line: #4b4f58; --link: #7cc0ff;
          --shade: #fff4; }
}
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--paper); font: 1rem/1.5 system-ui, sans-serif;
       overflow-wrap: anywhere; }
main, header, footer, nav { max-width: 76rem; margin: 0 auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { margin-top: 2.5rem; padding-top: .5rem; border-top: 1px solid var(--line); font-size: 1.3rem; }
h3 { font-size: 1.05rem; }
a { color: var(--link); }
a:focus-visible, summary:focus-visible, .scroll:focus-visible {
  outline: 3px solid var(--link); outline-offset: 2px; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: 1rem; padding: .5rem 1rem; background: var(--paper); z-index: 1; }
nav ul { columns: 16rem; padding-left: 1.2rem; }
nav li, summary { padding: .3rem 0; }
nav li { break-inside: avoid; }
summary { cursor: pointer; }
/* Shades at the edges show where a table continues: a cover of the page's colour scrolls away. */
.scroll { overflow-x: auto; max-width: 100%; margin: .3rem 0 1rem; scrollbar-width: thin;
  background: linear-gradient(to right, var(--paper) 40%, transparent) left / 2.5rem 100% local,
              linear-gradient(to left, var(--paper) 40%, transparent) right / 2.5rem 100% local,
              linear-gradient(to right, var(--shade), transparent) left / 1rem 100% scroll,
              linear-gradient(to left, var(--shade), transparent) right / 1rem 100% scroll;
  background-repeat: no-repeat; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem;
        overflow-wrap: normal; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
         vertical-align: top; white-space: pre; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; white-space: normal; }
td.long, thead th.long { min-width: 22rem; white-space: normal; text-align: left; }
@media (max-width: 40rem) {
  th, td { padding: .3rem .5rem; }
  th:first-child { white-space: normal; max-width: 45vw; }
  thead th { min-width: 4.5rem; }
  td.long, thead th.long { min-width: 16rem; }
}
.pictures { display: grid;
            grid-template-columns: repeat(auto-fill, minmax(min(100%, 28rem), 1fr)); gap: 1rem;
            margin-bottom: 1rem; }
figure { margin: 0; }
figure img { display: block; width: 100%; max-width: 100%; height: auto; background: #fff;
             border-radius: .4rem; }
.pictures img { padding: .4rem; }
figcaption { font-size: .85rem; padding: .3rem 0; }
figcaption p { margin: 0; }
.finding { font-size: 1rem; }
.headline { font-size: 1.2rem; font-weight: 600; line-height: 1.4; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: 1rem;
         padding: 0; list-style: none; }
.sheet img { image-rendering: pixelated; max-height: 12rem; object-fit: contain;
             background: var(--soft); }
.sheet figcaption { white-space: pre-line; }
@media (max-width: 40rem) {
  .sheet { grid-template-columns: repeat(auto-fill, minmax(6rem, 1fr)); gap: .7rem; }
}
.note { border-left: 4px solid var(--line); padding: .3rem .8rem; background: var(--soft); }
footer { margin-top: 3rem; padding-bottom: 2rem; font-size: .85rem; }
"""
_LONG = 40  # letters in a cell; a column with a longer cell breaks its lines


class Picture(NamedTuple):
    """A figure and the numbers that it shows."""

    name: str  # name of its files, without a suffix
    finding: str  # a sentence that says what to see
    caption: str  # what is drawn
    alt: str  # alternative text for screen readers
    figure: Figure
    numbers: Any  # plain values, arrays, and named tuples of these


class Section(NamedTuple):
    """A section of a page: HTML and pictures; consecutive pictures stand side by side."""

    title: str
    parts: Sequence[str | Picture]
    numbers: dict[str, Any] = {}  # other numbers by file name: plain values and arrays


def text(value: Any) -> str:
    """The text of any value, escaped for HTML; it may have several lines."""
    return html.escape("\n".join(map(files.printable, str(value).split("\n"))))


def paragraph(value: Any) -> str:
    return f"<p>{text(value)}</p>"


def note(value: Any) -> str:
    """A note that something is missing, and why."""
    return f'<p class="note">{text(value)}</p>'


def table(caption: str, header: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    """A table that scrolls independently; the first cell of each row is the row's header.

    The other columns keep the lines of each cell, unless one of its cells is long.
    """
    kinds = [""] + [
        ' class="long"' if any(len(str(row[i])) > _LONG for row in rows) else ""
        for i in range(1, len(header))
    ]
    columns = "".join(
        f'<th scope="col"{kind}>{text(cell)}</th>' for kind, cell in zip(kinds, header)
    )
    body = "".join(
        f'<tr><th scope="row">{text(row[0])}</th>'
        + "".join(f"<td{kind}>{text(cell)}</td>" for kind, cell in zip(kinds[1:], row[1:]))
        + "</tr>\n"
        for row in rows
    )
    label = f'aria-label="{text(caption)}"'
    return (
        f"<figure><figcaption>{text(caption)}</figcaption>"
        f'<div class="scroll" tabindex="0" role="region" {label}><table {label}>'
        f"<thead><tr>{columns}</tr></thead><tbody>\n{body}</tbody></table></div></figure>"
    )


def details(summary: str, content: str) -> str:
    """An element that opens on a click; `content` is HTML."""
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


def download(name: str, label: str, rows: Sequence[dict[str, Any]]) -> str:
    """A link inside the page to rows as a CSV file of this name."""
    encoded = base64.b64encode(files.csv_text(rows).encode()).decode()
    return (
        f'<p><a download="{text(name)}" href="data:text/csv;charset=utf-8;base64,{encoded}">'
        f"{text(label)}</a></p>"
    )


def image(data: bytes, kind: str, alt: str, caption: str, finding: str = "") -> str:
    """An inline image; kind is "png" or "svg+xml"."""
    encoded = base64.b64encode(data).decode()
    first = f'<p class="finding">{text(finding)}</p>' if finding else ""
    return (
        f'<figure><img src="data:image/{kind};base64,{encoded}" alt="{text(alt)}">'
        f"<figcaption>{first}{text(caption)}</figcaption></figure>"
    )


def sheet(examples: Sequence[tuple[Shaped[np.ndarray, "..."], str, str]]) -> str:
    """Examples side by side, each given by its pixels, alternative text and caption.

    Features in place of pixels leave the two texts.
    """

    def item(pixels, alt, caption):
        if not figures.are_images(pixels[None]):
            return f"<p>{text(alt)}</p><p>{text(caption)}</p>"
        return image(figures.png(pixels), "png", alt, caption)

    items = "".join(f"<li>{item(*example)}</li>\n" for example in examples)
    return f'<ul class="sheet">\n{items}</ul>'


def page(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """The HTML document; `introduction` is HTML."""
    anchors = [
        f"{i}-{re.sub('[^a-z0-9]+', '-', s.title.lower()).strip('-')}"
        for i, s in enumerate(sections, 1)
    ]
    contents = "".join(
        f'<li><a href="#s{a}">{text(s.title)}</a></li>\n' for a, s in zip(anchors, sections)
    )
    body = "\n".join(
        f'<section aria-labelledby="s{anchor}">\n'
        f'<h2 id="s{anchor}" tabindex="-1">{text(section.title)}</h2>\n'
        f"{_parts(section.parts)}</section>"
        for anchor, section in zip(anchors, sections)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>{_CSS}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the contents</a>
<header><h1>{text(title)}</h1>
{introduction}</header>
<nav aria-label="Sections"><ul>
{contents}</ul></nav>
<main id="main" tabindex="-1">
{body}
</main>
</body>
</html>
"""


def write_beside(sections: Sequence[Section], directory: str | files.Path) -> list[files.Path]:
    """Writes each picture as PNG and SVG, and its numbers as JSON; returns the paths.

    Each file is written completely or not at all.
    """
    written, out = [], files.as_path(directory)
    for section in sections:
        for part in section.parts:
            if isinstance(part, Picture):
                written += figures.write(part.figure, out / part.name)
        shown = {part.name: part.numbers for part in section.parts if isinstance(part, Picture)}
        for name, numbers in (shown | section.numbers).items():
            files.write_json(out / f"{name}.json", numbers)
            written.append(out / f"{name}.json")
    return written


def file_name(*words: Any) -> str:
    """A file name that consists of the words."""
    return re.sub(r"[^A-Za-z0-9.=-]+", "_", "_".join(map(str, words))).strip("_.")


def _parts(parts: Sequence[str | Picture]) -> str:
    html_parts, row = [], []
    for part in [*parts, ""]:
        if isinstance(part, Picture):
            picture = figures.svg(part.figure)
            row.append(image(picture, "svg+xml", part.alt, part.caption, part.finding))
            continue
        if row:
            html_parts.append('<div class="pictures">\n' + "\n".join(row) + "\n</div>")
            row = []
        html_parts.append(part)
    return "\n".join(html_parts)
