"""What is called wrong with hosts, from their answers as plain data."""

import pytest
from preflight_answers import VERSIONS, answer, plan, with_device

from torch_xdist.launcher.preflight import judge, measure
from torch_xdist.launcher.preflight.inquiry import Answer
from torch_xdist.launcher.preflight.trouble import Trouble, others_text


def troubles(*answers: Answer, ranks: int = 1) -> list[Trouble]:
    return judge.troubles(answers, plan(*answers, ranks=ranks))


def only(*answers: Answer, ranks: int = 1) -> Trouble:
    (found,) = troubles(*answers, ranks=ranks)
    return found


def test_hosts_that_are_alike_and_well_are_no_trouble() -> None:
    assert troubles(answer("a"), answer("b")) == []
    assert judge.exit_code([]) == 0


def test_the_version_of_the_majority_is_right() -> None:
    other = answer("a", versions={"jax": "0.10.1"})
    found = only(other, answer("b"), answer("c"))
    assert (found.host, found.column, found.is_warning) == ("a", "jax", False)
    assert found.text == (
        "host a: jax 0.10.1 is there, but 0.10.2 on hosts b, c; install the same on all hosts, or "
        "name another environment by --python"
    )
    assert judge.exit_code([found]) == 71


def test_of_two_versions_that_of_the_first_host_is_right() -> None:
    found = only(answer("a"), answer("b", versions={"torch": "2.12.0"}))
    assert found.text.startswith("host b: torch 2.12.0 is there, but 2.13.0 on host a; install")


def test_a_package_that_only_one_host_lacks_is_named() -> None:
    found = only(answer("a"), answer("b", versions={"torch-xdist": ""}))
    assert found.text.startswith("host b: torch-xdist is not there, but 2.9.0 on host a;")


def test_a_package_that_only_one_host_has_is_named() -> None:
    found = only(answer("a"), answer("b", versions={"libtpu": "0.0.21"}))
    assert found.text.startswith("host b: libtpu 0.0.21 is there, but none on host a;")


def test_what_every_host_lacks_is_a_trouble_of_each() -> None:
    found = troubles(*(answer(name, versions={"torch": ""}) for name in "ab"))
    assert [one.host for one in found] == ["a", "b"]
    assert found[0].text == ("host a: torch is not installed there; install torch-xdist's needs")


@pytest.mark.parametrize(("version", "is_warning"), [("3.11.9", True), ("3.12.7", False)])
def test_another_python_is_a_trouble_where_it_reads_other_bytes(
    version: str, is_warning: bool
) -> None:
    found = only(answer("a"), answer("b", versions={"python": version}))
    assert found.column == "python" and found.is_warning == is_warning


def test_another_numpy_is_a_warning() -> None:
    assert only(answer("a"), answer("b", versions={"numpy": "1.26"})).is_warning


def test_a_program_of_ours_that_speaks_another_version_is_refused() -> None:
    other = answer("b", versions={"torch": "1.0"})
    other.refusal = "the agent speaks version 1 of the control plane, the head version 4"
    found = only(answer("a"), other)
    assert found.text.startswith("host b: the agent speaks version 1") and found.exit_code == 71


# ---- hosts that do not answer -------------------------------------------------------------------


def test_a_host_that_says_nothing_is_named_with_the_limit() -> None:
    found = only(answer("a"), Answer("b"))
    assert found.exit_code == 73 and found.column == "login"
    assert found.text == (
        "host b: no answer within 15 s; try ssh by hand, or give it more time with --limit"
    )


def test_a_host_that_answers_and_hangs_is_named() -> None:
    found = only(answer("a"), Answer("b", came_s=0.42))
    assert found.exit_code == 73
    assert "host b: it answered after 0.4 s, and then nothing came within 15 s; look" in found.text


def test_a_host_that_ends_is_told_in_the_words_of_ssh() -> None:
    found = only(answer("a"), Answer("b", gone="host b: ssh cannot reach it: x", gone_code=73))
    assert (found.text, found.exit_code) == ("host b: ssh cannot reach it: x", 73)
    lost = Answer("b", came_s=1.0, gone="its stream ended", gone_code=73)
    assert only(answer("a"), lost).text == "host b was lost: its stream ended"


