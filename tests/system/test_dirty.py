# SPDX-License-Identifier: Apache-2.0
"""Dirty tracking by each back end, with real guests: moves, the dirty rate, throttling."""
import json
import time

import pytest

from godwit import QmpError, run
from test_migration import GUEST, assert_alive_and_right, move, ready

BACK_ENDS = (('--dirty-log', 'bitmap'), ('--dirty-log', 'manual'), ('--dirty-ring', '1024'),
             ('--dirty-ring', '65536'))


def names(value):
    return '-'.join(value).replace('--', '')


@pytest.mark.seconds(120)
@pytest.mark.parametrize('back_end', BACK_ENDS, ids=names)
def test_moves(machine, back_end):
    """There and back, both vCPUs writing: no word is lost, and the log is off again in the end."""
    vm = machine(*GUEST, '--cpus', '2', *back_end, serial=True)
    ready(vm)
    for number in range(4):
        vm, info = move(machine, vm, number, arguments=back_end)
        assert info['switchover-us']['harvest'] >= 0
    assert_alive_and_right(vm)


@pytest.mark.seconds(120)
@pytest.mark.parametrize('back_end', BACK_ENDS, ids=names)
def test_cancelled_and_tried_again(machine, back_end):
    """What the cancelled move has sent is not trusted by the next one."""
    vm = machine(*GUEST, '--cpus', '2', *back_end, serial=True)
    ready(vm)
    for number in range(3):
        destination = machine('--incoming', f'unix:{vm.folder}/lost{number}', *back_end, name=f'lost{number}')
        vm.qmp.execute('migrate-set-parameters', **{'max-bandwidth': 60_000_000})
        vm.qmp.execute('migrate', **{'uri': f'unix:{vm.folder}/lost{number}'})
        vm.qmp.wait_migration('active')
        time.sleep(0.3)
        vm.qmp.execute('migrate_cancel')
        vm.qmp.wait_migration('cancelled')
        destination.end()
    vm.qmp.execute('migrate-set-parameters', **{'max-bandwidth': 0})
    vm, _ = move(machine, vm, 9, arguments=back_end)
    assert_alive_and_right(vm)


def measured(vm, timeout=20, **arguments):
    vm.qmp.execute('calc-dirty-rate', **arguments)
    unit = {'calc-time-unit': arguments.get('calc-time-unit', 'second')}
    until = time.monotonic() + timeout
    while True:
        info = vm.qmp.execute('query-dirty-rate', **unit)
        if info['status'] == 'measured' or time.monotonic() > until:
            return info
        assert info['status'] == 'measuring', info
        assert 'dirty-rate' not in info
        time.sleep(0.02)


@pytest.mark.seconds(60)
@pytest.mark.parametrize('back_end,mode', [(BACK_ENDS[0], 'dirty-bitmap'), (BACK_ENDS[1], 'dirty-bitmap'),
                                           (BACK_ENDS[3], 'dirty-ring'), (BACK_ENDS[1], 'page-sampling')],
                         ids=lambda value: value if isinstance(value, str) else names(value))
def test_dirty_rate(machine, back_end, mode):
    """8 MiB that are written all the time, in half a second: 16 MiB/s. An idle guest: about none."""
    vm = machine('--guest', 'stress,hot=8M,fill=48M', '--memory', '128M', *back_end, serial=True)
    ready(vm)
    assert vm.qmp.execute('query-dirty-rate')['status'] == 'unstarted'
    arguments = {'sample-pages': 16384} if mode == 'page-sampling' else {}
    info = measured(vm, mode=mode, **{'calc-time': 500, 'calc-time-unit': 'millisecond'}, **arguments)
    assert info['mode'] == mode and info['calc-time'] == 500 and info['calc-time-unit'] == 'millisecond'
    assert abs(info['start-time'] - time.time()) < 20
    assert 7 <= info['dirty-rate'] <= 22, info
    if mode == 'dirty-ring':
        assert [vcpu['id'] for vcpu in info['vcpu-dirty-rate']] == [0]
        assert 7 <= info['vcpu-dirty-rate'][0]['dirty-rate'] <= 40
    vm.qmp.execute('stop')
    assert measured(vm, mode=mode, **{'calc-time': 100, 'calc-time-unit': 'millisecond'})['dirty-rate'] == 0


