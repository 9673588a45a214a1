"""The library that speaks to a provider, and the variables by which it finds one.

Some mistakes in them would end it in a panic of a hundred lines; others reach the provider, which
refuses them.
"""

import os
import re
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from urllib.parse import quote

from pipegap.trainer.base.errors import NO_TEXT, BadInput, short

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_S3_ENDPOINT")
PREFIX = "AWS_"
ADDRESS = re.compile(
    r"https?://(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?(/[\w.~%/-]*)?", re.ASCII
)
NUMBER = re.compile(r"\d+|0[xX][0-9A-Fa-f]*")
"""The last part of an address that is none of a name."""
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
HIGHEST_PORT = 65_535
NEEDS = "needs the package obstore: pip install 'pipegap[objects]'"
NUM_TRIES = 5
"""How often a request is repeated."""


def opened(url: str, request: timedelta, all_tries: timedelta) -> Any:
    """Return the store `url`, each of whose requests has these limits. Raises BadInput."""
    _require_sound()
    from obstore.store import from_url

    errors = library_of(url).exceptions
    try:
        return from_url(
            quote(url, safe=":/"),  # it would end at # and ?, and lose white space at the end
            client_options={
                "timeout": request,
                "connect_timeout": timedelta(seconds=3),
                "allow_http": True,  # of an endpoint that the environment names by http://
            },
            retry_config={"max_retries": NUM_TRIES, "retry_timeout": all_tries},
        )
    except (errors.BaseError, ValueError) as error:
        raise BadInput("results", url, f"cannot be opened ({reason(error)})") from None


def library_of(url: str) -> Any:
    """Return the library. Raises BadInput for `url` if it is not installed."""
    try:
        import obstore
        import obstore.exceptions
    except ImportError:
        raise BadInput("results", url, NEEDS) from None
    return obstore


def reason(error: Exception) -> str:
    """Return what the library says, in a line."""
    text = str(error).partition("\n\nDebug source")[0]
    return short(" ".join(text.partition(": <")[0].split()))


def _require_sound() -> None:
    """Raise BadInput for a variable that cannot be what it should. No value of a key is shown."""
    for name, value in os.environ.items():
        if name.startswith(PREFIX) and (NO_TEXT.search(value) or not value.isascii()):
            raise BadInput(name, "", "must be one line of ASCII without control characters")
    for name in REGIONS:
        if not re.fullmatch(r"[\w-]*", region := os.environ.get(name, "")):
            raise BadInput(name, region, "must be the name of a region, such as us-east-1")
    for name in ENDPOINTS:
        match = ADDRESS.fullmatch(address := os.environ.get(name, ""))
        sound = match and int(match["port"] or 0) <= HIGHEST_PORT and _is_host(match["host"])
        if name in os.environ and not sound:
            shown = "" if "@" in address else address  # before it a password may stand
            raise BadInput(name, shown, "must be http(s)://HOST[:PORT], or not be set")


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
