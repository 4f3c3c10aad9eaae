"""The key-value store of JAX's coordination service, as the ranks of one job use it.

Whoever reaches the service can write to it, for it asks nobody who he is. So every value is sealed
with the job's secret and with the place it is written to, and what does not carry the seal is an
error before any of it is read. A job without a secret (several hosts, another launcher, no
XLA_RUN_SECRET) can seal nothing; then `is_sealed` is false, and nothing that comes from the store
may be unpickled. Called by the other modules of this folder.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from torch_xdist.collectives.errors import CollectiveError, StrangerError
from torch_xdist.system import frames
from torch_xdist.system.errors import SealError

_MOST_BYTES = 2**34  # a value beyond it is none of ours
_PATIENCE_S = 10.0  # the service may be unreachable for a moment
_NAP_S = 0.05
_T = TypeVar("_T")


class KeyValueStore:
    """The values of one job.

    Args:
        client: the service's client, `jax._src.distributed.global_state.client`.
        secret: the job's; b"": none.
    """

    def __init__(self, client: Any, secret: bytes = b"") -> None:
        self._client, self._secret = client, secret
        self.is_sealed = bool(secret)

    def put(self, place: str, value: bytes, *, replace: bool = False) -> bool:
        """Write a value; False where there is one already, and it is not to be replaced."""
        sealed = frames.seal(self._secret, place, value) if self._secret else value
        tries = 0

        def write() -> None:
            nonlocal tries
            tries += 1
            self._client.key_value_set_bytes(place, sealed, replace)

        try:
            self._try(write)
        except RuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            # A try whose answer was lost has written it.
            return tries > 1 and self.look(place) == value
        return True

    def get(self, place: str, wait_s: float) -> bytes | None:
        """The value of a place, waiting for it; None where it does not come in time.

        Raises:
            StrangerError: somebody else has written it.
            CollectiveError: the service does not answer.
        """
        wait_ms = max(1, int(wait_s * 1000))
        try:
            found = self._try(lambda: self._client.blocking_key_value_get_bytes(place, wait_ms))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return None
        return self._opened(place, found)

    def look(self, place: str) -> bytes | None:
        """The value of a place, if it is there now. Raises as `get` does."""
        try:
            found = self._try(lambda: self._client.key_value_try_get_bytes(place))
        except RuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None
        return self._opened(place, found)

    def look_below(self, place: str) -> dict[str, bytes]:
        """All values below a place, by the rest of their names. Raises as `get` does."""
        found = self._try(lambda: self._client.key_value_dir_get_bytes(place))
        return {key[len(place) :].strip("/"): self._opened(key, value) for key, value in found}

    def delete(self, place: str) -> None:
        """Remove a value, and all below it."""
        self._try(lambda: self._client.key_value_delete(place))

    def count(self, place: str) -> int:
        """Add one to a number, which nobody but this reads; how much it is then.

        It is not tried again: a try whose answer was lost may have counted.
        """
        try:
            return self._client.key_value_increment(place, 1)
        except RuntimeError as error:
            raise CollectiveError(
                f"{place}: the coordination service did not answer ({error}); look at the output "
                "of rank 0, or of the launcher, which serves"
            ) from None

    def _opened(self, place: str, value: bytes) -> bytes:
        if len(value) > _MOST_BYTES:
            raise StrangerError(f"{place}: {len(value)} bytes, which no rank of this job has sent")
        if not self._secret:
            return value
        try:
            return frames.unseal(self._secret, place, value)
        except SealError as error:
            raise StrangerError(str(error)) from None

    def _try(self, call: Callable[[], _T]) -> _T:
        """What a call gives; one that does not reach the service is tried again for a while."""
        limit_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return call()
            except RuntimeError as error:
                if "UNAVAILABLE" not in str(error):
                    raise
                if time.monotonic() > limit_s:
                    raise CollectiveError(
                        f"the coordination service does not answer for {_PATIENCE_S:.0f} s "
                        f"({error}); look at the output of rank 0, or of the launcher, which serves"
                    ) from None
            time.sleep(_NAP_S)