def test_dirty_rate_refusals(machine):
    vm = machine(*GUEST)
    for arguments, text in (({'calc-time': 0}, 'out of range'),
                            ({'calc-time': 61}, 'out of range'),
                            ({'calc-time': -1}, 'out of range'),
                            ({'calc-time': 49, 'calc-time-unit': 'millisecond'}, 'out of range'),
                            ({'calc-time': 1, 'sample-pages': 127}, 'out of range'),
                            ({'calc-time': 1, 'sample-pages': 16385}, 'out of range'),
                            ({'calc-time': 1, 'sample-pages': 512, 'mode': 'dirty-bitmap'}, 'only in page-sampling'),
                            ({'calc-time': 1, 'mode': 'dirty-ring'}, 'not enabled'),
                            ({'calc-time': 1, 'mode': 'other'}, 'other'),
                            ({}, 'calc-time')):
        with pytest.raises(QmpError, match=text):
            vm.qmp.execute('calc-dirty-rate', **arguments)
    vm.qmp.execute('calc-dirty-rate', **{'calc-time': 1})
    with pytest.raises(QmpError, match='still in measuring'):
        vm.qmp.execute('calc-dirty-rate', **{'calc-time': 1})
    # Ends while it measures: at once.
    start = time.monotonic()
    vm.qmp.execute('quit')
    assert vm.wait() == 0
    assert time.monotonic() - start < 0.9


@pytest.mark.seconds(120)
def test_measured_during_a_move(machine):
    """Two look at the log at the same time: neither loses a page."""
    vm = machine(*GUEST, '--cpus', '2', serial=True)
    ready(vm)
    vm.qmp.execute('migrate-set-parameters', **{'max-bandwidth': 60_000_000})
    destination = machine('--incoming', f'unix:{vm.folder}/m', serial=True, name='m')
    vm.qmp.execute('migrate', **{'uri': f'unix:{vm.folder}/m'})
    for _ in range(3):
        measured(vm, mode='dirty-bitmap', **{'calc-time': 100, 'calc-time-unit': 'millisecond'})
    vm.qmp.execute('migrate-set-parameters', **{'max-bandwidth': 0})
    vm.qmp.wait_migration('completed', timeout=40)
    assert_alive_and_right(destination)


@pytest.mark.seconds(120)
def test_auto_converge(machine):
    """A guest that writes faster than the channel carries does not converge; throttled, it does."""
    vm = machine('--guest', 'stress,hot=128M,interval=100', '--memory', '192M', serial=True)
    ready(vm)
    uri = f'unix:{vm.folder}/m'
    vm.qmp.execute('migrate-set-parameters', **{
        'max-bandwidth': 60_000_000, 'downtime-limit': 25, 'cpu-throttle-initial': 50, 'cpu-throttle-increment': 25})
    machine('--incoming', uri, name='first')
    vm.qmp.execute('migrate', **{'uri': uri})
    time.sleep(6)
    info = vm.qmp.execute('query-migrate')
    assert info['status'] == 'active' and 'cpu-throttle-percentage' not in info
    vm.qmp.execute('migrate_cancel')
    vm.qmp.wait_migration('cancelled')

    vm.qmp.execute('migrate-set-capabilities', **{'capabilities': [{'capability': 'auto-converge', 'state': True}]})
    destination = machine('--incoming', f'{uri}2', name='second', serial=True)
    vm.qmp.execute('migrate', **{'uri': f'{uri}2'})
    seen = set()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        info = vm.qmp.execute('query-migrate')
        seen.add(info.get('cpu-throttle-percentage', 0))
        if info['status'] in ('completed', 'failed'):
            break
        time.sleep(0.01)
    assert info['status'] == 'completed', info
    assert 50 in seen and max(seen) <= 99, seen
    # A sleeping vCPU is woken: the stop takes no longer than otherwise.
    assert info['switchover-us']['stop'] < 20000, info
    destination.serial.next('sweeps')


def test_throttle_parameters(machine):
    vm = machine(*GUEST)
    before = vm.qmp.execute('query-migrate-parameters')
    assert (before['throttle-trigger-threshold'], before['cpu-throttle-initial'], before['cpu-throttle-increment'],
            before['max-cpu-throttle'], before['cpu-throttle-tailslow']) == (50, 20, 10, 99, False)
    for name, value in (('cpu-throttle-initial', 0), ('cpu-throttle-initial', 100), ('cpu-throttle-increment', 0),
                        ('cpu-throttle-increment', 100), ('max-cpu-throttle', 100), ('max-cpu-throttle', 0),
                        ('throttle-trigger-threshold', 0), ('throttle-trigger-threshold', 101)):
        with pytest.raises(QmpError, match=name):
            vm.qmp.execute('migrate-set-parameters', **{name: value})
    with pytest.raises(QmpError, match='less than cpu-throttle-initial'):
        vm.qmp.execute('migrate-set-parameters', **{'max-cpu-throttle': 19})
    assert vm.qmp.execute('query-migrate-parameters') == before
    vm.qmp.execute('migrate-set-parameters', **{'cpu-throttle-tailslow': True, 'max-cpu-throttle': 80})
    after = vm.qmp.execute('query-migrate-parameters')
    assert after['cpu-throttle-tailslow'] is True and after['max-cpu-throttle'] == 80


