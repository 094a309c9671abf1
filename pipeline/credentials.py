"""What in an address must not stand there: a password, or what signs it or opens a door.

An address stands in logs, configs, stores, MLflow and the process list; a credential belongs into
the environment.
"""

import re
from urllib.parse import parse_qsl

INSTEAD = (
    "Leave it out, and give it in the environment of its store. What only a signed address opens: "
    "fetch it first, and name the file."
)
# Names of what signs a URL or opens a door, in the query of one; tokens may be counted or made.
SECRET = re.compile(
    r"(?i)signature|token(?!s$|i)|secret|passw|passphrase|pwd|credential|(api|access|private)-?_?key"
    r"|^(sig|auth|key)$"
)
# Wherever an address begins: they are chained (simplecache::s3://...), listed, and part of --set.
_BEGIN = r"(?<![\w+.-])(?!github:)[\w+.-]+://"  # github://OWNER:REPOSITORY@BRANCH/... names no user
_USER = re.compile(_BEGIN.replace("github:", "github:|abfss?:") + r"[^/?#\s\"']*@")  # BOX@ACCOUNT
# A password may hold a slash; what is digits up to one is a port, and :: comes before another link.
_PASSWORD = re.compile(_BEGIN + r"[^/?#\s\"'@:\[]*:(?!\d+[/?#]|:/|:[\w+.-]+:)[^\s\"']*@")
_QUERY = re.compile(r"(?<![\w+.-])[\w+.-]+://[^\s\"'?]*\?([^\s\"'#]*)")


def credential_in(text: str, *, user: bool = False) -> str:
    """What a text holds that must not be told, in words that do not repeat it; empty if nothing.

    Args:
        text: An address, or a text with some in it.
        user: A user without a password counts too; sftp:// and the like want one.
    """
    if _PASSWORD.search(text) or (user and _USER.search(text)):
        return "a user or password"
    for query in _QUERY.findall(text):
        names = {name for name, _ in parse_qsl(query, keep_blank_values=True)}
        if secret := sorted(name for name in names if SECRET.search(name)):
            return f"a secret in its query ({', '.join(secret)})"
    return ""
