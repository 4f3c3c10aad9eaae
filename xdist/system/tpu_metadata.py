"""What the metadata server of a TPU host says of its slice."""

import re
import urllib.request

ADDRESS = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/"


def attribute(key: str, limit_s: float) -> str:
    """The text of an attribute of this host. Raises OSError where the server does not answer."""
    # The server is on the link: a proxy for the outside must not be asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(ADDRESS + key, headers={"Metadata-Flavor": "Google"})
    with opener.open(request, timeout=limit_s) as answer:
        return str(answer.read().decode())


def rows(tpu_env: str) -> dict[str, str]:
    """The lines NAME: 'value' of the attribute `tpu-env`."""
    found = re.findall(r"^[ \t]*(\w+):[ \t]*'?([^'\n]*)'?[ \t]*$", tpu_env, re.MULTILINE)
    return dict(found)


def addresses(endpoints: str) -> list[str]:
    """The hosts of the attribute `worker-network-endpoints`, in the order of their worker ids."""
    return [row.split(":")[2] for row in endpoints.split(",") if row.count(":") >= 2]
