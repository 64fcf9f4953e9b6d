# SPDX-License-Identifier: Apache-2.0
"""The control server over a fake machine (tests/unit/qmp_server_under_test.c)."""
import array
import json
import os
import pathlib
import signal
import socket
import stat
import statistics
import subprocess
import time

import pytest

import godwit
from qmp import Qmp, QmpError

SERVER = pathlib.Path(godwit.binary()).parent / "tests" / "unit" / "qmp-server-under-test"
# AddressSanitizer keeps freed memory for a while.
SANITIZED = b"__asan_init" in SERVER.read_bytes() if SERVER.exists() else False


class Server:
    def __init__(self, folder, *arguments, sockets=1):
        self.paths = [folder / f"q{i}.sock" for i in range(sockets)]
        self.process = subprocess.Popen(
            [SERVER, *[f"unix:{p}" for p in self.paths], *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ready = self.process.stdout.readline() == "listening\n"

    @property
    def path(self):
        return self.paths[0]

    def quit(self):
        """Ends it, and checks that nothing was left behind."""
        with Qmp(self.path) as qmp:
            qmp.execute("quit")
        assert self.process.wait(10) == 0
        assert "leaked" not in (text := self.process.stderr.read()), text
        assert "handles" not in text
        for path in self.paths:
            assert not path.exists()


@pytest.fixture
def server(tmp_path):
    s = Server(tmp_path)
    assert s.ready
    yield s
    if s.process.poll() is None:
        s.quit()


@pytest.fixture
def qmp(server):
    with Qmp(server.path) as client:
        yield client


def refusal(qmp, request):
    with pytest.raises(QmpError) as caught:
        qmp.command(request)
    return caught.value


def test_greeting_and_negotiation(server):
    with Qmp(server.path, negotiate=False) as qmp:
        version = qmp.greeting["QMP"]["version"]
        assert set(version["qemu"]) == {"major", "minor", "micro"}
        assert version["package"].startswith("godwit-")
        assert qmp.greeting["QMP"]["capabilities"] == ["oob"]
        error = refusal(qmp, {"execute": "query-status"})
        assert error.kind == "CommandNotFound"
        assert error.desc == "Expecting capabilities negotiation with 'qmp_capabilities'"
        assert "does not accept value 'foo'" in refusal(
            qmp, {"execute": "qmp_capabilities", "arguments": {"enable": ["foo"]}}).desc
        assert qmp.raw({"execute": "qmp_capabilities", "id": 3}) == {"return": {}, "id": 3}
        assert refusal(qmp, {"execute": "qmp_capabilities"}).kind == "CommandNotFound"
        assert qmp.execute("query-version") == version


@pytest.mark.parametrize("sent, desc", [
    (b"[1,2]", "QMP input must be a JSON object"),
    (b"3 ", "QMP input must be a JSON object"),
    (b'"abc"', "QMP input must be a JSON object"),
    (b'{"arguments":{}}', "QMP input lacks member 'execute'"),
    (b'{"execute":3}', "QMP input member 'execute' must be a string"),
    (b'{"execute":"stop","arguments":[]}', "QMP input member 'arguments' must be an object"),
    (b'{"execute":"stop","bla":1}', "QMP input member 'bla' is unexpected"),
    (b'{"exec-oob":"stop"}', "QMP input member 'exec-oob' is unexpected"),
    (b'{"execute":"stop","arguments":{"a":1}}', "Parameter 'a' is unexpected"),
    (b'{"execute":"nope"}', "The command nope has not been found"),
    (b'{"execute":"getfd"}', "Parameter 'fdname' is missing"),
    (b'{"execute":"getfd","arguments":{"fdname":3}}',
     "Invalid parameter type for 'fdname', expected: string"),
    (b'{"execute":"migrate","arguments":{"uri":3}}',
     "Invalid parameter type for 'uri', expected: string"),
    (b'{"execute":"migrate","arguments":{"uri":"unix:/ok","check":1}}',
     "Invalid parameter type for 'check', expected: boolean"),
    (b'{"execute":"migrate"}', "need either 'uri' or 'channels' argument"),
    (b'{"execute":"migrate","arguments":{"channels":[{"channel-type":"main","addr":{"transport":"rdma"}}]}}',
     "Parameter 'channels[0].addr.transport' does not accept value 'rdma'"),
    (b'{"execute":"migrate","arguments":{"channels":[{"channel-type":"main","addr":'
     b'{"transport":"socket","type":"unix","path":"/x","port":"1"}}]}}',
     "Parameter 'channels[0].addr.port' is unexpected"),
    (b'{"execute":"migrate-set-parameters","arguments":{"multifd-channels":3}}',
     "Parameter 'multifd-channels' is unexpected"),
    (b'{"execute":"migrate-set-parameters","arguments":{"downtime-limit":-1}}',
     "Parameter 'downtime-limit' expects a non-negative integer"),
    (b'{"execute":"migrate-set-parameters","arguments":{"downtime-limit":2000001}}',
     "Parameter 'downtime-limit' expects an integer in the range of 0 to 2000000 (ms)"),
    (b'{"execute":"migrate-set-capabilities","arguments":{"capabilities":[{"capability":"xbzrle","state":true}]}}',
     "Parameter 'capabilities[0].capability' does not accept value 'xbzrle'"),
    (b'{"execute":"migrate-continue","arguments":{"state":"bla"}}',
     "Parameter 'state' does not accept value 'bla'"),
    (b'{"execute":"migrate-continue","arguments":{"state":"pre-switchover"}}',
     "Migration not in expected state: none"),
    (b'{"execute":"getfd","arguments":{"fdname":"x"}}',
     "No file descriptor supplied via SCM_RIGHTS"),
    (b'{"execute":"closefd","arguments":{"fdname":"x"}}',
     "File descriptor named 'x' not found"),
    (b'{"execute":"migrate","arguments":{"uri":"fd:x"}}',
     "File descriptor named 'x' not found"),
    (b'{"execute":"migrate","arguments":{"uri":"fd:1000"}}',
     "File descriptor 1000 was not handed to this process at its start"),
    (b'{"execute":"migrate","arguments":{"uri":"tcp:bad"}}',
     "tcp:bad: no port (write tcp:HOST:PORT)"),
    (b'{"execute":"migrate","arguments":{"uri":"exec:cat"}}', "exec: needs --allow-exec"),
    (b'{"execute":"migrate-incoming","arguments":{"uri":"unix:/x"}}',
     "'--incoming' was not specified on the command line"),
    (b'{"execute":"x-migrate-resolve","arguments":{"owner":"nowhere"}}',
     "Parameter 'owner' does not accept value 'nowhere'"),
    (b"@", "JSON parse error, stray '@'"),
    (b'{"execute":"query-name",}', None),
    (b'{"execute":"query-name","execute":"quit"}', None),
    (b'{"execute":"\\ud800"}', None),
    (b'{"execute":"query-name","arguments":{"a":"\xc3\x28"}}', None),
    (b"[" * 1500 + b"\n", "JSON parse error, nesting is deeper than 1024"),
])
def test_refusals(qmp, sent, desc):
    answer = qmp.raw(sent)
    if desc is None:
        assert answer["error"]["desc"].startswith("JSON parse error")
    else:
        assert answer["error"]["desc"] == desc
    qmp.send(b"\n")
    assert qmp.execute("query-name") == {"name": "fake"}


def test_stream_not_lines(qmp):
    qmp.send(b"{'execute':\n'query-name', 'id': 'it\\'s'}{\"execute\":\"query-kvm\",\"id\":[2]}")
    assert qmp.answer() == {"return": {"name": "fake"}, "id": "it's"}
    assert qmp.answer() == {"return": {"enabled": True, "present": True}, "id": [2]}
    for byte in b'{"execute":"query-uuid","id":null}':
        qmp.send(bytes([byte]))
    assert qmp.answer() == {
        "return": {"UUID": "11111111-2222-3333-4444-555555555555"}, "id": None}
    qmp.send(b'{"execute":"quit\xff{"execute":"query-name"}')
    assert "stray" in qmp.answer()["error"]["desc"]
    assert qmp.answer() == {"return": {"name": "fake"}}


def test_queries(qmp):
    assert qmp.execute("query-status") == {"status": "paused", "running": False}
    assert qmp.execute("query-memory-size-summary") == {
        "base-memory": 64 << 20, "plugged-memory": 0}
    cpus = qmp.execute("query-cpus-fast")
    assert [(c["cpu-index"], c["thread-id"]) for c in cpus] == [(0, 1000), (1, 1001)]
    assert qmp.execute("query-migrate") == {}


def test_run_state_events_before_answers(qmp):
    qmp.send(b'{"execute":"cont","id":1}')
    first, second = qmp.read(), qmp.read()
    assert first["event"] == "RESUME"
    assert abs(first["timestamp"]["seconds"] - time.time()) < 5
    assert 0 <= first["timestamp"]["microseconds"] < 1000000
    assert second == {"return": {}, "id": 1}
    assert qmp.execute("query-status") == {"status": "running", "running": True}
    qmp.execute("stop")
    qmp.execute("stop")
    assert [e["event"] for e in qmp.events] == ["STOP"]
    qmp.execute("system_reset")
    assert qmp.event("RESET")["data"] == {"guest": False, "reason": "host-qmp-system-reset"}
    qmp.execute("system_powerdown")
    assert qmp.event("POWERDOWN")
    with pytest.raises(QmpError, match="not in doubt"):
        qmp.execute("x-migrate-resolve", owner="here")


def test_answers_in_order_while_a_job_runs(qmp):
    """`cont` takes 30 ms; what was sent after it is answered after it."""
    qmp.send(b'{"execute":"cont","id":0}' +
             b"".join(b'{"execute":"query-status","id":%d}' % i for i in range(1, 40)))
    answers = [qmp.answer() for _ in range(40)]
    assert [a["id"] for a in answers] == list(range(40))
    assert all(a["return"]["running"] for a in answers[1:])


def test_oob_overtakes(server):
    with Qmp(server.path, oob=True) as qmp:
        qmp.send(b'{"execute":"cont","id":0}{"exec-oob":"query-status","id":1}')
        assert [qmp.answer()["id"] for _ in range(2)] == [1, 0]
        assert "does not support OOB" in refusal(qmp, {"exec-oob": "stop"}).desc


def test_job_does_not_hold_other_clients(server, qmp):
    with Qmp(server.path) as other:
        qmp.send(b'{"execute":"system_reset"}' * 4)
        start = time.monotonic()
        other.execute("query-status")
        assert time.monotonic() - start < 0.025
        for _ in range(4):
            assert qmp.answer() == {"return": {}}


def test_schema_is_complete(qmp):
    schema = qmp.execute("query-qmp-schema")
    by_name = {}
    for entry in schema:
        assert by_name.setdefault(entry["name"], entry) is entry
    commands = {e["name"] for e in schema if e["meta-type"] == "command"}
    events = {e["name"] for e in schema if e["meta-type"] == "event"}
    assert commands == {c["name"] for c in qmp.execute("query-commands")}
    assert events == {e["name"] for e in qmp.execute("query-events")}
    assert events == {"STOP", "RESUME", "RESET", "SHUTDOWN", "POWERDOWN", "MIGRATION",
                      "MIGRATION_PASS"}
    assert commands == set("""
        qmp_capabilities query-version query-status query-name query-uuid query-cpus-fast
        query-memory-size-summary query-commands query-qmp-schema query-events query-kvm stop cont
        calc-dirty-rate query-dirty-rate set-vcpu-dirty-limit cancel-vcpu-dirty-limit
        query-vcpu-dirty-limit system_reset system_powerdown quit migrate migrate-incoming migrate_cancel
        migrate-continue query-migrate migrate-set-parameters query-migrate-parameters
        migrate-set-capabilities query-migrate-capabilities getfd closefd
        x-migrate-resolve""".split())
    for entry in schema:
        kind = entry["meta-type"]
        if kind == "command":
            assert by_name[entry["arg-type"]]["meta-type"] == "object"
            assert entry["ret-type"] in by_name
        elif kind == "event":
            assert by_name[entry["arg-type"]]["meta-type"] == "object"
        elif kind == "array":
            assert entry["element-type"] in by_name
        elif kind == "object":
            assert all(m["type"] in by_name for m in entry["members"])
            for variant in entry.get("variants", []):
                assert by_name[variant["type"]]["meta-type"] == "object"
        elif kind == "enum":
            assert [m["name"] for m in entry["members"]] == entry["values"]
        else:
            assert kind == "builtin" and "json-type" in entry
    members = {m["name"]: m for m in by_name[by_name["migrate"]["arg-type"]]["members"]}
    assert members["uri"] == {"name": "uri", "type": "str", "default": None}


def check_type(by_name, type_name, value, path):
    """The value fits the type that query-qmp-schema declares for it."""
    entry = by_name[type_name]
    kind = entry["meta-type"]
    if kind == "object":
        members = list(entry["members"])
        while "tag" in entry:
            case = [v for v in entry["variants"] if v["case"] == value[entry["tag"]]]
            entry = by_name[case[0]["type"]]
            members += entry["members"]
        names = {m["name"] for m in members}
        assert set(value) <= names, f"{path}: {set(value) - names}"
        for m in members:
            if m["name"] in value:
                check_type(by_name, m["type"], value[m["name"]], f"{path}.{m['name']}")
            else:
                assert "default" in m, f"{path}: {m['name']} is missing"
    elif kind == "array":
        for i, item in enumerate(value):
            check_type(by_name, entry["element-type"], item, f"{path}[{i}]")
    elif kind == "enum":
        assert value in entry["values"], path
    else:
        python = {"string": str, "int": int, "boolean": bool, "number": (int, float)}
        assert isinstance(value, python[entry["json-type"]]), path


def test_answers_fit_the_schema(qmp):
    schema = qmp.execute("query-qmp-schema")
    by_name = {e["name"]: e for e in schema}
    qmp.execute("migrate", uri="unix:/ok")
    qmp.event("MIGRATION")
    for entry in schema:
        if entry["meta-type"] == "command" and entry["name"].startswith("query-"):
            if entry["name"] == "query-qmp-schema":
                continue
            check_type(by_name, entry["ret-type"], qmp.execute(entry["name"]), entry["name"])
    while qmp.event("MIGRATION")["data"]["status"] != "completed":
        pass
    check_type(by_name, by_name["query-migrate"]["ret-type"], qmp.execute("query-migrate"),
               "query-migrate")


THROTTLE = {"throttle-trigger-threshold": 50, "cpu-throttle-initial": 20, "cpu-throttle-increment": 10,
            "max-cpu-throttle": 99, "cpu-throttle-tailslow": False}


def test_parameters_and_capabilities(qmp):
    assert qmp.execute("query-migrate-parameters") == {
        "downtime-limit": 300, "max-bandwidth": 0, "x-switchover-timeout": 5000, **THROTTLE}
    qmp.execute("migrate-set-parameters", **{"downtime-limit": 5})
    qmp.execute("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
    assert qmp.execute("query-migrate-parameters") == {
        "downtime-limit": 5, "max-bandwidth": 1 << 40, "x-switchover-timeout": 5000, **THROTTLE}
    qmp.execute("migrate-set-capabilities",
                capabilities=[{"capability": "pause-before-switchover", "state": True}])
    states = {c["capability"]: c["state"] for c in qmp.execute("query-migrate-capabilities")}
    assert states == {"auto-converge": False, "events": False, "pause-before-switchover": True, "return-path": True}


def test_migrate_with_inline_settings(qmp):
    answer = qmp.execute("migrate", detach=True, parameters={"downtime-limit": 7}, channels=[
        {"channel-type": "main",
         "addr": {"transport": "socket", "type": "unix", "path": "/ok"}}],
        capabilities=[{"capability": "events", "state": True}])
    assert answer == {}
    assert qmp.execute("query-migrate-parameters")["downtime-limit"] == 7
    with pytest.raises(QmpError, match="There's a migration process in progress"):
        qmp.execute("migrate", uri="unix:/ok")
    seen = []
    while not seen or seen[-1] != "completed":
        seen.append(qmp.event("MIGRATION")["data"]["status"])
    assert seen == ["setup", "active", "completed"]
    info = qmp.execute("query-migrate")
    assert info["status"] == "completed"
    assert info["switchover-us"] == {"stop": 40, "harvest": 30, "memory": 200, "state": 60,
                                     "wire": 70, "load": 50, "resume": 10, "total": 460}
    assert info["ram"]["transferred"] == 250000000
    assert info["ram"]["mbps"] == pytest.approx(2000)
    assert info["phase"] == "done" and info["downtime"] == 0
    assert info["blocked-reasons"] == ["the guest runs elsewhere since its last move"]
    with pytest.raises(QmpError, match="runs elsewhere"):
        qmp.execute("cont")


def test_inline_settings_go_back_when_the_move_cannot_start(qmp):
    with pytest.raises(QmpError, match="no port"):
        qmp.execute("migrate", uri="tcp:bad", parameters={"downtime-limit": 9})
    assert qmp.execute("query-migrate-parameters")["downtime-limit"] == 300
    with pytest.raises(QmpError, match="cannot be switched off"):
        qmp.execute("migrate", uri="unix:/ok", parameters={"downtime-limit": 9},
                    capabilities=[{"capability": "return-path", "state": False}])
    assert qmp.execute("query-migrate-parameters")["downtime-limit"] == 300
    assert qmp.execute("query-migrate") == {}


def test_check_answers_when_it_is_over(server, qmp):
    start = time.monotonic()
    assert qmp.execute("migrate", uri="unix:/ok", check=True) == {"accepted": True}
    with pytest.raises(QmpError, match="the source has 1 GiB, this machine 512 MiB"):
        qmp.execute("migrate", uri="unix:/refused", check=True)
    assert time.monotonic() - start < 5
    # A client that goes away during its check.
    gone = Qmp(server.path)
    gone.send(b'{"execute":"migrate","arguments":{"uri":"unix:/slow","check":true}}')
    time.sleep(0.05)
    gone.close()
    time.sleep(0.05)
    qmp.execute("migrate_cancel")
    while qmp.event("MIGRATION")["data"]["status"] != "cancelled":
        pass
    assert qmp.execute("migrate", uri="unix:/ok", check=True) == {"accepted": True}


def test_cancel(qmp):
    qmp.execute("migrate_cancel")
    qmp.execute("migrate", uri="unix:/slow")
    time.sleep(0.1)
    info = qmp.execute("query-migrate")
    assert info["status"] == "active" and info["phase"] == "rounds" and info["converging"]
    assert info["last-progress-ms"] < 5000
    qmp.execute("migrate_cancel")
    while qmp.event("MIGRATION")["data"]["status"] != "cancelled":
        pass
    assert qmp.execute("query-migrate")["status"] == "cancelled"


def test_exec_channel(tmp_path):
    server = Server(tmp_path, "--allow-exec")
    with Qmp(server.path) as qmp:
        exec_address = {"transport": "exec", "args": []}
        channels = [{"channel-type": "main", "addr": exec_address}]
        with pytest.raises(QmpError, match="holds no command"):
            qmp.execute("migrate", channels=channels)
        exec_address["args"] = ["/bin/sh", "-c", "cat >x"]
        qmp.execute("migrate", channels=channels)
        while qmp.event("MIGRATION")["data"]["status"] != "completed":
            pass
    server.quit()


def test_incoming_defer(tmp_path):
    server = Server(tmp_path, "--incoming", "defer")
    with Qmp(server.path) as qmp:
        assert qmp.execute("query-status")["status"] == "inmigrate"
        qmp.execute("migrate-incoming", uri="tcp:[::1]:4444")
        info = qmp.execute("query-migrate")
        assert info["socket-address"] == [{"type": "inet", "host": "::1", "port": "4444"}]
        assert info["incoming"] and info["status"] == "setup"
        with pytest.raises(QmpError, match="already been started"):
            qmp.execute("migrate-incoming", uri="tcp:[::1]:4444")
    server.quit()


def send_fds(qmp, data, *fds):
    qmp.socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def test_getfd_hands_the_descriptor_over(server, qmp):
    reader, writer = os.pipe()
    os.write(writer, b"through the pipe")
    os.close(writer)
    send_fds(qmp, b'{"execute":"getfd","arguments":{"fdname":"mig"}}', reader)
    assert qmp.answer() == {"return": {}}
    os.close(reader)
    qmp.execute("migrate", uri="fd:mig")
    while qmp.event("MIGRATION")["data"]["status"] != "failed":
        pass
    assert qmp.execute("query-migrate")["error-desc"] == "through the pipe"
    with pytest.raises(QmpError, match="not found"):
        qmp.execute("closefd", fdname="mig")
    # A blank carries the descriptor, as some clients do; then it is closed by name.
    with open("/dev/null") as null:
        send_fds(qmp, b" ", null.fileno())
        with pytest.raises(QmpError, match="not starting with a digit"):
            qmp.execute("getfd", fdname="1x")
        send_fds(qmp, b" ", null.fileno())
        qmp.execute("getfd", fdname="n")
    qmp.execute("closefd", fdname="n")


def test_stray_descriptors_are_bounded_and_closed(server):
    folder = f"/proc/{server.process.pid}/fd"
    before = len(os.listdir(folder))
    with Qmp(server.path) as qmp, open("/dev/null") as null:
        for _ in range(100):
            send_fds(qmp, b" ", null.fileno(), null.fileno(), null.fileno())
            qmp.execute("query-name")
        assert len(os.listdir(folder)) <= before + 10
        send_fds(qmp, b" ", *[null.fileno()] * 100)
        qmp.execute("query-name")
        assert len(os.listdir(folder)) <= before + 10
        qmp.raw(b'{"execute":"getfd","arguments":{"fdname":"kept"}}')
    end = time.monotonic() + 5
    while len(os.listdir(folder)) != before + 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(os.listdir(folder)) == before + 1  # only the named one


def memory_kib(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return int([line for line in status if line.startswith("VmRSS")][0].split()[1])


def answer_times(server, seconds):
    times = []
    with Qmp(server.path) as qmp:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.monotonic()
            qmp.execute("query-migrate")
            times.append(time.monotonic() - start)
            time.sleep(0.005)
    return times


def test_hostile_clients_disturb_nobody(server):
    before = memory_kib(server)
    clients = []
    for kind in range(12):
        client = Qmp(server.path)
        client.socket.setblocking(False)
        clients.append(client)
        try:
            if kind % 4 == 0:  # half a line
                client.send(b'{"execute":"quer')
            elif kind % 4 == 1:  # vanishes in the middle
                client.send(b'{"execute":"cont"}{"exe')
                client.close()
            elif kind % 4 == 2:  # never reads, asks for ever
                while True:
                    client.socket.send(b'{"execute":"query-qmp-schema"}' * 100)
            else:  # opens brackets for ever
                while True:
                    client.socket.send(b'{"a":[' * 1000)
        except BlockingIOError:
            pass
    times = answer_times(server, 1.0)
    assert statistics.median(times) < 0.01
    assert max(times) < 0.2
    assert SANITIZED or memory_kib(server) - before < 16 * 1024
    for client in clients:
        client.close()
    assert len(answer_times(server, 0.1)) > 3


def test_100_mb_without_a_newline(server, qmp):
    before = memory_kib(server)
    chunk = b"a" * (1 << 20)
    qmp.send(b'{"execute":"')
    for _ in range(100):
        qmp.send(chunk)
    qmp.send(b'\n{"execute":"query-name"}')
    assert qmp.answer()["error"]["desc"] == "JSON parse error, a value is larger than 1 MiB"
    assert qmp.answer() == {"return": {"name": "fake"}}
    assert SANITIZED or memory_kib(server) - before < 8 * 1024


def test_client_that_does_not_read_events_is_dropped(server):
    silent = Qmp(server.path)
    with Qmp(server.path) as qmp:
        for _ in range(20):
            os.kill(server.process.pid, signal.SIGUSR1)
            for _ in range(2000):
                assert qmp.read()["event"] == "MIGRATION_PASS"
        assert qmp.execute("query-name") == {"name": "fake"}
    count = 0
    while True:  # it gets what was written for it, then the end
        try:
            if silent.read() is None:
                break
        except ConnectionResetError:
            break
        count += 1
    assert count < 40000


def test_half_closed_client_gets_its_answers(server):
    with Qmp(server.path) as qmp:
        qmp.send(b'{"execute":"cont","id":1}{"execute":"query-status","id":2}')
        qmp.socket.shutdown(socket.SHUT_WR)
        assert qmp.answer()["id"] == 1
        assert qmp.answer()["return"]["running"] is True
        assert qmp.read() is None


def test_too_many_clients_are_told(server):
    clients = [Qmp(server.path) for _ in range(64)]
    extra = Qmp(server.path, negotiate=False)
    assert "64 control clients" in extra.greeting["error"]["desc"]
    assert extra.read() is None
    for client in clients:
        client.close()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with Qmp(server.path, negotiate=False) as qmp:
            if "QMP" in qmp.greeting:
                break
    assert "QMP" in qmp.greeting


def test_out_of_descriptors(server):
    import resource
    pid = server.process.pid
    used = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 2, 4096))
    clients = []
    told = False
    for _ in range(5):
        client = Qmp(server.path, negotiate=False)
        told = told or "no file descriptor left" in json.dumps(client.greeting)
        clients.append(client)
    assert told
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, 4096))
    assert clients[0].execute("qmp_capabilities") == {}
    for client in clients:
        client.close()


