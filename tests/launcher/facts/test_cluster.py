"""What other launchers say, read from their variables as real runs showed them."""

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_xdist.launcher.facts import cluster
from torch_xdist.launcher.facts.cluster import HostOfMany
from torch_xdist.launcher.facts.errors import SettingError
from torch_xdist.launcher.ways_in import spawn
from torch_xdist.system.rank import Rank

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
SLURM = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "tux[07-08]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_NODE_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
}


def test_no_launcher_is_no_world():
    assert cluster.detect({}) is None
    assert cluster.detect({"PATH": "/bin", "RANK": "0", "WORLD_SIZE": "2"}) is None


def test_torchrun_is_recognised_with_its_ranks():
    assert cluster.detect(TORCHRUN) == Rank(
        5, 8, 1, 4, 1, 2, "10.0.0.1", 29500, job_id="none", launcher="torchrun"
    )


def test_others_that_set_the_names_of_torchrun():
    names = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    assert cluster.detect(names) == Rank(1, 2, 1, 2, launcher="the environment (RANK)")


def test_slurm_over_two_nodes():
    world = cluster.detect(SLURM)
    assert world == Rank(3, 4, 1, 2, 1, 2, "tux07", world.master_port, launcher="Slurm (srun)")


def test_every_task_of_a_slurm_step_computes_the_same_port_and_other_steps_another():
    ports = {cluster.detect({**SLURM, "SLURM_PROCID": str(rank)}).master_port for rank in range(4)}
    assert len(ports) == 1
    assert cluster.detect({**SLURM, "SLURM_STEP_ID": "1"}).master_port not in ports


@pytest.mark.parametrize("launcher", ["Slurm", "Open MPI"])
def test_no_job_gets_a_port_without_one_above_it_for_the_coordinator(launcher):
    ports = set()
    for job in range(1, 5000):
        uri = f"{job * 65536}.0;tcp://10.96.0.1:34911"
        names = {**OPEN_MPI, "OMPI_MCA_orte_hnp_uri": uri}
        names = {**SLURM, "SLURM_JOB_ID": str(job)} if launcher == "Slurm" else names
        ports.add(cluster.detect(names).master_port)
    assert len(ports) > 800 and min(ports) >= 61440 and max(ports) <= 65534


def test_the_shell_of_a_slurm_batch_script_is_no_rank():
    batch = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    assert cluster.detect(batch) is None


