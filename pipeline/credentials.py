"""What in an address must not stand there: a password, or what signs it or opens a door.

An address stands in logs, configs, stores, MLflow and the process list; a credential belongs into
the environment.
"""

import re
from urllib.parse import parse_qsl

# Names of what signs a URL or opens a door, in the query of one.
SECRET = re.compile(
    r"(?i)signature|token|secret|password|passwd|credential|api-?_?key|access-?_?key|^(sig|auth|key)$"
)
# Wherever an address begins: they are chained (simplecache::s3://...), listed, and part of --set.
_USER = re.compile(r"[\w+.-]+://[^/?#\s\"']*@")
# A password may hold a slash; what is digits up to one is a port.
_PASSWORD = re.compile(r"[\w+.-]+://[^/?#\s\"'@]*:(?!\d+[/?#])[^\s\"']*@")
_QUERY = re.compile(r"[\w+.-]+://[^\s\"'?]*\?([^\s\"'#]*)")


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
