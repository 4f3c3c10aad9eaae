"""Which rank goes to which host, and what it is told there: plain data, no machine is looked at."""

from dataclasses import replace

import pytest

from torch_xdist.launcher.facts import placement
from torch_xdist.launcher.facts.cluster import HostOfMany
from torch_xdist.launcher.facts.devices import Found
from torch_xdist.launcher.facts.errors import DevicesError
from torch_xdist.launcher.facts.host import HostFacts
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.placement import Meeting, Place
from torch_xdist.launcher.facts.tpu import slice_of

PLUGINS = {"CUDA": True, "TPU": True}


def job_on(*slots: int, device: str = "CPU", **more: object) -> Job:
    hosts = [Host(f"h{index}", slots=count) for index, count in enumerate(slots)]
    return Job("program", ["true"], sum(slots), device=device, hosts=hosts, **more)


def with_gpus(count: int, **environ: str) -> HostFacts:
    return HostFacts(found=Found({"CUDA": count, "TPU": 0}, PLUGINS), environ=environ)


def test_ranks_are_consecutive_on_each_host() -> None:
    job = job_on(1, 3)
    orders = placement.rank_orders(job, 0, Meeting(), [Place(HostFacts(cores=(0, 1)))] * 2)
    assert [[order["rank"] for order in on_host] for on_host in orders] == [[0], [1, 2, 3]]
    env = orders[1][1]["env"]
    assert (env["RANK"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == ("2", "1", "3")
    assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"], env["WORLD_SIZE"]) == ("1", "2", "4")


def test_cores_and_threads_are_those_of_the_host() -> None:
    places = [Place(HostFacts(cores=tuple(range(8)))), Place(HostFacts(cores=(0, 1)))]
    orders = placement.rank_orders(job_on(2, 2), 0, Meeting(), places)
    assert [order["cores"] for order in orders[0]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [order["threads"] for on_host in orders for order in on_host] == [4, 4, 1, 1]


def test_gpus_are_chosen_through_the_variable_of_their_host() -> None:
    places = [Place(with_gpus(4)), Place(with_gpus(4, CUDA_VISIBLE_DEVICES="2,3"))]
    orders = placement.rank_orders(job_on(2, 2, device="CUDA"), 0, Meeting(), places)
    shown = [order["env"]["CUDA_VISIBLE_DEVICES"] for on_host in orders for order in on_host]
    assert shown == ["0", "1", "2", "3"]


def test_logs_are_named_as_their_host_keeps_them() -> None:
    places = [Place(HostFacts(cores=(0,)), "/here"), Place(HostFacts(cores=(0,)))]
    orders = placement.rank_orders(job_on(1, 1), 0, Meeting(), places)
    files = [on_host[0]["env"]["TORCHELASTIC_ERROR_FILE"] for on_host in orders]
    assert files == ["/here/rank-0.error.json", ""]


def test_hosts_that_have_the_same_devices_use_them() -> None:
    job = job_on(2, 2, device="")
    assert placement.device_of(job, ["a", "b"], [with_gpus(2), with_gpus(4)]).kind == "CUDA"


def test_hosts_with_different_devices_are_refused() -> None:
    told = r"the hosts have different devices \(CUDA: a; CPU: b\); leave some out, or let all use"
    with pytest.raises(DevicesError, match=told):
        placement.device_of(job_on(1, 1, device=""), ["a", "b"], [with_gpus(1), with_gpus(0)])


def test_a_host_with_too_few_devices_is_named() -> None:
    with pytest.raises(DevicesError, match=r"host b: 2 ranks asked for, but this host has 1 vis"):
        placement.device_of(job_on(2, 2, device=""), ["a", "b"], [with_gpus(2), with_gpus(1)])


def tpu_host(worker: int, **more: str) -> HostFacts:
    found = Found({"CUDA": 0, "TPU": 4}, PLUGINS)
    if more:
        return HostFacts("t", found=found, **more)
    return HostFacts("t", found=found, whole=slice_of("v4-16", worker, ["t0", "t1"]))


def test_the_chips_of_two_hosts_of_a_slice_are_one() -> None:
    places = [Place(tpu_host(0)), Place(tpu_host(1))]
    orders = placement.rank_orders(job_on(4, 4, device="TPU"), 0, Meeting(), places)
    tasks = [order["env"]["CLOUD_TPU_TASK_ID"] for on_host in orders for order in on_host]
    assert tasks == [str(rank) for rank in range(8)]


def test_hosts_of_a_slice_in_another_order_are_refused() -> None:
    places = [Place(tpu_host(1)), Place(tpu_host(0))]
    with pytest.raises(DevicesError, match="is worker 1 of its TPU slice, and stands at place 0"):
        placement.rank_orders(job_on(4, 4, device="TPU"), 0, Meeting(), places)


def test_a_tpu_host_that_does_not_know_its_slice_is_refused() -> None:
    hosts = [tpu_host(0), tpu_host(0, trouble="no metadata")]
    with pytest.raises(DevicesError, match="host b: no metadata"):
        placement.device_of(job_on(4, 4, device=""), ["a", "b"], hosts)
    with pytest.raises(DevicesError, match="no metadata"):
        place = [Place(hosts[1])]
        placement.rank_orders(Job("program", ["true"], 4, device="TPU"), 0, Meeting(), place)


def test_the_workers_of_two_slices_are_numbered_within_each() -> None:
    job = job_on(4, 4, 4, 4, device="TPU")
    job.hosts = [replace(host, worker=index % 2) for index, host in enumerate(job.hosts)]
    places = [Place(tpu_host(worker)) for worker in (0, 1, 0, 1)]
    orders = placement.rank_orders(job, 0, Meeting(), places)
    tasks = [order["env"]["CLOUD_TPU_TASK_ID"] for on_host in orders for order in on_host]
    assert tasks == [str(rank) for rank in range(8)] * 2


def test_the_ranks_of_a_host_without_a_launcher_are_numbered_after_those_of_the_hosts_before() -> (
    None
):
    part = HostOfMany("a TPU slice", 1, 2, "t0", 8547, ("t0", "t1"))
    job = Job("function", ["train.py"], 4, device="TPU", part=part)
    (orders,) = placement.rank_orders(job, 0, Meeting(), [Place(tpu_host(1))])
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "TPU_VISIBLE_CHIPS")
    rows = [[order["env"][name] for name in (*names, "CLOUD_TPU_TASK_ID")] for order in orders]
    assert rows == [[str(4 + n), str(n), "8", "1", str(n), str(4 + n)] for n in range(4)]
    addresses = {order["env"]["TPU_PROCESS_ADDRESSES"] for order in orders}
    assert addresses == {",".join(f"t{host}:{8476 + n}" for host in (0, 1) for n in range(4))}
    assert Job.from_json(job.to_json()) == job
