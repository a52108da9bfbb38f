"""Whether pictures can be drawn: numbers do not wait for them."""

from heteroscedastic.analysis import figures


def possible() -> bool:
    """Whether there is matplotlib; where there is not, a line says so."""
    try:
        figures.check()
    except ModuleNotFoundError as error:
        print(f"no pictures: {error}")
        return False
    return True
