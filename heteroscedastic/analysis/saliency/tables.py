"""Tables of localisation and deletion, for the report and the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from heteroscedastic.analysis.saliency import deletion as deletion_lib
from heteroscedastic.analysis.saliency import evaluation
from heteroscedastic.calibration import bootstrap

_SHARES = ("pointing", "box", "max_box")  # of images, which a right prediction can be required for
_THIRDS = "small / middle / large"
_DELETED = (0, 1, 2, 5, 10)  # positions in deletion.FRACTIONS
_DASH = "-"  # of what is not defined


class Table(NamedTuple):
    """A caption, the names of the columns, and the cells of each row."""

    caption: str
    header: list[str]
    rows: list[list[str]]


def localisation(
    runs: Mapping[str, Mapping[str, Any]],
    reference: str | None,
    differences: Mapping[str, Mapping[str, bootstrap.Interval]],
) -> list[Table]:
    """The scores of the maps of runs, in short.

    Args:
      runs: by name, with `localisation` and `num_scored`, where a run has them; see
        `summary.Localised`.
      reference: the group that others are compared with.
      differences: of the other groups from it.

    Returns:
      The means of maps and controls; the means where only right predictions count and by size of
      the objects, of the maps and of the controls of the first run; the differences of maps from
      controls; and those of groups. Without scores there is no table.
    """
    scored = {name: result for name, result in runs.items() if "localisation" in result}
    if not scored:
        return []
    by_map = {name: _by_map(result["localisation"]) for name, result in scored.items()}
    metrics = list(evaluation.METRICS)
    means, strict, from_controls = [], [], []
    for name, maps in by_map.items():
        for kind, rows in maps.items():
            title = name if kind == "map" else f"{name}: {kind}"
            means.append([title, f"{scored[name]['num_scored']:,}", *_cells(rows, "mean")])
            if kind == "map" or name == next(iter(by_map)):
                right = (_number(rows, m, "if_right") for m in _SHARES)
                strict.append([title, *right, *(_thirds(rows, m) for m in metrics)])
            if kind != "map":
                from_controls.append([f"{name} \u2212 {kind}", *_cells(rows, "difference")])
    by_group = [
        [name, *(_interval(values.get(m)) for m in metrics)] for name, values in differences.items()
    ]
    definitions = "; ".join(f"{k}: {v}" for k, v in evaluation.METRICS.items())
    tables = [
        Table(f"Localisation: {definitions}", ["", "images", *metrics], means),
        Table(
            "Localisation together with a right prediction, and of the thirds of the images with"
            " the smallest, middle and largest share of their area in boxes",
            ["", *(f"{m} and right" for m in _SHARES), *(f"{m}, {_THIRDS}" for m in metrics)],
            strict,
        ),
        Table("Map of the run \u2212 control, paired by image", ["", *metrics], from_controls),
        Table(
            f"Difference from {reference}, paired by image and by seed", ["", *metrics], by_group
        ),
    ]
    return [table for table in tables if table.rows]


def deletion(runs: Mapping[str, Mapping[str, Any]]) -> Table:
    """The mean of what is explained after shares of the pixels are filled.

    Args:
      runs: by name, with the curves of `evaluation.deletion_curves` as `deletion`.
    """
    rows = [
        [name if order == "map" else f"{name}: {order}", *(f"{curve[i]:.4g}" for i in _DELETED)]
        for name, result in runs.items()
        for order, curve in result["deletion"].items()
    ]
    return Table(
        "Deletion: the mean of what is explained, by the share of the pixels that take the mean"
        " colour, those with the largest values of the map first; as controls at random and from"
        " the centre",
        ["", *(f"{deletion_lib.FRACTIONS[i]:.0%}" for i in _DELETED)],
        rows,
    )


def texts(
    runs: Mapping[str, Mapping[str, Any]],
    reference: str | None,
    differences: Mapping[str, Mapping[str, bootstrap.Interval]],
) -> Iterator[str]:
    """The tables of `localisation`, and of `deletion`, in columns of equal width."""
    for table in [*localisation(runs, reference, differences), deletion(runs)]:
        lines = [table.header, *table.rows]
        widths = [max(map(len, column)) for column in zip(*lines)]
        rows = "\n".join(_line(cells, widths) for cells in lines)
        yield f"{table.caption}\n{rows}\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (f"{cell:>{width}}" for cell, width in zip(cells, widths))
    return "  ".join([f"{first.strip():<{widths[0]}}", *others])


def _by_map(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The rows of `evaluation.table` by map and metric."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["map"], {})[row["metric"]] = row
    return found


def _cells(rows: Mapping[str, Mapping[str, Any]], key: str) -> list[str]:
    """An interval per metric."""
    return [_interval(rows[m][key] if m in rows else None) for m in evaluation.METRICS]


def _interval(interval: bootstrap.Interval | None) -> str:
    if interval is None:
        return _DASH
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _number(rows: Mapping[str, Mapping[str, Any]], metric: str, key: str) -> str:
    return f"{rows[metric][key]:.3f}" if metric in rows else _DASH


def _thirds(rows: Mapping[str, Mapping[str, Any]], metric: str) -> str:
    if metric not in rows:
        return _DASH
    return " / ".join(_DASH if x != x else f"{x:.3f}" for x in rows[metric]["by_third"])