def test_several_sockets(tmp_path):
    server = Server(tmp_path, sockets=3)
    clients = [Qmp(path) for path in server.paths]
    clients[0].execute("cont")
    assert all(c.event("RESUME") for c in clients)
    for client in clients:
        client.close()
    server.quit()


def start_refused(path):
    result = subprocess.run([SERVER, f"unix:{path}"], capture_output=True, text=True, timeout=10)
    assert result.returncode == 1
    return result.stderr


def test_socket_errors(server, tmp_path):
    assert stat.S_IMODE(os.stat(server.path).st_mode) == 0o600
    assert "another process listens there" in start_refused(server.path)
    assert "107 is the most" in start_refused(tmp_path / ("x" * 120))
    assert f"the folder '{tmp_path}/none' does not exist" in start_refused(tmp_path / "none" / "s")
    plain = tmp_path / "plain"
    plain.write_text("data")
    assert "exists and is no socket" in start_refused(plain)
    assert plain.read_text() == "data"
    assert server.path.exists()


def test_stale_socket_is_replaced(tmp_path):
    server = Server(tmp_path)
    server.process.kill()
    server.process.wait()
    assert server.path.exists()
    server = Server(tmp_path)
    assert server.ready
    # A socket file that is no longer ours is not removed.
    os.unlink(server.path)
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(server.path))
    server.process.kill()
    server.process.wait()
    other.close()


def test_quit_is_told_and_answered(server):
    with Qmp(server.path) as qmp, Qmp(server.path) as other:
        qmp.send(b'{"execute":"quit","id":9}')
        event = qmp.read()
        assert event["event"] == "SHUTDOWN"
        assert event["data"] == {"guest": False, "reason": "host-qmp-quit"}
        assert qmp.read() == {"return": {}, "id": 9}
        assert other.event("SHUTDOWN")
    assert server.process.wait(10) == 0
    assert server.process.stderr.read() == ""
    assert not server.path.exists()


def test_quit_while_jobs_run(server):
    with Qmp(server.path) as qmp, Qmp(server.path) as other:
        for _ in range(3):
            other.send(b'{"execute":"system_reset"}')
        qmp.execute("quit")
    assert server.process.wait(10) == 0
    assert server.process.stderr.read() == ""
