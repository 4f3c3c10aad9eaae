"""Messages through the coordination service."""

import pytest

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.mesh import store


class Store:
    """A client of a coordination service in which rank 1 never writes."""

    def key_value_set_bytes(self, key, value):
        pass

    def blocking_key_value_get_bytes(self, key, timeout_ms):
        raise RuntimeError("DEADLINE_EXCEEDED")


def test_between_hosts_a_silent_rank_and_an_unnamed_source_are_errors():
    here = store.StoreCommunicator(0, 2, Store())
    with pytest.raises(CollectiveError, match="rendezvous 'x': rank 1 did not answer rank 0"):
        here.exchange("x", b"", (1, 0))
    with pytest.raises(CollectiveError, match="recv on 's': between hosts the source must be"):
        here.receive(None, "s")
    with pytest.raises(CollectiveError, match="recv on 's': whoever sends there did not answer"):
        here.fetch("s")


class FullStore(Store):
    """One in which every key is taken."""

    def key_value_set_bytes(self, key, value):
        raise RuntimeError("ALREADY_EXISTS")


def test_two_senders_on_one_subject_are_an_error():
    here = store.StoreCommunicator(0, 2, FullStore())
    with pytest.raises(CollectiveError, match=r"send on 's': rank 0 cannot \(ALREADY_EXISTS\); o"):
        here.post("s", b"")


def test_a_process_without_a_mesh_has_no_store():
    with pytest.raises(CollectiveError, match="send: this process has not joined the mesh tran"):
        store.current()
