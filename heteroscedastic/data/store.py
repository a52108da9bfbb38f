"""Data sets by name: an .npz file, or one that a library ships."""

import argparse
from pathlib import Path

import numpy as np

from heteroscedastic import files
from heteroscedastic.data import dataset, digits
from heteroscedastic.data.dataset import Dataset, Split


def load(name: str, data_dir: str | None = None) -> Dataset:
    """The data set of this name: from `data_dir`/name.npz if there, else from a library that ships it.

    Raises:
      FileNotFoundError: neither has it; says where it was looked for and what prepares it.
    """
    path = Path(data_dir) / f"{name}.npz" if data_dir else None
    if path and path.exists():
        return read(path)
    shipped = {"digits": digits.digits, "digits_pairs": digits.digits_pairs}
    looked = f"in {path}" if path else "nowhere on disk, as neither --data_dir nor TFDS_DATA_DIR is set"
    if name not in shipped:
        raise FileNotFoundError(
            f"no data set {name!r}: looked {looked}, and no library ships it ({', '.join(shipped)} are"
            f" shipped). Give --data_dir=DIR with DIR/{name}.npz in it; README.md tells its fields."
        )
    try:
        return dataset.check(shipped[name](), name)
    except ModuleNotFoundError as error:
        raise FileNotFoundError(
            f"data set {name!r} comes with scikit-learn, which is not installed ({error}); looked {looked}."
            f" Either pip install scikit-learn, or write {name}.npz on a machine that has it, with"
            f" python -m heteroscedastic.data.store --name={name} --data_dir=DIR."
        ) from None


def read(path: Path) -> Dataset:
    """A data set from an .npz file: SPLIT_inputs and SPLIT_labels of any splits, and class_names.

    SPLIT_ids may say which stored examples they are; else they are numbered from 0.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive fails in the zip, zlib, ast or tokenize module, or here
        raise ValueError(f"{path} is no readable .npz file ({error}); write it again.") from None
    names = [name.removesuffix("_inputs") for name in arrays if name.endswith("_inputs")]
    missing = {"class_names", *(f"{n}_labels" for n in names)} - set(arrays)
    if not names or missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing)) or 'any SPLIT_inputs'}; it has {sorted(arrays)}.")

    def split(name):
        labels = arrays[f"{name}_labels"]
        return Split(arrays[f"{name}_inputs"], labels, arrays.get(f"{name}_ids", np.arange(len(labels))))

    names_of_classes = tuple(map(str, arrays["class_names"]))
    found = dataset.check(Dataset({n: split(n) for n in names}, names_of_classes), str(path))
    return found._replace(splits={n: s.with_int32() for n, s in found.splits.items()})


def write(path: Path, data: Dataset) -> None:
    """Writes the .npz file that `read` reads; an interrupted write leaves no file."""
    arrays = {f"{n}_{field}": a for n, s in data.splits.items() for field, a in s._asdict().items()}
    files.write_arrays(path, {"class_names": np.array(data.class_names), **arrays})


def main() -> None:
    """Writes a data set that a library ships as an .npz file, for machines without that library."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--data_dir", required=True)
    flags = parser.parse_args()
    path = Path(flags.data_dir) / f"{flags.name}.npz"
    if path.exists():
        raise SystemExit(f"{path} is there already; remove it to write it again.")
    write(path, load(flags.name))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
