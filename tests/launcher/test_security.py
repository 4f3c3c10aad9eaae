"""Nobody without the job's token is heard, and the token shows nowhere."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from torch_xdist.launcher import control, frames
from torch_xdist.launcher.errors import AuthError, HostError

TWO = ("--nprocs", "2", "--job-id", "guarded")
_WAIT = "meet(); say('ready'); threading.Event().wait()"


def test_a_call_without_the_token_is_refused_before_its_bytes_are_read() -> None:
    heard = []
    server = control.Server("right", lambda *seen: heard.append(seen), lambda message: {"ok": 1})
    try:
        assert control.call(server.address, "right", {"op": "status"}) == {"ok": 1}
        with pytest.raises(AuthError, match="the job's token is needed; this call was refused"):
            control.call(server.address, "wrong", {"op": "status"})
        with grpc.insecure_channel(server.address) as channel:
            for method in ("Call", "Agent"):
                make = channel.unary_unary if method == "Call" else channel.stream_stream
                ask = make(f"/{control.SERVICE}/{method}")
                with pytest.raises(grpc.RpcError) as caught:
                    sent = b"\x80not a frame"
                    answer = ask(sent if method == "Call" else iter([sent]), timeout=10)
                    list(answer)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert heard == []
    finally:
        server.close()


def test_nobody_at_the_address_is_an_error_that_names_it() -> None:
    with pytest.raises(HostError, match=r"controller at 127\.0\.0\.1:1: "):
        control.call("127.0.0.1:1", "any", {"op": "status"}, limit_s=5)


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(HostError, match=r"control plane: cannot listen on 203\.0\.113\.1"):
        control.Server("any", lambda *_: None, lambda message: {}, host="203.0.113.1")


def test_a_second_server_never_shares_a_port() -> None:
    server = control.Server("a", lambda *_: None, lambda message: {})
    try:
        other = grpc.server(ThreadPoolExecutor(1))
        with pytest.raises(RuntimeError, match="Failed to bind"):
            other.add_insecure_port(server.address)
        assert server.address.startswith("127.0.0.1:")
    finally:
        server.close()


def test_a_running_job_shows_its_token_to_its_owner_alone(start: Callable) -> None:
    job = start(_WAIT, *TWO, "--env", "HF_TOKEN=hidden-value")
    job.wait_for("ready")
    record = job.folder / "guarded.json"
    token = json.loads(record.read_text())["token"]
    private = [record, *job.folder.glob("logs/*/*.jsonl"), *job.folder.glob("logs/*/*/*")]
    assert len(private) >= 4
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((job.folder / "logs" / "guarded").stat().st_mode) == 0o700
    for pid in job.alive() | {job.process.pid}:
        for name in ("cmdline", "environ"):
            assert token.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
        shown = Path(f"/proc/{pid}/cmdline").read_bytes()
        if pid != job.process.pid:
            assert b"hidden-value" not in shown
    job.process.terminate()
    ended = job.end(20)
    texts = [path.read_text() for path in job.folder.glob("logs/**/*") if path.is_file()]
    for secret in (token, "hidden-value"):
        assert not any(secret in text for text in [ended.out, ended.err, *texts])


def test_a_dry_run_masks_secrets_and_starts_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch_xdist.launcher", "--dry-run", "--nprocs", "2"),
            *("--env", "HF_TOKEN=hidden-value", "--", "true", "--fast"),
        ],
        env={**os.environ, "XLA_RUN_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert "hidden-value" not in done.stdout and "  HF_TOKEN=***" in done.stdout
    assert "rank 1: true --fast" in done.stdout and "  WORLD_SIZE=2" in done.stdout
    assert not (tmp_path / "state").exists()


def test_frames_survive_any_chopping_and_refuse_what_is_none() -> None:
    stream = frames.encode({"op": "a"}, b"\0\1") + frames.encode({"op": "b"})
    decoder = frames.Decoder()
    found = [frame for byte in stream for frame in decoder.feed(bytes([byte]))]
    assert found == [({"op": "a"}, b"\0\1"), ({"op": "b"}, b"")]
    for bad, words in (
        (b"\xff" * 8, "at most"),
        (b"\0\0\0\2\0\0\0\0[]", "is no JSON object"),
        (b"\0\0\0\2\0\0\0\0{[", "is no JSON"),
        (b"", "hold 0 messages; 1 is needed"),
    ):
        with pytest.raises(frames.ProtocolError, match=words):
            frames.decode(bad)
