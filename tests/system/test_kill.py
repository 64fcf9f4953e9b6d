# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at any moment around the hand-over: never two guests, never none that need not be lost."""
import os
import random
import time

import pytest

import godwit
from godwit import QmpError
from test_migration import guest_check

MOVES = int(os.environ.get('GODWIT_KILLS', '30'))
GUEST = ('--guest', 'stress,hot=2M,fill=6M,interval=50', '--memory', '48M')


def start(machine, number):
    source = machine(*GUEST, serial=True, name=f's{number}')
    source.serial.wait(lambda r: r['kind'] == 'ready')
    uri = f'unix:{source.folder}/m{number}'
    destination = machine('--incoming', uri, serial=True, name=f'd{number}')
    return source, destination, uri


def move_time(machine):
    """How long an undisturbed move takes, in seconds."""
    source, destination, uri = start(machine, 'first')
    info = source.migrate(uri)
    assert info['status'] == 'completed', info
    assert guest_check(destination)[0] == 0
    source.end()
    destination.end()
    return info['total-time'] / 1000


def state(vm):
    """query-status, or None of a process that has ended or is ending."""
    try:
        return vm.qmp.execute('query-status')
    except (OSError, EOFError, QmpError):
        return None


def waits(vm):
    """Whether a destination has no source (any more)."""
    try:
        return vm.qmp.execute('query-migrate').get('phase') == 'connect'
    except (OSError, EOFError, QmpError):
        return False


def assert_right(vm, number):
    wrong, words = guest_check(vm)
    assert wrong == 0, f'move {number}: {wrong} wrong words'
    assert words > 0


@pytest.mark.seconds(60 + 8 * MOVES)
def test_source_killed(machine):
    """The destination runs the guest, or the guest was the source's own and the destination says so."""
    seconds = move_time(machine)
    chance = random.Random(MOVES)
    runs = lost = 0
    for number in range(MOVES):
        source, destination, uri = start(machine, number)
        source.qmp.execute('migrate', uri=uri)
        # A third of them early, the others about the end, where the hand-over is.
        time.sleep(chance.uniform(0, 1.2 * seconds) if number % 3 else chance.uniform(0.8, 1.3) * seconds)
        source.kill()
        # Decided within the takeover time: it runs, or it ends; a source that never came to describe
        # its machine was nobody, and the destination waits for another.
        godwit.wait_until(lambda vm=destination: not godwit.alive(vm.pid)
                          or (state(vm) or {}).get('status') == 'running' or waits(vm),
                          f'move {number}: the destination to decide', timeout=20)
        if godwit.alive(destination.pid) and (state(destination) or {}).get('running'):
            assert_right(destination, number)
            runs += 1
        elif waits(destination):
            lost += 1
        else:
            assert destination.wait(10) == 1, destination.stderr
            assert 'the guest did not arrive' in destination.stderr
            lost += 1
        destination.end()
    print(f'{runs} ran on, {lost} were lost with their owner')
    assert runs + lost == MOVES


@pytest.mark.seconds(60 + 8 * MOVES)
def test_destination_killed(machine):
    """The source runs on; or the guest had moved already; or the source says that it is in doubt."""
    seconds = move_time(machine)
    chance = random.Random(MOVES + 1)
    outcomes = {'running': 0, 'postmigrate': 0, 'paused': 0}
    for number in range(MOVES):
        source, destination, uri = start(machine, number)
        source.qmp.execute('migrate', uri=uri)
        time.sleep(chance.uniform(0, 1.2 * seconds) if number % 3 else chance.uniform(0.8, 1.3) * seconds)
        destination.kill()
        godwit.wait_until(lambda vm=source: vm.qmp.execute('query-migrate').get('in-doubt')
                          or vm.qmp.execute('query-migrate')['status'] in ('completed', 'failed'),
                          f'move {number}: the source to decide', timeout=40)
        info = source.qmp.execute('query-migrate')
        status = source.qmp.execute('query-status')
        outcomes[status['status']] += 1
        if status['status'] == 'running':
            assert info['status'] == 'failed' and info['error-desc'], info
            assert_right(source, number)
        elif status['status'] == 'postmigrate':
            assert info['status'] == 'completed', info
        else:
            # The destination had taken it over, and its guest went with it: a person decides.
            assert info['in-doubt'] is True and 'x-migrate-resolve' in info['error-desc'], info
            with pytest.raises(QmpError, match='x-migrate-resolve'):
                source.qmp.execute('cont')
            source.qmp.execute('x-migrate-resolve', owner='here')
            godwit.wait_until(lambda vm=source: vm.qmp.execute('query-status')['running'],
                              f'move {number}: the guest to run again')
            assert source.qmp.execute('query-migrate')['in-doubt'] is False
            assert_right(source, number)
        source.end()
    print(outcomes)
    assert sum(outcomes.values()) == MOVES
