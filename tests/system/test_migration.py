# SPDX-License-Identifier: Apache-2.0
"""Live migration with real guests: two processes, the built-in guest's own check as the proof."""
import os
import re
import signal
import socket
import threading
import time

import pytest

import godwit
from godwit import Machine, QmpError

MOVES = int(os.environ.get('GODWIT_MOVES', '12'))
GUEST = ('--guest', 'stress,hot=8M,fill=48M,interval=100', '--memory', '128M')


def guest_check(vm, timeout=30):
    """The guest reads back every word it ever wrote: (wrong words, words read)."""
    seen = len(vm.serial.reports)
    vm.serial.send('c')
    report = vm.serial.wait(lambda r: r['kind'] == 'check' and 'wrong' in r, after=seen, timeout=timeout)
    return report['wrong'], report['words']


def assert_alive_and_right(vm):
    """The guest works, and all its memory is what it wrote."""
    vm.serial.next('sweeps')
    wrong, words = guest_check(vm)
    assert wrong == 0
    assert words >= 48 * 1024 * 1024 // 8


def ready(vm):
    return vm.serial.wait(lambda r: r['kind'] == 'ready')


def move(machine, source, number, uri=None, arguments=(), check=True):
    """Moves the guest to a new process, which is returned; the source has ended."""
    uri = uri or f'unix:{source.folder}/move{number}'
    destination = machine('--incoming', uri, *arguments, serial=True, name=f'n{number}')
    info = source.migrate(uri)
    assert info['status'] == 'completed', info
    assert source.qmp.execute('query-status')['status'] == 'postmigrate'
    assert destination.qmp.execute('query-status') == {'status': 'running', 'running': True}
    source.qmp.execute('quit')
    assert source.wait() == 0
    return destination, info


@pytest.mark.seconds(120)
def test_a_move_keeps_every_word_and_tells_its_account(machine):
    source = machine(*GUEST, serial=True)
    ready(source)
    destination, info = move(machine, source, 1)
    assert_alive_and_right(destination)
    account = info['switchover-us']
    assert set(account) == {'stop', 'harvest', 'memory', 'state', 'wire', 'load', 'resume', 'total'}
    parts = sum(value for name, value in account.items() if name != 'total')
    assert 0 < account['total'] and parts <= account['total'] * 1.2 + 200
    assert account['load'] > 0 and account['stop'] > 0
    ram = info['ram']
    assert ram['total'] == 128 << 20
    assert ram['transferred'] > 50 << 20
    assert ram['untouched'] * 4096 > 60 << 20  # 128 MiB, of which about 60 were touched
    assert ram['remaining'] == 0 and ram['dirty-sync-count'] >= 1
    moved = destination.serial.wait(lambda r: r['kind'] == 'move')
    assert moved['moves'] == 1 and moved['pause-us'] > 0
    assert destination.qmp.execute('query-migrate')['guest-pause-us'] == moved['pause-us']


@pytest.mark.seconds(60 + 10 * MOVES)
def test_to_and_fro(machine, folder):
    """Many moves with two vCPUs writing: no wrong word, nothing left behind, nothing that grows."""
    vm = machine('--guest', 'stress,hot=8M,fill=48M,interval=100,cpus=2', '--memory', '128M', '--cpus', '2',
                 serial=True)
    ready(vm)
    descriptors, resident, threads = [], [], []
    for number in range(MOVES):
        vm, _ = move(machine, vm, number)
        vm.serial.next('sweeps')
        time.sleep(0.05)  # the engine's clean-up after the guest runs is not waited for
        descriptors.append(godwit.descriptor_count(vm.pid))
        threads.append(godwit.thread_count(vm.pid))
        resident.append(godwit.resident_bytes(vm.pid))
    assert_alive_and_right(vm)
    assert len(set(descriptors)) == 1, descriptors
    assert len(set(threads)) == 1, threads
    assert max(resident) < 1.1 * min(resident), resident
    left = sorted(name for name in os.listdir(folder) if not name.endswith('.stderr'))
    assert [name for name in left if not name.startswith(vm.name)] in ([], ['godwit']), left
    assert len(os.listdir(os.path.join(folder, 'godwit'))) == 1  # one owner record: the living one's


