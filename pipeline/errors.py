"""The one family of errors for data that cannot be used."""


class DataError(ValueError):
    """A corpus, tokenizer, store or row cannot be used; `longrow` exits with 3.

    The message is one string that says what was found, where, what was wanted and what to do, so
    that the error travels between processes unchanged.
    """


def missing_file(url: str) -> DataError:
    """The error of a file that a store's manifest names and that is not there, or not any more."""
    return DataError(
        f"{url} is missing; the manifest names it. Put the store back where it was, or run "
        "`longrow build` again with the same corpus: it keeps what is whole. A run that read from "
        "it goes on with `longrow resume`."
    )
