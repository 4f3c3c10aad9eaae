"""A gcloud for tests: it describes TPUs as it is told to, and runs `ssh --command` on this machine.

It misbehaves as asked, worker by worker. What it was called with is kept.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# As gcloud answered for such a TPU, without what nobody reads.
V4_16 = {
    "acceleratorConfig": {"topology": "2x2x2", "type": "V4"},
    "acceleratorType": "v4-16",
    "health": "HEALTHY",
    "name": "projects/p/locations/us-central2-b/nodes/pod",
    "networkEndpoints": [
        {"accessConfig": {"externalIp": "203.0.113.1"}, "ipAddress": "10.130.0.9", "port": 8470},
        {"accessConfig": {"externalIp": "203.0.113.2"}, "ipAddress": "10.130.0.7", "port": 8470},
    ],
    "runtimeVersion": "tpu-ubuntu2204-base",
    "state": "READY",
}

_SCRIPT = """#!{python} -P
import contextlib, json, os, subprocess, sys, threading, time
folder = {folder!r}
words = sys.argv[1:]
with open(folder + "/calls", "a") as calls:
    calls.write(json.dumps(words) + "\\n")
told = json.load(open(folder + "/told"))
def there(command):
    # A process of the worker: it lives on where this one is killed, and sees the end of its stdin.
    ends = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    began = subprocess.Popen(["sh", "-c", command], env=environ, start_new_session=True, **ends)
    threading.Thread(target=pump, args=(open(0, "rb", 0), began.stdin), daemon=True).start()
    return began
def pump(source, target):
    with contextlib.suppress(OSError):
        while data := source.read(1 << 16):
            while data:
                data = data[target.write(data):]
    target.close()
def fail(code, *lines):
    print(*lines, sep="\\n", file=sys.stderr)
    sys.exit(code)
name = words[4].rpartition("@")[2]
if words[3] == "describe":
    table = told["tpus" if words[2] == "tpu-vm" else "queued"]
    if name not in table:
        asked = "gcloud.compute.tpus." + words[2] + ".describe"
        fail(1, "ERROR: (" + asked + ") NOT_FOUND: Resource was not found.")
    answer = table[name]
    print(answer if isinstance(answer, str) else json.dumps(answer))
    sys.exit()
options = dict(word.split("=", 1) for word in words[5:] if "=" in word)
fault = told["faults"].get(name + "-w" + options["--worker"], "")
command = options["--command"]
is_agent = command != "exec true"
# As a login on the worker has it.
kept = ("PATH", "HOME", "XLA_RUN_TEST")
environ = {{key: os.environ[key] for key in kept if key in os.environ}}
if fault == "refuses":
    fail(255, "ssh: connect to host 203.0.113.2 port 22: Connection refused",
         "Retrying: SSH command error: [/usr/bin/ssh] exited with return code [255].")
if fault == "no key":
    fail(1, "ERROR: (gcloud.compute.tpus.tpu-vm.ssh) Could not add SSH key to the metadata.")
if fault == "hangs" and is_agent:
    time.sleep(300)
if fault == "slow":
    print("WARNING: slow", file=sys.stderr, flush=True)
    time.sleep(2)
if fault == "chatty" and is_agent:
    print("Welcome to worker " + options["--worker"], flush=True)
if fault == "wrong code":
    began = there(command)
    pump(began.stdout, open(1, "wb", 0))
    # Its output may end a while before it does.
    code = began.wait()
    sys.exit(5 if is_agent else code)
if fault == "cut" and is_agent:
    agent = there(command)
    os.write(1, agent.stdout.read(40))
    agent.kill()
    fail(255, "client_loop: send disconnect: Broken pipe")
began = there(command)
pump(began.stdout, open(1, "wb", 0))
sys.exit(began.wait())
"""


class Gcloud:
    """One, in a folder that is to stand first on PATH.

    Args:
        tpus: what it describes: an object for JSON, or text that is printed as it is.
        faults: by "NAME-wINDEX" of a worker.
        queued: what it describes as queued resources, likewise.
    """

    def __init__(
        self,
        folder: Path,
        tpus: Mapping[str, Any],
        faults: Mapping[str, str] | None = None,
        queued: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.tell(tpus, faults or {}, queued or {})
        script = folder / "gcloud"
        script.write_text(_SCRIPT.format(python=sys.executable, folder=str(folder)))
        script.chmod(0o755)

    @property
    def path(self) -> str:
        return f"{self.folder}:{os.environ['PATH']}"

    def tell(
        self, tpus: Mapping[str, Any], faults: Mapping[str, str], queued: Mapping[str, Any]
    ) -> None:
        told = {"tpus": tpus, "faults": faults, "queued": queued}
        (self.folder / "told").write_text(json.dumps(told))

    def calls(self) -> list[list[str]]:
        """The words of every call, in order."""
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]