def test_failed_moves_leak_nothing(machine, folder):
    source = machine(*GUEST, serial=True)
    ready(source)

    def fail():
        listener = socket.socket(socket.AF_UNIX)
        path = os.path.join(folder, 'rude')
        listener.bind(path)
        listener.listen()
        source.qmp.execute('migrate', uri=f'unix:{path}')
        connection, _ = listener.accept()
        connection.recv(16)
        connection.close()
        info = source.qmp.wait_migration()
        listener.close()
        os.unlink(path)
        assert info['status'] == 'failed' and 'closed the connection' in info['error-desc']

    fail()
    time.sleep(0.1)
    before = godwit.descriptor_count(source.pid), godwit.thread_count(source.pid)
    for _ in range(20):
        fail()
    time.sleep(0.1)
    assert (godwit.descriptor_count(source.pid), godwit.thread_count(source.pid)) == before
    destination, _ = move(machine, source, 1)
    assert_alive_and_right(destination)


@pytest.mark.parametrize('backing', ['private', 'shared'])
def test_backings_and_memory_that_was_never_touched(machine, backing):
    source = machine('--guest', 'stress,hot=4M,fill=16M,interval=100', '--memory', '512M',
                     '--memory-backing', backing, serial=True)
    ready(source)
    destination, info = move(machine, source, 1)
    wrong, _ = guest_check(destination)
    assert wrong == 0
    assert info['ram']['untouched'] * 4096 > 400 << 20
    assert godwit.resident_bytes(destination.pid) < 120 << 20


def test_memory_above_the_hole(machine):
    source = machine('--guest', 'stress,hot=8M,fill=16M,top=1,interval=100', '--memory', '3200M', serial=True)
    ready(source)
    destination, _ = move(machine, source, 1)
    assert guest_check(destination)[0] == 0
    assert destination.qmp.execute('query-memory-size-summary') == {'base-memory': 3200 << 20, 'plugged-memory': 0}


def test_paused_guest_moves_and_stays_paused(machine, folder):
    source = machine(*GUEST, serial=True)
    ready(source)
    source.qmp.execute('stop')
    uri = f'unix:{folder}/m'
    destination = machine('--incoming', uri, serial=True)
    assert source.migrate(uri)['status'] == 'completed'
    assert destination.qmp.execute('query-status') == {'status': 'paused', 'running': False}
    destination.qmp.execute('cont')
    assert_alive_and_right(destination)


def test_source_refuses_to_run_after_the_move(machine):
    source = machine(*GUEST, serial=True)
    ready(source)
    uri = f'unix:{source.folder}/m'
    machine('--incoming', uri, serial=True)
    source.migrate(uri)
    for command in ('cont', 'system_reset'):
        with pytest.raises(QmpError):
            source.qmp.execute(command)
    assert source.qmp.execute('query-status')['status'] == 'postmigrate'
    with pytest.raises(QmpError, match='elsewhere'):
        source.qmp.execute('migrate', uri=uri)


@pytest.mark.parametrize('option, value, names', [
    ('--memory', '256M', ('memory', '128 MiB', '256 MiB')),
    ('--cpus', '3', ('cpu', '1', '3')),
    ('--memory-backing', 'shared', ('memory', 'shared', 'private')),
    ('--guest', 'stress,hot=1M', ('guest',)),
])
def test_destination_that_does_not_fit_refuses_by_name(machine, folder, option, value, names):
    source = machine(*GUEST, serial=True)
    ready(source)
    uri = f'unix:{folder}/m'
    destination = machine('--incoming', uri, option, value)
    info = source.migrate(uri)
    if option == '--memory-backing':
        # Where the memory lies is each host's own affair.
        assert info['status'] == 'completed'
        return
    assert info['status'] == 'failed'
    for name in names:
        assert name in info['error-desc'], info['error-desc']
    assert info['ram']['normal'] == 0  # before memory flowed
    assert destination.wait() == 1
    for name in names:
        assert name in destination.stderr
    assert source.qmp.execute('query-status')['status'] == 'running'
    assert_alive_and_right(source)


