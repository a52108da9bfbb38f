"""Whether pictures can be drawn: numbers do not wait for them."""


def possible() -> bool:
    """Whether there is matplotlib; where there is not, a line says so."""
    try:
        from heteroscedastic.analysis import figures  # noqa: F401
    except ModuleNotFoundError as error:
        print(f"no pictures: {error}")
        return False
    return True