def work(vm):
    """Units of work a second that the guest reports, over two intervals."""
    vm.serial.next('work')
    reports = [vm.serial.next('work') for _ in range(3)]
    return sum(r['work'] for r in reports) * 1000 / sum(r['ms'] for r in reports)


@pytest.mark.seconds(120)
@pytest.mark.parametrize('back_end', BACK_ENDS[:3], ids=names)
def test_slow_down_of_the_guest(machine, back_end):
    """What a move costs the guest while it is copied: measured and shown. A cancelled one leaves nothing: the
    log is off, and the guest is as fast as before."""
    vm = machine('--guest', 'stress,hot=32M,interval=200', '--memory', '128M', *back_end, serial=True)
    ready(vm)
    before = work(vm)
    machine('--incoming', f'unix:{vm.folder}/m', *back_end, name='m')
    vm.qmp.execute('migrate-set-parameters', **{'max-bandwidth': 20_000_000, 'downtime-limit': 0})
    vm.qmp.execute('migrate', uri=f'unix:{vm.folder}/m')
    vm.qmp.wait_migration('active')
    during = work(vm)
    assert vm.qmp.execute('query-migrate')['status'] == 'active'
    vm.qmp.execute('migrate_cancel')
    vm.qmp.wait_migration('cancelled')
    after = max(work(vm), work(vm))
    print(f'{names(back_end)}: work a second {before:.0f} before, {during:.0f} during ({during / before:.1%}), '
          f'{after:.0f} after ({after / before:.1%})')
    assert during > 0
    assert after > before * 0.5


@pytest.mark.seconds(60)
def test_vcpu_dirty_limit(machine):
    vm = machine('--guest', 'stress,hot=64M,interval=200', '--memory', '128M', '--cpus', '2', '--dirty-ring', '4096',
                 serial=True)
    ready(vm)
    assert vm.qmp.execute('query-vcpu-dirty-limit') == []
    vm.qmp.execute('set-vcpu-dirty-limit', **{'dirty-rate': 10})
    until = time.monotonic() + 15
    near = 0
    while near < 3 and time.monotonic() < until:
        time.sleep(0.3)
        limits = vm.qmp.execute('query-vcpu-dirty-limit')
        assert [(l['cpu-index'], l['limit-rate']) for l in limits] == [(0, 10), (1, 10)]
        near += all(4 <= l['current-rate'] <= 16 for l in limits)
    assert near >= 3, limits
    # A limited guest stops at once all the same.
    start = time.monotonic()
    vm.qmp.execute('stop')
    assert time.monotonic() - start < 0.3
    vm.qmp.execute('cont')
    vm.qmp.execute('cancel-vcpu-dirty-limit', **{'cpu-index': 0})
    assert [l['cpu-index'] for l in vm.qmp.execute('query-vcpu-dirty-limit')] == [1]
    vm.qmp.execute('cancel-vcpu-dirty-limit')
    assert vm.qmp.execute('query-vcpu-dirty-limit') == []
    for arguments, text in (({'cpu-index': 2, 'dirty-rate': 1}, 'incorrect cpu index'),
                            ({'cpu-index': -1, 'dirty-rate': 1}, 'incorrect cpu index'), ({}, 'dirty-rate')):
        with pytest.raises(QmpError, match=text):
            vm.qmp.execute('set-vcpu-dirty-limit', **arguments)


def test_vcpu_dirty_limit_needs_a_ring(machine):
    vm = machine(*GUEST)
    with pytest.raises(QmpError, match='--dirty-ring'):
        vm.qmp.execute('set-vcpu-dirty-limit', **{'dirty-rate': 10})


@pytest.mark.parametrize('arguments,text', [
    (('--dirty-ring', '1000'), '1024'), (('--dirty-ring', '1025'), 'power of two'), (('--dirty-ring', '131072'), '65536'),
    (('--dirty-ring', 'x'), 'x'), (('--dirty-log', 'ring'), 'auto, bitmap or manual'),
    (('--dirty-log', 'bitmap', '--dirty-ring', '1024'), 'not together'),
    (('--dirty-ring', '1024', '--dirty-log', 'bitmap'), 'not together')])
def test_options(arguments, text):
    result = run('run', '--guest', 'idle', *arguments)
    assert result.returncode == 2
    assert text in result.stderr


def test_bench():
    """The part that needs no KVM, as rows of JSON in the form of the others."""
    rows = json.loads(run('bench', 'dirty', '--part', 'bitmaps', '--json', timeout=60, check=0).stdout)
    assert len(rows) == 18
    for row in rows:
        assert set(row) == {'bench', 'case', 'metric', 'unit', 'value', 'peer', 'peer_value', 'ratio', 'limit_value'}
        assert row['bench'] == 'dirty' and row['value'] > 0
    assert run('bench', 'dirty', '--part', 'other').returncode == 2
    assert run('bench', 'other').returncode == 2