def test_a_host_that_is_not_reached_counts_more_than_one_that_differs() -> None:
    found = troubles(answer("a"), answer("c", versions={"jax": "1"}), Answer("b"))
    assert judge.exit_code(found) == 73


# ---- code ---------------------------------------------------------------------------------------


def code(**files: str) -> dict:
    return {"path": "/job/train.py", "files": {f"{n}.py": h for n, h in files.items()}}


def test_a_file_that_differs_is_named_with_both_hashes() -> None:
    hosts = [answer(name, code=code(train="11", model="22")) for name in "ab"]
    found = only(*hosts, answer("c", code=code(train="11", model="33")))
    assert (found.host, found.column, found.is_warning) == ("c", "code", False)
    assert found.text == (
        "host c: model.py is another one there (33) than on hosts a, b (22); copy the same code to "
        "all hosts"
    )


def test_a_file_that_is_missing_is_named() -> None:
    found = only(answer("a", code=code(train="1", model="2")), answer("b", code=code(train="1")))
    assert found.text.startswith("host b: model.py is not there, but on host a; copy the same")


def test_a_file_that_only_one_host_has_is_named() -> None:
    hosts = [answer(name, code=code(train="1")) for name in "ab"]
    found = only(*hosts, answer("c", code=code(train="1", model="2")))
    assert found.text.startswith("host c: model.py is there (2), but not on hosts a, b; copy")


def test_a_script_that_is_not_there_is_named() -> None:
    why = {"why_not": "/job/train.py does not exist there"}
    found = only(answer("a", code=code(train="1")), answer("b", code=why))
    assert found.text == (
        "host b: /job/train.py does not exist there; copy the code to the same path on all hosts"
    )


# ---- devices ------------------------------------------------------------------------------------


def test_hosts_with_different_devices_are_refused_as_by_a_job() -> None:
    found = only(with_device("a", "CUDA"), answer("b"))
    assert found.text.startswith("the hosts have different devices (CUDA: a; CPU: b); leave some")


def test_more_ranks_than_devices_are_refused_as_by_a_job() -> None:
    found = only(with_device("a", "CUDA"), with_device("b", "CUDA", 2), ranks=4)
    assert (found.host, found.column) == ("b", "devices")
    assert "host b: 4 ranks asked for, but this host has 2 visible GPUs" in found.text


def test_who_holds_a_gpu_is_a_warning() -> None:
    holder = {"kind": "CUDA", "device": "GPU 0", "pid": 7, "command": "python x", "used_mib": 900}
    found = only(with_device("a", "CUDA", holders=[holder]))
    assert found.is_warning and found.text == (
        "host a: GPU 0 is held by process 7 with 900 MiB (python x); end it, or wait for its end"
    )


def test_who_holds_a_chip_is_an_error() -> None:
    holder = {"kind": "TPU", "device": "/dev/accel0", "pid": 7, "command": "python x"}
    held = with_device("a", "TPU", holders=[holder])
    assert held.facts is not None
    held.facts["host"]["trouble"] = ""
    found = only(held)
    assert not found.is_warning and "/dev/accel0 is held by process 7 (python x)" in found.text


def test_what_keeps_libtpu_from_its_start_is_an_error_where_it_is_used() -> None:
    why = "/tmp/libtpu_lockfile belongs to ada and nobody has it locked"
    left = with_device("a", "TPU", tpu=[why])
    assert left.facts is not None
    left.facts["host"]["trouble"] = ""
    found = only(left)
    assert not found.is_warning and found.text == f"host a: {why}"
    assert troubles(answer("a", tpu=[why])) == []


def test_who_holds_a_device_that_the_job_does_not_use_is_no_trouble() -> None:
    holder = {"kind": "CUDA", "device": "GPU 0", "pid": 7, "command": "python x"}
    assert troubles(answer("a", holders=[holder])) == []