def test_precheck_harms_nobody(machine, folder):
    source = machine(*GUEST, serial=True)
    ready(source)
    uri = f'unix:{folder}/m'
    destination = machine('--incoming', uri, serial=True)
    answer = source.qmp.execute('migrate', uri=uri, check=True)
    assert answer['accepted'] is True
    assert destination.qmp.execute('query-status')['status'] == 'inmigrate'
    assert source.qmp.execute('query-status')['status'] == 'running'
    other = machine('--incoming', f'unix:{folder}/o', '--memory', '64M')
    with pytest.raises(QmpError, match='memory'):
        source.qmp.execute('migrate', uri=f'unix:{folder}/o', check=True)
    assert other.qmp.execute('query-status')['status'] == 'inmigrate'
    assert source.migrate(uri)['status'] == 'completed'
    assert_alive_and_right(destination)


def test_cancel_and_again(machine, folder):
    source = machine(*GUEST, serial=True)
    ready(source)
    uri = f'unix:{folder}/m'
    first = machine('--incoming', uri)
    source.qmp.execute('migrate-set-parameters', max_bandwidth=8 << 20)
    source.qmp.execute('migrate', uri=uri)
    source.qmp.wait_migration('active')
    with pytest.raises(QmpError, match='in progress'):
        source.qmp.execute('migrate', uri=uri)
    source.qmp.execute('migrate_cancel')
    assert source.qmp.wait_migration()['status'] == 'cancelled'
    assert first.wait() == 1
    assert source.qmp.execute('query-status')['status'] == 'running'
    source.qmp.execute('migrate-set-parameters', max_bandwidth=0)
    destination, _ = move(machine, source, 2)
    assert_alive_and_right(destination)


@pytest.mark.parametrize('delay', [0.0, 0.02, 0.05, 0.1, 0.2])
@pytest.mark.parametrize('who', ['source-cancels', 'destination-killed', 'destination-quits'])
def test_trouble_at_any_time_leaves_one_running_guest(machine, folder, who, delay):
    source = machine(*GUEST, serial=True)
    ready(source)
    uri = f'unix:{folder}/m'
    destination = machine('--incoming', uri, serial=True)
    source.qmp.execute('migrate', uri=uri)
    time.sleep(delay)
    if who == 'source-cancels':
        source.qmp.execute('migrate_cancel')
    elif who == 'destination-killed':
        destination.kill()
    else:
        destination.process.send_signal(signal.SIGTERM)
    info = source.qmp.wait_migration(timeout=40)
    state = source.qmp.execute('query-status')['status']
    if info['status'] == 'completed':
        # It came too late: the guest had moved.
        assert state == 'postmigrate'
        if who == 'source-cancels':
            assert_alive_and_right(destination)
    else:
        assert info['status'] == ('cancelled' if who == 'source-cancels' else 'failed'), info
        assert state == 'running'
        assert_alive_and_right(source)


def test_quit_in_the_middle(machine, folder):
    source = machine(*GUEST, serial=True)
    ready(source)
    uri = f'unix:{folder}/m'
    destination = machine('--incoming', uri)
    source.qmp.execute('migrate-set-parameters', max_bandwidth=8 << 20)
    source.qmp.execute('migrate', uri=uri)
    source.qmp.wait_migration('active')
    source.qmp.execute('quit')
    assert source.wait() == 0
    assert destination.wait() == 1
    assert re.search('gave up|closed the connection', destination.stderr)


@pytest.mark.parametrize('command', ['r', 'q'])
def test_reset_and_power_off_while_moving(machine, folder, command):
    source = machine(*GUEST, serial=True)
    ready(source)
    uri = f'unix:{folder}/m'
    destination = machine('--incoming', uri, serial=True)
    source.qmp.execute('migrate-set-parameters', max_bandwidth=20 << 20)
    source.qmp.execute('migrate', uri=uri)
    source.qmp.wait_migration('active')
    source.serial.send(command)
    if command == 'q':
        assert source.wait() == 0
        assert destination.wait() == 1
        return
    source.qmp.event('RESET')
    source.qmp.execute('migrate-set-parameters', max_bandwidth=0)
    assert source.qmp.wait_migration(timeout=40)['status'] == 'completed'
    destination.serial.next('sweeps')
    assert guest_check(destination)[0] == 0