def test_a_single_task_is_no_launcher():
    assert cluster.detect({**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None
    assert cluster.detect({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}) is None


def test_torchrun_inside_a_slurm_task_wins():
    assert cluster.detect({**SLURM, **TORCHRUN}).launcher == "torchrun"


def test_open_mpi_on_one_host():
    world = cluster.detect(OPEN_MPI)
    assert world == Rank(
        3, 4, 3, 4, 0, 1, "127.0.0.1", world.master_port, launcher="Open MPI (mpirun)"
    )


def test_open_mpi_over_two_hosts_meets_at_mpirun():
    names = {
        **OPEN_MPI,
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_MCA_orte_num_nodes": "2",
    }
    world = cluster.detect(names)
    assert (world.host_index, world.hosts, world.master_addr) == (1, 2, "10.96.0.1")
    with pytest.raises(SettingError, match="OMPI_MCA_orte_hnp_uri names no address; set MASTER_"):
        cluster.detect({**names, "OMPI_MCA_orte_hnp_uri": ""})


def test_a_tpu_slice_is_a_world_of_hosts():
    names = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b"}
    world = cluster.detect(names)
    assert world == HostOfMany("a TPU slice", 1, 2, "a", 8547, ("a", "b"))
    assert [world.called(host) for host in (0, 1)] == ["host a (worker 0)", "host b (worker 1)"]
    elsewhere = {**names, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "99"}
    moved = cluster.detect(elsewhere)
    assert (moved.master_addr, moved.master_port) == ("10.0.0.9", 99)
    assert cluster.detect({**names, "TPU_WORKER_HOSTNAMES": "a", "TPU_WORKER_ID": "0"}) is None


def test_the_cpus_of_a_tpu_slice_are_a_world_where_its_hosts_are_counted():
    names = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b", "PJRT_DEVICE": "CPU"}
    assert cluster.detect(names) is None
    assert cluster.detect({**names, "XLA_RUN_HOSTS": "2"}).hosts == 2


def test_a_process_that_was_given_its_chip_is_a_rank():
    names = {
        "TPU_VISIBLE_CHIPS": "1",
        "CLOUD_TPU_TASK_ID": "3",
        "TPU_PROCESS_ADDRESSES": "a:8476,a:8477,b:8476,b:8477",
    }
    world = cluster.detect(names)
    assert isinstance(world, Rank)
    assert (world.rank, world.world_size, world.local_rank, world.local_world_size) == (3, 4, 1, 2)
    assert (world.host_index, world.hosts, world.master_addr) == (1, 2, "a")
    alone = {**names, "TPU_PROCESS_ADDRESSES": "localhost:8476", "CLOUD_TPU_TASK_ID": "0"}
    assert cluster.detect(alone) is None


def test_a_jobset_is_a_world_of_hosts_where_the_pods_are_counted():
    names = {"JOB_COMPLETION_INDEX": "2", "XLA_RUN_HOSTS": "4", "MASTER_ADDR": "js-0-0.js"}
    world = cluster.detect(names)
    assert world == HostOfMany("a JobSet", 2, 4, "js-0-0.js", 8547)
    assert world.called(2) == "host 2"
    assert cluster.detect({"JOB_COMPLETION_INDEX": "2"}) is None


def test_a_pod_finds_the_first_one_by_its_own_name():
    names = {"JOB_COMPLETION_INDEX": "12", "XLA_RUN_HOSTS": "16"}
    pod = cluster.JobSet(lambda: "train-workers-0-12.train.default.svc.cluster.local")
    first = "train-workers-0-0.train.default.svc.cluster.local"
    assert pod.read(names) == HostOfMany("a JobSet", 12, 16, first, 8547)
    assert pod.read({**names, "MASTER_ADDR": "other"}).master_addr == "other"


def test_a_pod_that_is_not_told_how_many_there_are_says_that_it_is_alone():
    told = cluster.alone_in({"JOB_COMPLETION_INDEX": "2"})
    assert told == (
        "; this pod (JOB_COMPLETION_INDEX=2) is a job of its own: for one job of all pods set "
        "XLA_RUN_HOSTS to their number"
    )
    assert cluster.alone_in({}) == ""
    # It was said that it is alone, or a rank.
    pods = {"JOB_COMPLETION_INDEX": "0", "MASTER_ADDR": "a"}
    assert cluster.alone_in({**pods, "XLA_RUN_HOSTS": "2"}) == ""
    assert cluster.alone_in({**pods, "XLA_RUN_HOSTS": "1"}) == ""


@pytest.mark.parametrize("own", ["train-12", "train-2.train", "x", ""])
def test_a_pod_whose_name_says_nothing_of_the_first_one_says_what_to_do(own: str):
    names = {"JOB_COMPLETION_INDEX": "12", "XLA_RUN_HOSTS": "16"}
    told = (
        f"JobSet with 16 pods: no MASTER_ADDR, and the name of this pod, {own}, does not say which "
        "one is the first (NAME-12.SUBDOMAIN would); set MASTER_ADDR to the host name of the pod "
        "with index 0, or give the pods a subdomain"
    )
    with pytest.raises(SettingError, match=re.escape(told)):
        cluster.JobSet(lambda: own).read(names)


def test_variables_left_over_from_another_job_are_refused():
    with pytest.raises(SettingError, match="torchrun: rank 8 of 8; an index below the count is ne"):
        cluster.detect({**TORCHRUN, "RANK": "8"})
    with pytest.raises(SettingError, match="a JobSet: host 4 of 4; an index below the count is ne"):
        cluster.detect(
            {"JOB_COMPLETION_INDEX": "4", "XLA_RUN_HOSTS": "4", "MASTER_ADDR": "js-0-0.js"}
        )
    with pytest.raises(SettingError, match="WORLD_SIZE: 'many' is no whole number from 1 up"):
        cluster.detect({**TORCHRUN, "WORLD_SIZE": "many"})


@pytest.mark.parametrize(
    ("listing", "names"),
    [
        ("head", ["head"]),
        ("tux[1-3,05],head", ["tux1", "tux2", "tux3", "tux05", "head"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[1-2]n[3-4]", ["r1n3", "r1n4", "r2n3", "r2n4"]),
    ],
)
def test_slurms_node_lists_are_expanded(listing, names):
    assert cluster.expand_nodes(listing) == names


@pytest.mark.parametrize("listing", ["", "tux[1-", "tux[a-b]", "tux[]", "a b", "tux]1["])
def test_what_is_no_node_list_is_refused(listing):
    with pytest.raises(SettingError, match=r"SLURM_STEP_NODELIST: .* cannot be read; a list such"):
        cluster.expand_nodes(listing)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 5), st.integers(1, 3)), min_size=1))
