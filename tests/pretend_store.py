"""A client of JAX's coordination service, kept in a dictionary."""

import threading
import time
from collections import Counter


class PretendClient:
    """What `KeyValueStore` uses of it. `failures` errors come before the next answers.

    `reads` counts the questions for each place, `values_read` the values that were answers.
    """

    def __init__(self):
        self.values = {}
        self.failures = []
        self.reads, self.values_read = Counter(), 0
        self.lock = threading.Lock()

    def _fail(self):
        """Every call begins so."""
        if self.failures:
            raise RuntimeError(self.failures.pop(0))

    def _count(self, key, values=1):
        with self.lock:
            self.reads[key] += 1
            self.values_read += values

    def key_value_set_bytes(self, key, value, allow_overwrite=False):
        self._fail()
        with self.lock:
            if key in self.values and not allow_overwrite:
                raise RuntimeError(f"ALREADY_EXISTS: key {key} already exists.")
            self.values[key] = value

    def key_value_try_get_bytes(self, key):
        self._fail()
        self._count(key)
        if key not in self.values:
            raise RuntimeError(f"NOT_FOUND: Config key {key} not found.")
        return self.values[key]

    def blocking_key_value_get_bytes(self, key, timeout_ms):
        deadline_s = time.monotonic() + timeout_ms / 1000
        self._fail()
        self._count(key)
        while time.monotonic() < deadline_s:
            found = self.values.get(key)
            if found is not None:
                return found
            time.sleep(0.005)
        raise RuntimeError("DEADLINE_EXCEEDED: GetKeyValue() timed out")

    def key_value_dir_get_bytes(self, key):
        self._fail()
        with self.lock:
            found = [(k, v) for k, v in self.values.items() if k.startswith(key + "/")]
        self._count(key, len(found))
        return found

    def key_value_increment(self, key, by):
        self._fail()
        with self.lock:
            self.values[key] = str(int(self.values.get(key, b"0")) + by).encode()
            return int(self.values[key])

    def key_value_delete(self, key):
        self._fail()
        with self.lock:
            self.values = {
                k: v for k, v in self.values.items() if k != key and not k.startswith(key + "/")
            }