def test_reset_after_a_move_boots_again(machine):
    source = machine(*GUEST, serial=True)
    ready(source)
    destination, _ = move(machine, source, 1)
    seen = len(destination.serial.reports)
    destination.qmp.execute('system_reset')
    destination.serial.wait(lambda r: r['kind'] == 'ready', after=seen)
    assert_alive_and_right(destination)


def test_tcp(machine):
    source = machine(*GUEST, serial=True)
    ready(source)
    destination = machine('--incoming', 'tcp:127.0.0.1:0', serial=True)
    address = destination.qmp.execute('query-migrate')['socket-address'][0]
    assert address['host'] == '127.0.0.1' and int(address['port']) > 0
    assert source.migrate(f'tcp:127.0.0.1:{address["port"]}')['status'] == 'completed'
    assert_alive_and_right(destination)


def test_tcp_beyond_loopback_needs_a_word(machine):
    source = machine(*GUEST)
    with pytest.raises(QmpError, match='--insecure'):
        source.qmp.execute('migrate', uri='tcp:192.0.2.1:4444')
    assert 'status' not in source.qmp.execute('query-migrate')


def test_fd(machine):
    source = machine(*GUEST, serial=True)
    ready(source)
    destination = machine('--incoming', 'defer', serial=True)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        source.qmp.execute('getfd', fdname='out', descriptor=ours.fileno())
        destination.qmp.execute('getfd', fdname='in', descriptor=theirs.fileno())
    destination.qmp.execute('migrate-incoming', uri='fd:in')
    assert source.migrate('fd:out')['status'] == 'completed'
    assert_alive_and_right(destination)
    with pytest.raises(QmpError, match="'out'"):
        destination.qmp.execute('migrate', uri='fd:out')


FORWARD = ("exec:/usr/bin/python3 -c 'import socket,threading,sys,os\n"
           "s=socket.socket(socket.AF_UNIX); s.connect(\"%s\")\n"
           "def up():\n"
           " while True:\n"
           "  d=os.read(0,1<<16)\n"
           "  if not d: break\n"
           "  s.sendall(d)\n"
           " s.shutdown(socket.SHUT_WR)\n"
           "threading.Thread(target=up,daemon=True).start()\n"
           "while True:\n"
           " d=s.recv(1<<16)\n"
           " if not d: break\n"
           " while d: d=d[os.write(1,d):]\n'")


def test_exec(machine, folder):
    uri = FORWARD % f'{folder}/m'
    refused = machine(*GUEST, name='plain')
    with pytest.raises(QmpError, match='--allow-exec'):
        refused.qmp.execute('migrate', uri=uri)
    refused.end()
    # Idle, since what forwards here is no fast channel.
    source = machine('--guest', 'idle,fill=48M,interval=100', '--memory', '128M', '--allow-exec', serial=True)
    ready(source)
    destination = machine('--incoming', f'unix:{folder}/m', serial=True)
    assert source.migrate(uri)['status'] == 'completed'
    assert_alive_and_right(destination)
    godwit.wait_until(lambda: not godwit.children(source.pid), 'the exec: command to be gone')


def test_max_bandwidth_holds(machine, folder):
    source = machine('--guest', 'idle,fill=60M,interval=100', '--memory', '128M', serial=True)
    ready(source)
    uri = f'unix:{folder}/m'
    machine('--incoming', uri)
    source.qmp.execute('migrate-set-parameters', max_bandwidth=50 << 20)
    info = source.migrate(uri)
    assert info['status'] == 'completed'
    assert 1000 < info['total-time'] < 3000, info['total-time']


