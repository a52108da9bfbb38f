"""Groups of classes to show together."""

import difflib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster import hierarchy
from scipy.spatial import distance

from heteroscedastic.analysis.pairs import Pairs


def first(pairs: Pairs, num_classes: int) -> Int[np.ndarray, "c"]:
    """The classes of the first pairs, so many at most."""
    classes = dict.fromkeys(int(c) for pair in zip(pairs.rows, pairs.cols) for c in pair)
    return np.array(list(classes)[:num_classes], int)


def clustered(correlation: Float[np.ndarray, "p"]) -> Int[np.ndarray, "c"]:
    """An order in which classes that vary together, in either direction, lie side by side.

    Average linkage of the distance 1 - |correlation|, the leaves in their best order.

    Args:
      correlation: of every pair, as `pairs.within` has them.
    """
    if len(correlation) < 3:
        return np.arange(distance.num_obs_y(correlation)) if len(correlation) else np.arange(1)
    apart = np.clip(1 - np.abs(correlation), 0, None)
    return hierarchy.leaves_list(hierarchy.linkage(apart, "average", optimal_ordering=True))


def named(class_names: Sequence[str], wanted: Sequence[str]) -> Int[np.ndarray, "c"]:
    """The classes of these names, or of these numbers where no class has such a name; classes are counted from 0.

    Of equal names the first is meant; the others are told by their numbers.

    Raises:
      ValueError: a name that no class has, with those that are like it; a class that is given twice.
    """
    numbers = {str(i): i for i in range(len(class_names))}
    places = numbers | {name: i for i, name in reversed(list(enumerate(class_names)))}
    found = []
    for name in wanted:
        if name not in places:
            like = difflib.get_close_matches(name, class_names, n=5, cutoff=0.3) or list(class_names[:5])
            raise ValueError(
                f"there is no class {name!r}; classes with such names are {', '.join(map(repr, like))}, and numbers go"
                f" from 0 to {len(class_names) - 1}."
            )
        found.append(places[name])
    if len(set(found)) < len(found):
        raise ValueError(f"a class is named twice in {', '.join(map(repr, wanted))}.")
    return np.array(found, int)
