"""The command of a module that makes a data set: python -m MODULE --out=DIR"""

import os
from collections.abc import Callable

from heteroscedastic import files, user_errors
from heteroscedastic.data.dataset import Dataset
from heteroscedastic.data.storage import store


def main(
    description: str | None,
    sets: dict[str, tuple[Callable[[str], Dataset], Callable[[Dataset], str]]],
) -> None:
    """Writes each data set as OUT/NAME.npz, and prints its size and what is to say of it.

    Args:
      description: of the command.
      sets: by name, a function from the directory of prepared sets to the data set, and one from
        the data set to text.

    Raises:
      FileExistsError: one of the files exists.
    """
    parser = user_errors.parser(description)
    parser.add_argument(
        "--data_dir", default=os.environ.get("TFDS_DATA_DIR"), help="directory of prepared sets"
    )
    parser.add_argument("--out", required=True, help="directory of the files")
    flags = parser.parse_args()
    paths = {name: files.as_path(flags.out) / f"{name}.npz" for name in sets}
    for path in paths.values():
        if path.exists():
            raise FileExistsError(f"{path} exists already; remove it to write it again.")
    for name, (made, text) in sets.items():
        data = made(flags.data_dir)
        store.write(paths[name], data)
        print(f"wrote {paths[name]}, {paths[name].stat().st_size / 1e6:.1f} MB; {text(data)}.")