# ---- warnings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "column", "text"),
    [
        (
            {"disk": {"free_bytes": 5e8}},
            "disk",
            "host b: 500 MB are free for logs in /logs, less than 1 GB; make room, or name another",
        ),
        (
            {"shared_memory": {"free_bytes": 64e6}},
            "shm",
            "host b: 64 MB are free in /dev/shm, less than 256 MB; loaders with workers need it",
        ),
        (
            {"limits": {"open_files": 256}},
            "files",
            "host b: a process may open 256 files, fewer than 1024; raise it with `ulimit -n`",
        ),
        (
            {"proxies": {"https_proxy": "http://p", "no_proxy": "x"}},
            "",
            "host b: https_proxy set; what ranks say to each other by gRPC may go to that proxy;",
        ),
        (
            {"slow": ["holders"]},
            "devices",
            "host b: who holds its devices could not be found out there: no answer in time; look",
        ),
        (
            {"failed": {"limits": "OSError(5)"}},
            "files",
            "host b: its limits could not be found out there: OSError(5); look what is wrong",
        ),
    ],
)
def test_what_does_not_stop_a_job_is_a_warning(parts: dict, column: str, text: str) -> None:
    found = only(answer("a"), answer("b", **parts))
    assert (found.host, found.column, found.is_warning) == ("b", column, True)
    assert found.text.startswith(text)
    assert judge.exit_code([found]) == 0


def test_a_host_that_cannot_tell_its_devices_is_an_error() -> None:
    one = answer("b", failed={"host": "OSError(5)"})
    assert one.facts is not None
    del one.facts["host"]
    found = only(answer("a"), one)
    assert not found.is_warning
    assert found.text.startswith("host b: its cores and devices could not be found out there: OSE")


def test_every_part_of_the_facts_has_its_words() -> None:
    assert set(judge._PARTS) == set(measure._PARTS)


def test_a_host_that_would_keep_no_logs_is_a_warning() -> None:
    one = answer("a")
    assert one.facts is not None
    one.facts["host"].update(log_root="", why_no_logs="it belongs to another user")
    found = only(one, answer("b"))
    assert found.is_warning
    assert found.text == "host a: no logs would be kept there: it belongs to another user"


def test_unlimited_open_files_are_enough() -> None:
    assert troubles(answer("a", limits={"open_files": None})) == []


def test_a_proxy_does_not_matter_on_one_host() -> None:
    assert troubles(answer("a", proxies={"http_proxy": "http://p"})) == []


def test_a_directory_that_is_missing_is_an_error() -> None:
    found = only(answer("a"), answer("b", disk={"has_cwd": False}))
    assert not found.is_warning
    assert found.text.startswith("host b: there is no directory /job, where its ranks would start;")


@pytest.mark.parametrize(("clock_s", "word"), [(4.0, "4.0 s ahead"), (-2.5, "2.5 s behind")])
def test_a_clock_that_is_wrong_is_a_warning(clock_s: float, word: str) -> None:
    one = answer("c")
    one.clock_s = clock_s
    found = only(answer("a"), answer("b"), one)
    assert found.is_warning and f"host c: its clock is {word}; the times in its logs" in found.text


def test_a_wrong_clock_of_this_machine_is_no_trouble_of_hosts_that_agree() -> None:
    hosts = [answer(name) for name in "abc"]
    for one in hosts:
        one.clock_s = 30.0
    assert troubles(*hosts) == []


def test_what_a_slow_connection_hides_is_no_wrong_clock() -> None:
    one = answer("a")
    one.clock_s, one.clock_error_s = 1.5, 0.8
    assert troubles(one) == []


def test_errors_come_before_warnings() -> None:
    slow = answer("a", limits={"open_files": 10})
    found = troubles(slow, answer("b", versions={**VERSIONS, "jax": "9"}))
    assert [one.is_warning for one in found] == [False, True]


def test_many_hosts_are_named_in_short() -> None:
    assert others_text(["a"]) == "host a"
    assert others_text(list("abcdef")) == "hosts a, b, c, d and 2 others"
