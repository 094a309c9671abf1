"""The one family of errors for a run that was asked for wrongly."""


class ConfigError(ValueError):
    """A setting cannot be used; the message names the key, and `longrow` exits with 2."""


class DivergedError(Exception):
    """The weights are not finite any more; another attempt would take the same steps again."""


class OvertakenError(ConfigError):
    """Another process has taken the run over: this one writes nothing more, anywhere."""
