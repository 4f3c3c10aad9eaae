"""What of an environment may be shown: values that look like secrets are masked."""

import re

_SECRET_NAMES = (
    *("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "PRIVATE", "ACCESS_KEY"),
)
# postgres://user:password@host: what stands before the @ of an address.
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def masked(name: str, value: str) -> str:
    """The value of a variable as it may be shown."""
    if any(part in name.upper() for part in _SECRET_NAMES):
        return "***"
    return masked_text(value)


def masked_text(text: str) -> str:
    """A text without the user names and passwords of its addresses."""
    return _IN_ADDRESS.sub("***", text)