def test_a_guest_that_does_not_converge_is_reported(machine, folder):
    source = machine('--guest', 'stress,hot=32M,fill=4M,interval=100', '--memory', '128M', serial=True)
    ready(source)
    uri = f'unix:{folder}/m'
    destination = machine('--incoming', uri, serial=True)
    source.qmp.execute('migrate-set-parameters', max_bandwidth=10 << 20, downtime_limit=5)
    source.qmp.execute('migrate', uri=uri)
    info = godwit.wait_until(
        lambda: (lambda i: i if i.get('converging') is False else None)(source.qmp.execute('query-migrate')),
        'non-convergence to be reported', timeout=50)
    assert info['status'] == 'active' and info['phase'] == 'rounds'
    assert info['expected-downtime'] > 5 and info['last-progress-ms'] < 2000
    source.qmp.execute('migrate-set-parameters', max_bandwidth=0, downtime_limit=300)
    assert source.qmp.wait_migration()['status'] == 'completed'
    assert guest_check(destination)[0] == 0


def test_pause_before_switchover(machine, folder):
    source = machine(*GUEST, serial=True)
    ready(source)
    uri = f'unix:{folder}/m'
    destination = machine('--incoming', uri, serial=True)
    source.qmp.execute('migrate-set-capabilities',
                       capabilities=[{'capability': 'pause-before-switchover', 'state': True}])
    source.qmp.execute('migrate', uri=uri)
    source.qmp.wait_migration('pre-switchover')
    time.sleep(1.5)
    assert source.qmp.execute('query-migrate')['status'] == 'pre-switchover'
    assert source.qmp.execute('query-status')['status'] == 'running'
    source.qmp.execute('migrate-continue', state='pre-switchover')
    assert source.qmp.wait_migration()['status'] == 'completed'
    assert_alive_and_right(destination)


def test_events_of_a_move(machine, folder):
    source = machine(*GUEST, serial=True)
    ready(source)
    source.qmp.execute('migrate-set-capabilities', capabilities=[{'capability': 'events', 'state': True}])
    uri = f'unix:{folder}/m'
    destination = machine('--incoming', uri, serial=True)
    source.migrate(uri)
    for status in ('setup', 'active', 'device', 'completed'):
        source.qmp.event('MIGRATION', status=status)
    source.qmp.event('STOP')
    source.qmp.event('MIGRATION_PASS')
    destination.qmp.event('RESUME')
    destination.qmp.event('MIGRATION', status='completed')


@pytest.mark.seconds(60)
def test_control_answers_all_along(machine, folder):
    """query-migrate every 5 ms on a connection of its own, while everything else happens."""
    source = machine('--guest', 'stress,hot=32M,fill=256M,interval=100', '--memory', '512M', serial=True)
    ready(source)
    uri = f'unix:{folder}/m'
    machine('--incoming', uri)
    times, stop = [], threading.Event()

    def ask():
        with source.connect() as qmp:
            while not stop.is_set():
                start = time.monotonic()
                qmp.execute('query-migrate')
                times.append(time.monotonic() - start)
                time.sleep(0.005)

    thread = threading.Thread(target=ask)
    thread.start()
    info = source.migrate(uri)
    stop.set()
    thread.join()
    assert info['status'] == 'completed'
    times.sort()
    # Loose: other tests' leftovers and a small machine; `make bench` has the real figures.
    assert times[len(times) // 2] < 0.05 and times[-1] < 0.5, (times[len(times) // 2], times[-1])


def test_dead_and_silent_ends(machine, folder):
    source = machine(*GUEST, serial=True)
    ready(source)
    info = source.migrate(f'unix:{folder}/nobody')
    assert info['status'] == 'failed' and 'nobody' in info['error-desc']
    # Somebody listens, takes the connection, and never says a word.
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f'{folder}/silent')
    listener.listen()
    source.qmp.execute('migrate', uri=f'unix:{folder}/silent')
    info = source.qmp.wait_migration(timeout=20)
    assert info['status'] == 'failed' and 'in time' in info['error-desc']
    listener.close()
    assert_alive_and_right(source)


def test_garbage_does_not_reach_the_waiting_destination(machine, folder):
    source = machine(*GUEST, serial=True)
    ready(source)
    path = f'{folder}/m'
    destination = machine('--incoming', f'unix:{path}', serial=True)
    for garbage in (b'', b'GET / HTTP/1.1\r\n\r\n', b'GDWT' + b'\xff' * 60, os.urandom(4096)):
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(path)
            rude.sendall(garbage)
    assert source.migrate(f'unix:{path}')['status'] == 'completed'
    assert_alive_and_right(destination)
