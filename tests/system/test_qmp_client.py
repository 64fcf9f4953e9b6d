# SPDX-License-Identifier: Apache-2.0
"""The commands qmp, status and migrate against the control server over a fake machine."""
import json
import os
import pty
import signal
import socket
import subprocess
import threading
import time

import pytest

from godwit import binary
from qmp import Qmp
from test_qmp_server import Server

GODWIT = binary()


@pytest.fixture
def server(tmp_path):
    s = Server(tmp_path)
    assert s.ready
    yield s
    s.quit()


def godwit(*arguments, **options):
    return subprocess.run([GODWIT, *map(str, arguments)], capture_output=True, text=True,
                          timeout=60, **options)


def test_qmp_prints_the_answer(server):
    done = godwit("qmp", f"unix:{server.path}", "query-status")
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(done.stdout) == {"status": "paused", "running": False}
    assert json.loads(godwit("qmp", server.path, "query-name").stdout) == {"name": "fake"}


def test_qmp_arguments(server):
    def parameters():
        return json.loads(godwit("qmp", server.path, "query-migrate-parameters").stdout)

    assert godwit("qmp", server.path, "migrate-set-parameters", "downtime-limit=50",
                  "max-bandwidth=1000").returncode == 0
    assert parameters()["downtime-limit"] == 50 and parameters()["max-bandwidth"] == 1000
    assert godwit("qmp", server.path, "migrate-set-parameters",
                  '{"downtime-limit": 60}').returncode == 0
    assert parameters()["downtime-limit"] == 60
    done = godwit("qmp", server.path, "migrate-set-parameters", 'downtime-limit="50"')
    assert done.returncode == 1
    assert done.stderr == ("godwit: Invalid parameter type for 'downtime-limit', "
                           "expected: integer\n")


@pytest.mark.parametrize("arguments, status, text", [
    (["PATH", "nope"], 1, "The command nope has not been found"),
    (["PATH", "stop", "word"], 2, "'word' is no argument: write NAME=VALUE"),
    (["PATH", "stop", "{bad"], 2, "the arguments are no JSON"),
    (["PATH"], 2, "CONTROL and COMMAND are needed"),
    (["--timeout", "soon", "PATH", "stop"], 2, "--timeout"),
    (["--what", "PATH", "stop"], 2, "Try 'godwit qmp --help'"),
    (["/nonexistent/x", "stop"], 1, "no virtual machine answers there"),
    (["unix:" + "y" * 200, "stop"], 1, "107 is the most"),
])
def test_qmp_errors(server, arguments, status, text):
    done = godwit("qmp", *[str(server.path) if a == "PATH" else a for a in arguments])
    assert done.returncode == status
    assert text in done.stderr and done.stdout == ""


@pytest.mark.parametrize("command", ["qmp", "status", "migrate", "demo"])
def test_help_teaches_with_an_example(command):
    done = godwit(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: godwit {command}") and "Example" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 90


def listen_once(path, answer):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)

    def serve():
        connection, _ = listener.accept()
        connection.sendall(answer)
        time.sleep(1.5)
        connection.close()

    threading.Thread(target=serve, daemon=True).start()


@pytest.mark.parametrize("answer, text", [
    (b"", "no answer in time"),
    (b"SSH-2.0-x\r\n", "does not speak QMP"),
    (b'{"hello": 1}\n', "is no control socket"),
    (b'{"QMP": {}}\n', "no answer in time"),
])
def test_what_is_no_control_socket(tmp_path, answer, text):
    listen_once(tmp_path / "s", answer)
    start = time.monotonic()
    done = godwit("qmp", "--timeout", "500ms", tmp_path / "s", "stop")
    assert done.returncode == 1 and text in done.stderr
    assert time.monotonic() - start < 2


