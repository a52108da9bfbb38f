"""Numbers spelled in German and English: sentence pairs that need no files."""

import numpy as np

_LANGUAGES = ("de", "en")
_SIZES = {"train": 400, "valid": 60, "test": 60}
_UNITS = {
    "de": "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn"
    " fünfzehn sechzehn siebzehn achtzehn neunzehn",
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    " fifteen sixteen seventeen eighteen nineteen",
}
_TENS = {
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
}


def spelled(number: int, language: str) -> str:
    """The name of a number from 0 to 999, in "de" or "en"; German writes it as one word."""
    if not 0 <= number <= 999:
        raise ValueError(f"number is {number}, but must be from 0 to 999.")
    hundreds, rest = divmod(number, 100)
    units = _UNITS[language].split()
    tens, unit = divmod(rest, 10)
    if rest < 20:
        text = "eins" if (language, rest) == ("de", 1) else units[rest]
    elif not unit:
        text = _TENS[language].split()[tens - 2]
    elif language == "de":
        text = f"{units[unit]}und{_TENS['de'].split()[tens - 2]}"
    else:
        text = f"{_TENS['en'].split()[tens - 2]}-{units[unit]}"
    if not hundreds:
        return text
    if language == "de":
        return f"{units[hundreds]}hundert" + (text if rest else "")
    return f"{units[hundreds]} hundred" + (f" and {text}" if rest else "")


def splits(source: str, target: str) -> dict[str, tuple[list[str], list[str]]]:
    """Pairs of sentences of one to six numbers, by split; they do not depend on a seed.

    Raises:
      ValueError: a language is neither "de" nor "en".
    """
    if unknown := {source, target} - set(_LANGUAGES):
        raise ValueError(
            f"the set 'numbers' has the languages de and en, not {', '.join(sorted(unknown))}."
        )
    rng = np.random.default_rng(0)
    pairs = {}
    for split, size in _SIZES.items():
        sentences = [rng.integers(0, 1000, rng.integers(1, 7)).tolist() for _ in range(size)]
        pairs[split] = tuple(
            [" , ".join(spelled(number, language) for number in s) + " ." for s in sentences]
            for language in (source, target)
        )
    return pairs
