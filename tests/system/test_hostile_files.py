# SPDX-License-Identifier: Apache-2.0
"""Paths, limits and descriptors that a tired administrator gives: nothing of theirs is lost, nothing hangs."""
import contextlib
import os
import pty
import signal
import socket
import subprocess
import time

import pytest

import godwit
from godwit import QmpError

GUEST = ('--guest', 'stress,hot=4M,fill=8M,interval=20', '--memory', '64M')


def precious(folder):
    path = os.path.join(folder, 'precious')
    with open(path, 'w', encoding='ascii') as file:
        file.write('a letter\n')
    return path


@pytest.mark.parametrize('option, text', [
    (('--serial', 'unix:{}'), 'exists and is no socket'),
    (('--owner-record', '{}'), 'holds something else than an owner record'),
    (('--control', 'unix:{}'), 'exists and is no socket'),
])
def test_a_mistyped_path_costs_no_file(folder, option, text):
    path = precious(folder)
    result = godwit.run('run', *GUEST, *(word.format(path) for word in option), check=1)
    assert text in result.stderr and path in result.stderr
    with open(path, encoding='ascii') as file:
        assert file.read() == 'a letter\n'


def test_an_incoming_socket_costs_no_file(folder):
    path = precious(folder)
    assert 'exists and is no socket' in godwit.run('run', '--incoming', f'unix:{path}', check=1).stderr
    assert os.path.getsize(path) == len('a letter\n')


def test_owner_record_that_a_full_disk_left_empty_is_used(machine, folder):
    path = os.path.join(folder, 'record')
    with open(path, 'wb'):
        pass
    vm = machine(*GUEST, '--owner-record', path)
    assert vm.qmp.execute('query-status')['status'] == 'running'
    with open(path, 'rb') as file:
        assert file.read(8) == b'GODWITOR'


def test_serial_to_a_fifo_without_a_reader(machine, folder):
    path = os.path.join(folder, 'fifo')
    os.mkfifo(path)
    vm = machine(*GUEST, '--serial', path)
    assert vm.qmp.execute('query-status')['status'] == 'running'
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    def report():
        with contextlib.suppress(BlockingIOError):
            return b'sweeps=' in os.read(reader, 4096)

    try:
        godwit.wait_until(report, 'a report in the FIFO')
    finally:
        os.close(reader)
    vm.process.terminate()
    assert vm.wait(5) == 0


def test_serial_to_a_terminal_that_is_held(folder):
    """Nobody reads the other end: the terminal fills, the guest runs on, and the process ends when told."""
    outside, inside = pty.openpty()
    control = os.path.join(folder, 'control')
    process = subprocess.Popen([godwit.binary(), 'run', '--guest', 'stress,hot=1M,fill=2M,interval=1', '--memory', '64M',
                                '--serial', 'stdio', '--control', f'unix:{control}'],
                               stdin=subprocess.DEVNULL, stdout=inside, stderr=subprocess.DEVNULL,
                               env=dict(os.environ, XDG_RUNTIME_DIR=folder))
    try:
        time.sleep(3)  # far more than a terminal takes
        process.terminate()
        assert process.wait(5) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
        os.close(inside)
        os.close(outside)


def test_serial_file_at_its_size_limit(machine, folder):
    path = os.path.join(folder, 'serial')
    vm = machine(*GUEST, '--serial', path, '--owner-record', 'off', wrapper=['prlimit', '--fsize=2000'])
    godwit.wait_until(lambda: 'its output is dropped until there is room' in vm.stderr, 'a word about it')
    assert vm.qmp.execute('query-status') == {'status': 'running', 'running': True}
    assert os.path.getsize(path) == 2000
    with open(path, 'wb'):
        pass  # as logrotate does: there is room again
    godwit.wait_until(lambda: os.path.getsize(path) > 0, 'output after the file was emptied')
    assert vm.stderr.count('cannot write') <= 2


@pytest.mark.parametrize('limit', range(6, 20))
def test_few_descriptors_are_said(folder, limit):
    try:
        result = godwit.run('run', *GUEST, env=dict(os.environ, XDG_RUNTIME_DIR=folder), timeout=2,
                            preexec_fn=lambda: __import__('resource').setrlimit(
                                __import__('resource').RLIMIT_NOFILE, (limit, limit)))
    except subprocess.TimeoutExpired:
        return  # it was enough
    assert result.returncode == 1
    assert 'oo many open files' in result.stderr


def test_incoming_descriptor_by_number(machine, folder):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        source = machine(*GUEST, serial=True)
        source.serial.wait('sweeps')
        control = os.path.join(folder, 'b.control')
        process = subprocess.Popen([godwit.binary(), 'run', '--incoming', f'fd:{theirs.fileno()}', '--control',
                                    f'unix:{control}'], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, env=dict(os.environ, XDG_RUNTIME_DIR=folder))
        theirs.close()
        try:
            source.qmp.execute('getfd', descriptor=ours.fileno(), fdname='move')
            ours.close()
            source.qmp.execute('migrate', uri='fd:move')
            assert source.qmp.wait_migration()['status'] == 'completed'
            with godwit.Qmp(control) as qmp:
                qmp.wait_state('running')
                qmp.execute('quit')
            assert process.wait(10) == 0
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=10)


@pytest.mark.parametrize('number', ['99', '-1', 'x', '0x', ''])
def test_incoming_descriptor_that_is_none(number):
    result = godwit.run('run', '--incoming', f'fd:{number}', check=1)
    assert 'was not handed to this process' in result.stderr or "nothing follows 'fd:'" in result.stderr


def test_a_listening_socket_is_no_channel(machine, folder):
    vm = machine(*GUEST)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.join(folder, 'listener'))
        listener.listen()
        vm.qmp.execute('getfd', descriptor=listener.fileno(), fdname='one')
    try:
        vm.qmp.execute('migrate', uri='fd:one')
    except QmpError as error:
        assert 'no connected stream socket' in error.desc
        return
    info = vm.qmp.wait_migration()
    assert info['status'] == 'failed' and 'no connected stream socket' in info['error-desc']
    assert vm.qmp.execute('query-status')['status'] == 'running'


def test_exec_leaves_no_process(machine, folder):
    vm = machine(*GUEST, '--allow-exec')
    mark = os.path.join(folder, 'pids')
    vm.qmp.execute('migrate', uri=f'exec:sleep 300 & echo $! >{mark}; sleep 300')
    pid = godwit.wait_until(lambda: os.path.exists(mark) and open(mark, encoding='ascii').read().strip(), 'the command')
    vm.qmp.execute('migrate_cancel')
    assert vm.qmp.wait_migration()['status'] == 'cancelled'
    godwit.wait_until(lambda: not godwit.alive(int(pid)), 'the end of what the shell started')
    godwit.wait_until(lambda: godwit.children(vm.pid) == [], 'the end of the shell')


def test_exec_sees_the_end_of_its_pipe(machine, folder):
    """SIGPIPE ends a command as it does in a shell; the process itself ignores it."""
    vm = machine(*GUEST, '--allow-exec')
    said = os.path.join(folder, 'said')
    vm.qmp.execute('migrate', uri=f'exec:grep SigIgn /proc/self/status >{said}')
    assert vm.qmp.wait_migration()['status'] == 'failed'
    with open(said, encoding='ascii') as file:
        assert int(file.read().split()[1], 16) & 1 << (signal.SIGPIPE - 1) == 0