def test_status(server):
    assert godwit("status", server.path).stdout == "fake: paused, 2 vCPUs, 64 MiB\n"
    godwit("qmp", server.path, "migrate", "uri=unix:/refused")
    end = time.monotonic() + 10
    while "failed" not in (text := godwit("status", server.path).stdout):
        assert time.monotonic() < end
    assert "outgoing migration: failed (phase done)" in text
    assert "memory.size: the source has 1 GiB, this machine 512 MiB" in text
    answer = json.loads(godwit("status", server.path, "--json").stdout)
    assert set(answer) == {"name", "status", "cpus", "memory", "migration"}
    assert answer["migration"]["status"] == "failed"
    assert godwit("status").returncode == 2


def test_migrate_prints_the_account(server):
    done = godwit("migrate", server.path, "unix:/ok", "--downtime-limit", "20ms",
                  "--max-bandwidth", "1M")
    assert done.returncode == 0, done.stderr
    for text in ("total time", "rounds       2", "238.4 MiB", "pause        460 us",
                 "  memory     200 us"):
        assert text in done.stdout
    parameters = json.loads(godwit("qmp", server.path, "query-migrate-parameters").stdout)
    assert parameters["downtime-limit"] == 20 and parameters["max-bandwidth"] == 1 << 20
    assert "postmigrate" in godwit("status", server.path).stdout


def test_migrate_json(server):
    done = godwit("migrate", server.path, "unix:/ok", "--json")
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(done.stdout)["switchover-us"]["total"] == 460


def test_migrate_check(server):
    done = godwit("migrate", server.path, "unix:/ok", "--check")
    assert (done.returncode, done.stdout) == (0, "the destination would accept the guest\n")
    done = godwit("migrate", server.path, "unix:/refused", "--check")
    assert done.returncode == 1
    assert "the source has 1 GiB, this machine 512 MiB" in done.stderr


def test_migrate_errors(server):
    done = godwit("migrate", server.path, "unix:/refused")
    assert done.returncode == 1 and done.stdout == ""
    assert "the migration failed: memory.size: the source has 1 GiB" in done.stderr
    assert godwit("migrate", server.path, "tcp:bad").returncode == 1
    assert godwit("migrate", server.path).returncode == 2
    assert godwit("migrate", server.path, "unix:/ok", "--downtime-limit", "x").returncode == 2


def test_migrate_timeout_cancels(server):
    done = godwit("migrate", server.path, "unix:/slow", "--timeout", "300ms")
    assert done.returncode == 1
    assert "the time was up: the migration was cancelled" in done.stderr
    with Qmp(server.path) as qmp:
        assert qmp.execute("query-migrate")["status"] == "cancelled"


def test_migrate_interrupt_cancels(server):
    process = subprocess.Popen([GODWIT, "migrate", str(server.path), "unix:/slow"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 1 and out == ""
    assert "interrupted: the migration was cancelled, the guest stays here" in err
    assert "rounds" in err and "238.4 MiB/s" in err  # plain progress lines before it
    with Qmp(server.path) as qmp:
        assert qmp.execute("query-migrate")["status"] == "cancelled"


def test_migrate_detach(server):
    done = godwit("migrate", server.path, "unix:/ok", "--detach")
    assert (done.returncode, done.stdout) == (0, "the migration is under way\n")
    with Qmp(server.path) as qmp:
        end = time.monotonic() + 10
        while qmp.execute("query-migrate")["status"] != "completed":
            assert time.monotonic() < end
            time.sleep(0.02)


def test_migrate_progress_on_a_terminal(server):
    leader, follower = pty.openpty()
    process = subprocess.Popen([GODWIT, "migrate", str(server.path), "unix:/ok"],
                               stdout=subprocess.PIPE, stderr=follower, text=True)
    os.close(follower)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0 and "total time" in out
    shown = b""
    try:
        while data := os.read(leader, 4096):
            shown += data
    except OSError:
        pass
    os.close(leader)
    assert b"\r\x1b[Krounds" in shown and b"pause 512 us" in shown and b" left" in shown
    assert shown.endswith(b"\r\x1b[K")


def test_migrate_when_the_source_dies(tmp_path):
    server = Server(tmp_path)
    process = subprocess.Popen([GODWIT, "migrate", str(server.path), "unix:/slow"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)
    server.process.kill()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "ended in the middle of the migration" in err or "lost sight of" in err
