"""What the metadata server of a TPU host says of its slice."""

import re
import urllib.request

HOST = "metadata.google.internal"
ADDRESS = f"http://{HOST}/computeMetadata/v1/instance/attributes/"
# No answer of interest is longer.
_MOST_BYTES = 1 << 20


def attribute(key: str, limit_s: float) -> str:
    """The text of an attribute of this host. Raises OSError where the server does not answer."""
    return _answer(ADDRESS + key, limit_s)


def of_instance(key: str, limit_s: float, host: str = HOST) -> str:
    """What the server says of this machine itself, such as "preempted".

    Raises OSError where it does not answer, and ValueError for what is no text.
    """
    return _answer(f"http://{host}/computeMetadata/v1/instance/{key}", limit_s)


def _answer(address: str, limit_s: float) -> str:
    # The server is on the link: a proxy for the outside must not be asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
    with opener.open(request, timeout=limit_s) as answer:
        return str(answer.read(_MOST_BYTES).decode())


def rows(tpu_env: str) -> dict[str, str]:
    """The lines NAME: 'value' of the attribute `tpu-env`."""
    found = re.findall(r"^[ \t]*(\w+):[ \t]*'?([^'\n]*)'?[ \t]*$", tpu_env, re.MULTILINE)
    return dict(found)


def addresses(endpoints: str) -> list[str]:
    """The hosts of the attribute `worker-network-endpoints`, in the order of their worker ids."""
    return [row.split(":")[2] for row in endpoints.split(",") if row.count(":") >= 2]
