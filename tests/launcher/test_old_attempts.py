"""What an attempt has been given opens nothing in the next; nobody gets what it does not need."""

from collections.abc import Callable

WARM = {"XLA_RUN_PREIMPORT": "torch,jax,torch_xla.core.xla_model,torch.distributed.tensor"}
# Attempt 0 keeps what its ranks know; rank 1 of attempt 1 comes with it to its launcher and rank 0.
COMES_BACK = """
import json, socket
import torch_xla.core.xla_model as xm
from torch_xdist import world
from torch_xdist.collectives.errors import StrangerError
from torch_xdist.collectives.messages import handshake
from torch_xdist.collectives.messages.peers import address_of
from torch_xdist.launcher import control
from torch_xdist.launcher.facts.errors import AuthError

def opens_rank_0(secret):
    # A rank of the old attempt would have to guess the name, too.
    address = address_of(world.current().meeting, 0, bytes.fromhex(os.environ["XLA_RUN_SECRET"]))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(address)
        handshake.authenticate(sock, address, bytes.fromhex(secret))

def opens_the_launcher(token):
    return control.call(os.environ["XLA_RUN_CONTROL"], token, {"op": "status"})["attempt"]

xm.xla_device()
xm.rendezvous("up")
if RANK == 1:
    token = json.load(open(FOLDER + "/jobs/again.job.json"))["token"]
    secret = os.environ["XLA_RUN_SECRET"]
    opens_rank_0(secret)
    print("attempt", opens_the_launcher(token))
    if os.environ["XLA_RUN_ATTEMPT"] == "0":
        say("old", json.dumps([token, secret]))
        raise ValueError("once")
    old_token, old_secret = json.load(open(FOLDER + "/old"))
    for opens, old, error in (
        (opens_the_launcher, old_token, AuthError), (opens_rank_0, old_secret, StrangerError)
    ):
        try:
            opens(old)
        except error as refusal:
            print(error.__name__, refusal)
xm.rendezvous("over")
"""


def test_a_rank_of_an_old_attempt_is_refused_by_the_launcher_and_the_ranks_of_the_new_one(
    run: Callable,
) -> None:
    options = ("--nprocs", "2", "--max-restarts", "1", "--job-id", "again")
    ended = run(COMES_BACK, *options, env=WARM)
    assert ended.code == 0, ended.err
    assert "[1] attempt 0\n" in ended.out and "[1] attempt 1\n" in ended.out
    assert "[1] AuthError launcher at 127.0.0.1:" in ended.out
    assert "[1] StrangerError start: a process of another job, or one with another" in ended.out


def test_ranks_that_meet_in_shared_memory_get_no_coordinator(start: Callable) -> None:
    body = "print(repr(os.environ['XLA_RUN_COORDINATOR']))"
    ended = start(body, "--nprocs", "2", env={"XDIST_TRANSPORT": ""}).end()
    assert ended.code == 0 and sorted(ended.out.splitlines()) == ["[0] ''", "[1] ''"]
