# SPDX-License-Identifier: Apache-2.0
"""The helpers themselves, where a fault in them would let other tests pass."""
import os
import socket
import subprocess
import threading

import pytest

import godwit


def test_serial_lines():
    parse = godwit.Serial.parse
    assert parse('godwit-guest interval=3 sweeps=12 wrong=0x10 mode=stress') == {
        'kind': 'interval', 'interval': 3, 'sweeps': 12, 'wrong': 16, 'mode': 'stress'}
    assert parse('godwit-guest move moves=1 pause-us=700') == {'kind': 'move', 'moves': 1, 'pause-us': 700}
    assert parse('godwit-guest error no memory left') == {'kind': 'error', 'text': 'no memory left'}
    assert parse('Linux version 6.1') is None
    assert parse('') is None


def server(path, chunks):
    """A one-connection server that sends chunks, each after a read."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)

    def serve():
        connection, _ = listener.accept()
        for chunk in chunks:
            connection.sendall(chunk)
            connection.recv(65536)
        connection.close()
        listener.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_qmp_client_splits_and_keeps_events(folder):
    path = os.path.join(folder, 'q')
    thread = server(path, [
        b'{"QMP": {}}',
        b'{"event": "STOP", "timestamp": {}}{"return": {}, "id": 1} {"event":',
        b' "RESUME", "data": {"a": "b"}}\r\n{"id": 2, "error": {"class": "GenericError", "desc": "no"}}',
    ])
    with godwit.Qmp(path, timeout=5) as qmp:
        assert qmp.greeting == {'QMP': {}}
        with pytest.raises(godwit.QmpError) as caught:
            qmp.execute('cont')
        assert caught.value.kind == 'GenericError' and caught.value.desc == 'no'
        assert qmp.event('RESUME', a='b', timeout=1)['data'] == {'a': 'b'}
        assert qmp.event('STOP', timeout=1)['event'] == 'STOP'
        with pytest.raises(TimeoutError):
            qmp.event('STOP', timeout=0.1)
        qmp.send(b'{}')
        assert qmp.read() is None
    thread.join(5)


def test_children_and_alive():
    child = subprocess.Popen(['sleep', '60'])
    try:
        assert child.pid in godwit.children(os.getpid())
        assert godwit.alive(child.pid)
        assert godwit.descriptor_count(child.pid) >= 3
        assert godwit.resident_bytes(child.pid) > 0
    finally:
        child.kill()
    godwit.wait_until(lambda: not godwit.alive(child.pid), 'the end of a killed process')
    child.wait()
    assert child.pid not in godwit.children(os.getpid())
