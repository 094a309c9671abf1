"""The one family of errors for data that cannot be used."""


class DataError(ValueError):
    """A corpus, tokenizer, store or row cannot be used; `longrow` exits with 3.

    The message is one string that says what was found, where, what was wanted and what to do, so
    that the error travels between processes unchanged.
    """