def test_every_range_of_a_node_list_has_all_its_nodes(ranges):
    parts = [f"{first:0{width}d}-{first + more:0{width}d}" for first, more, width in ranges]
    names = cluster.expand_nodes(f"n[{','.join(parts)}]x")
    numbers = [first + step for first, more, _ in ranges for step in range(more + 1)]
    assert [int(name[1:-1]) for name in names] == numbers
    assert all(name.startswith("n") and name.endswith("x") for name in names)


def test_slurms_task_counts_are_expanded():
    assert cluster.expand_tasks("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(SettingError, match="SLURM_STEP_TASKS_PER_NODE: 'x' cannot be read"):
        cluster.expand_tasks("x")


def test_a_rank_of_another_launcher_gets_torchruns_names(monkeypatch):
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    for name in TORCHRUN:
        # Empty counts as unset; and what adopt() publishes is taken back after the test.
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("ROLE_RANK", "")
    monkeypatch.setenv("ROLE_WORLD_SIZE", "")
    monkeypatch.setenv("ROLE_NAME", "")
    rank = spawn.adopt()
    found = {name: os.environ[name] for name in rank.torchrun_names()}
    assert found == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "tux07",
        "MASTER_PORT": str(rank.master_port),
    }
    assert spawn.adopt().rank == 3


def test_a_rank_of_ours_is_left_as_it_is(monkeypatch):
    ours = Rank(job_id="j", control="127.0.0.1:1", launcher="xla-run").to_environ()
    for name, value in {**SLURM, **ours}.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    assert spawn.adopt().launcher == "xla-run"
    assert dict(os.environ) == before


HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def test_mpich_and_intel_mpi_on_one_host():
    found = cluster.detect(HYDRA)
    assert found == Rank(
        1, 2, 1, 2, master_port=found.master_port, launcher="MPICH or Intel MPI (mpiexec)"
    )
    assert 61440 <= found.master_port < 65535
    assert cluster.detect({**HYDRA, "PMI_SIZE": "1", "PMI_RANK": "0"}) is None


def test_mpich_over_several_hosts_needs_to_be_told_where_to_meet():
    names = {**HYDRA, "PMI_SIZE": "4", "PMI_RANK": "3"}
    with pytest.raises(SettingError, match="over 2 hosts: no variable names the first of them"):
        cluster.detect(names)
    found = cluster.detect({**names, "MASTER_ADDR": "a", "MASTER_PORT": "99"})
    assert (found.host_index, found.hosts, found.master_addr, found.master_port) == (1, 2, "a", 99)


@pytest.mark.parametrize(
    ("told", "host"),
    [("pod-0.job:8476", "pod-0.job"), ("[fd00::1]:8476", "fd00::1"), ("fd00::1", "fd00::1")],
)
def test_the_first_pod_may_be_named_with_a_port(told: str, host: str) -> None:
    environ = {"JOB_COMPLETION_INDEX": "1", "NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": told}
    found = cluster.detect(environ)
    assert isinstance(found, cluster.HostOfMany) and found.master_addr == host
