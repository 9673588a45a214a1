"""The variables by which the library finds a provider. Some mistakes in them would end it in a
panic of a hundred lines; others reach the provider, which refuses them."""

import os
import re
from ipaddress import IPv4Address, IPv6Address

from trainer.base.errors import NO_TEXT, BadInput

ENDPOINTS = (
    *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_S3_ENDPOINT"),
    *("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
)
PREFIXES = ("AWS_", "AZURE_", "GOOGLE_")
ADDRESS = re.compile(
    r"https?://(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?(/[\w.~%/-]*)?", re.ASCII
)
NUMBER = re.compile(r"\d+|0[xX][0-9A-Fa-f]*")
"""The last part of an address that is none of a name."""
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
HIGHEST_PORT = 65_535


def require_sound() -> None:
    """Raise BadInput for a variable that cannot be what it should. No value of a key is shown."""
    for name, value in os.environ.items():
        if name.startswith(PREFIXES) and (NO_TEXT.search(value) or not value.isascii()):
            raise BadInput(name, "", "must be one line of ASCII without control characters")
    for name in REGIONS:
        if not re.fullmatch(r"[\w-]*", region := os.environ.get(name, "")):
            raise BadInput(name, region, "must be the name of a region, such as us-east-1")
    for name in ENDPOINTS:
        if name in os.environ and not _is_address(address := os.environ[name]):
            shown = "" if "@" in address else address  # before it a password may stand
            raise BadInput(name, shown, "must be http(s)://HOST[:PORT], or not be set")


def _is_address(text: str) -> bool:
    match = ADDRESS.fullmatch(text)
    return match is not None and int(match["port"] or 0) <= HIGHEST_PORT and _is_host(match["host"])


def _is_host(text: str) -> bool:
    try:
        if text.startswith("["):
            IPv6Address(text[1:-1])
        elif NUMBER.fullmatch(text.rstrip(".").rpartition(".")[2]):
            IPv4Address(text.rstrip("."))
        else:
            text.encode().decode("idna")  # xn--… may be no code of a name
    except ValueError:
        return False
    return True
