"""The house style of every figure: colours by meaning, sizes, labels at what they name. Knows no plan and no study.

Colours are of the palette of Okabe and Ito (2008), which people with any colour vision tell apart. A colour means the
same everywhere. What is predicted is a line or a hollow bar, what is measured a dot. Text is drawn as paths: a figure
looks the same wherever it is opened. The same data gives the same file: no dates, a fixed salt for ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kvwise.errors import UsageError
from kvwise.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text

WEIGHTS: Final = "#0072b2"
KV: Final = "#d55e00"
ACTIVATIONS: Final = "#009e73"
RUNTIME: Final = "#9ca3af"
GRADIENTS: Final = "#56b4e9"
OPTIMIZER: Final = "#cc79a7"
WASTE: Final = "#e69f00"
INK: Final = "#1f2937"
SOFT: Final = "#6b7280"
PALE: Final = "#e5e7eb"
SERIES: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # where colours mean nothing else

WIDTH_IN: Final = 8.6  # 620 points: a README's column, so that its text is drawn at the size it was set
PNG_DPI: Final = 150
_TITLE_POINTS: Final = 11.5
_TITLE_CHARS: Final = 86  # of that size that a line holds; longer titles are set smaller
_INSTALL: Final = "install it with: pip install 'kvwise[charts]'"
_SETTINGS: Final[dict[Any, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.titlesize": 10,
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "kvwise",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": SOFT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": SOFT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8.5,
}


def check_can_draw() -> None:
    """Raise UsageError with what to install where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError("figures are drawn with matplotlib, which is not installed", action=_INSTALL) from None


@contextmanager
def house_style() -> Iterator[None]:
    """Whatever is drawn or saved inside is in the house style, whatever the user's own settings are."""
    check_can_draw()
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def new_figure(
    height_in: float,
    mosaic: str = "a",
    *,
    widths: tuple[float, ...] | None = None,
    heights: tuple[float, ...] | None = None,
    title: str = "",
) -> tuple[Figure, dict[str, Axes]]:
    """A figure of the house's width; `title` says its finding. Call inside house_style.

    mosaic: the panels by letter, one line for each row: "ab;ac" has a on the left over both rows.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    panels = figure.subplot_mosaic(mosaic, width_ratios=widths, height_ratios=heights)
    if title:
        size = _TITLE_POINTS * min(1.0, _TITLE_CHARS / len(title))
        figure.suptitle(title, x=0.012, ha="left", fontsize=size, fontweight="bold")
    return figure, panels


def label_end(axes: Axes, x: float, y: float, text: str, color: str, *, dx: float = 6, dy: float = 0) -> None:
    """`text` in the colour of the line that ends at (x, y), `dx`, `dy` points beside it: instead of a legend."""
    axes.annotate(
        text,
        (x, y),
        xytext=(dx, dy),
        textcoords="offset points",
        color=color,
        fontsize=8.5,
        va="center",
        ha="left" if dx >= 0 else "right",
        annotation_clip=False,
    )


def with_halo(text: Text) -> Text:
    """The same text with a white rim, so that it can be read across lines."""
    from matplotlib.patheffects import withStroke

    text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
    return text


def grid(axes: Axes, which: str = "both") -> None:
    """Pale lines at the major ticks of 'x', 'y' or 'both'."""
    axes.grid(axis=which, color=PALE, linewidth=0.8)  # type: ignore[arg-type]


def bytes_axis(axes: Axes) -> None:
    """A logarithmic y axis in binary units, with ticks at powers of two."""
    axes.set_yscale("log", base=2)
    _ticks_at_powers_of_two(axes.yaxis, format_bytes)


def tokens_axis(axes: Axes) -> None:
    """A logarithmic x axis in tokens, in K and M as contexts are spoken of, with ticks at powers of two."""
    axes.set_xscale("log", base=2)
    _ticks_at_powers_of_two(axes.xaxis, format_tokens)


def _ticks_at_powers_of_two(axis: Axis, text: Callable[[float], str]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=2, numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def seconds_axis(axes: Axes) -> None:
    """A logarithmic y axis with ticks at 1, 2 and 5 of each decade, in the unit that a person would pick."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value).replace(".00", "")))


def format_tokens(count: float) -> str:
    """2048 -> '2K', 2**20 -> '1M'; what is no whole number of thousands of 1024 keeps its digits."""
    for unit, name in ((2**20, "M"), (2**10, "K")):
        if count >= unit and count % unit == 0:
            return f"{count / unit:g}{name}"
    return f"{count:,.0f}"
