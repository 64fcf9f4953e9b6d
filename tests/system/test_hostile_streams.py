# SPDX-License-Identifier: Apache-2.0
"""Hostile migration peers, with real processes."""
import contextlib
import os
import socket
import threading
import time

import pytest

import godwit

GUEST = ('--guest', 'stress,hot=2M,fill=8M,interval=100', '--memory', '64M')


class Recorder(threading.Thread):
    """Passes one connection on, and keeps what the source sent."""

    def __init__(self, path, target):
        super().__init__(daemon=True)
        self.target, self.data = target, bytearray()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.start()

    def pump(self, one, other, keep):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if keep:
                    self.data += data
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def run(self):
        with self.listener, self.listener.accept()[0] as source, socket.socket(socket.AF_UNIX) as destination:
            destination.connect(self.target)
            back = threading.Thread(target=self.pump, args=(destination, source, False), daemon=True)
            back.start()
            self.pump(source, destination, True)
            back.join(10)


def play(path, data):
    """Sends it all, reads what comes, until the other side closes."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        peer.settimeout(10)

        def read():
            with contextlib.suppress(OSError):
                while peer.recv(1 << 16):
                    pass

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        with contextlib.suppress(OSError):
            peer.sendall(data)
        reader.join(10)


def test_a_stream_played_again_gives_no_second_guest(machine, folder):
    source = machine(*GUEST, serial=True)
    source.serial.wait('sweeps')
    owner = machine('--incoming', f'unix:{folder}/b')
    recorder = Recorder(f'{folder}/wire', f'{folder}/b')
    assert source.migrate(f'unix:{folder}/wire')['status'] == 'completed'
    recorder.join(10)
    fresh = machine('--incoming', f'unix:{folder}/c')
    play(f'{folder}/c', bytes(recorder.data))
    assert fresh.wait(10) == 1
    assert 'another process than the source runs this guest already' in fresh.stderr
    assert owner.qmp.execute('query-status')['status'] == 'running'


@pytest.mark.parametrize('data', [b'', b'GET / HTTP/1.1\r\n\r\n', b'\0' * 65536, b'\xff' * 65536, os.urandom(65536)],
                         ids=['nothing', 'http', 'zeros', 'ones', 'random'])
def test_a_stranger_does_not_end_the_wait(machine, folder, data):
    destination = machine('--incoming', f'unix:{folder}/move')
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(f'{folder}/move')
            with contextlib.suppress(OSError):
                stranger.sendall(data)
    source = machine(*GUEST, serial=True)
    source.serial.wait('sweeps')
    assert source.migrate(f'unix:{folder}/move')['status'] == 'completed'
    destination.qmp.wait_state('running')


def test_two_sources_for_one_destination(machine, folder):
    sources = [machine(*GUEST, serial=True) for _ in range(2)]
    for source in sources:
        source.serial.wait('sweeps')
    destination = machine('--incoming', f'unix:{folder}/move')
    for source in sources:
        source.qmp.execute('migrate', uri=f'unix:{folder}/move')
    ends = sorted(source.qmp.wait_migration()['status'] for source in sources)
    assert ends == ['completed', 'failed']
    destination.qmp.wait_state('running')
    for source in sources:
        moved = source.qmp.execute('query-migrate')['status'] == 'completed'
        assert source.qmp.execute('query-status')['status'] == ('postmigrate' if moved else 'running')
        if not moved:
            assert source.serial.next('sweeps')['wrong'] == 0


@pytest.mark.parametrize('answer', [b'', b'\xff' * 4096, os.urandom(4096)], ids=['nothing', 'ones', 'random'])
def test_a_lying_destination_harms_no_source(machine, folder, answer):
    source = machine(*GUEST, serial=True)
    source.serial.wait('sweeps')
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f'{folder}/evil')
        listener.listen()
        source.qmp.execute('migrate', uri=f'unix:{folder}/evil')
        with listener.accept()[0] as peer:
            with contextlib.suppress(OSError):
                peer.sendall(answer)
            time.sleep(0.05)
    info = source.qmp.wait_migration()
    assert info['status'] == 'failed' and info['error-desc']
    assert source.qmp.execute('query-status')['status'] == 'running'
    assert source.serial.next('sweeps')['wrong'] == 0
