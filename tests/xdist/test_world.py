"""How ranks of several hosts must not meet."""

import pytest

from torch_xdist import settings, world
from torch_xdist.errors import WorldError
from torch_xdist.system.rank import Rank


def test_ranks_of_several_hosts_do_not_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDIST_TRANSPORT", "host")
    settings.reread()
    try:
        with monkeypatch.context() as two_hosts:
            two_hosts.setattr(world, "_current", Rank(0, 4, 0, 2, hosts=2))
            told = "XDIST_TRANSPORT=host: 4 ranks, of which 2 are on this host, share no memory"
            with pytest.raises(WorldError, match=told):
                world.join()
    finally:
        monkeypatch.undo()
        settings.reread()
