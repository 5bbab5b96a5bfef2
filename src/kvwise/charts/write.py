"""Writes figures as SVG, PNG, or one HTML page that opens without a network. Draws nothing itself."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvwise.charts.style import PNG_DPI, check_can_draw, house_style
from kvwise.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES: Final = (".svg", ".png", ".html")
_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #1f2937; background: #fff; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem }}
h1 {{ font-size: 1.4rem }} h2 {{ font-size: 1.1rem; margin-top: 2.5rem }}
figure {{ margin: 0 }} svg {{ width: 100%; height: auto }}
table {{ border-collapse: collapse }} td, th {{ padding: .2rem .8rem .2rem 0; text-align: left }}
td.number, th.number {{ text-align: right }} th {{ border-bottom: 1px solid #9ca3af }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def check_suffix(path: Path) -> None:
    """Raise UsageError for a file that figures are not written as."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path.name} is no figure's name", expected=f"one that ends in {', '.join(SUFFIXES)}")


def check_can_write(path: Path) -> None:
    """Raise UsageError, before anything is computed, for a file that can't be drawn: its name, or no matplotlib."""
    check_suffix(path)
    check_can_draw()


def write_figure(figure: Figure, path: Path) -> None:
    """As SVG or PNG by the name's ending; the same figure gives the same bytes."""
    path.write_bytes(svg_bytes(figure) if path.suffix.lower() == ".svg" else png_bytes(figure))


def svg_bytes(figure: Figure) -> bytes:
    return _saved(figure, "svg")


def png_bytes(figure: Figure) -> bytes:
    return _saved(figure, "png")


def _saved(figure: Figure, kind: str) -> bytes:
    out = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with house_style():
        figure.savefig(out, format=kind, dpi=PNG_DPI, metadata=metadata)
    return out.getvalue()


def html_page(title: str, figures: Mapping[str, Figure], tables: Mapping[str, str] | None = None) -> str:
    """One page with `figures` by their headings, and tables (made by html_table) after them. Nothing is fetched."""
    parts = []
    for number, (heading, figure) in enumerate(figures.items()):
        drawn = _inline_svg(svg_bytes(figure).decode("utf-8"), f"f{number}-", heading)
        parts.append(f"<h2>{html.escape(heading)}</h2>\n<figure>{drawn}</figure>")
    for heading, table in (tables or {}).items():
        parts.append(f"<h2>{html.escape(heading)}</h2>\n{table}")
    return _PAGE.format(title=html.escape(title), body="\n".join(parts))


def html_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """The first column is text, the others are figures."""

    def cells(tag: str, row: tuple[str, ...]) -> str:
        texts = (html.escape(text) for text in row)
        return "".join(f"<{tag}{' class=number' if i else ''}>{text}</{tag}>" for i, text in enumerate(texts))

    lines = [f"<tr>{cells('th', columns)}</tr>", *(f"<tr>{cells('td', row)}</tr>" for row in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _inline_svg(svg: str, prefix: str, label: str) -> str:
    """The svg element alone, named for screen readers; its ids are made unique, for there are several on the page."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r'\bid="', f'id="{prefix}', element)
    element = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", element)
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    return element.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
