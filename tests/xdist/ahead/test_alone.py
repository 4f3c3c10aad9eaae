"""A rank that is alone: what it hears of the others."""

import pytest

from torch_xdist.ahead.alone import Alone
from torch_xdist.errors import WorldError


def test_every_other_rank_brings_what_this_one_brings():
    assert Alone(4).exchange("loss", b"1", (0, 2, 3)) == [b"1"] * 3
    Alone(4).send(2, "gradients", b"1")


@pytest.mark.parametrize(("source", "who"), [(3, "rank 3"), (None, "any rank")])
def test_a_message_that_nobody_sends_is_an_error_with_what_to_do(source, who):
    words = rf"rank 0 waits for a message of {who} \(gradients\), and no other .* XDIST_REHEARSE"
    with pytest.raises(WorldError, match=words):
        Alone(4).receive(source, "gradients")
