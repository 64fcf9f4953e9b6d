# SPDX-License-Identifier: Apache-2.0
"""One machine by itself: start, stop, reset, power-off, and every way to start it wrongly."""
import os
import shutil
import socket
import subprocess
import time

import pytest

import godwit
from godwit import QmpError

GUEST = ('--guest', 'stress,hot=4M,fill=8M,interval=100', '--memory', '64M')


def status(vm):
    return vm.qmp.execute('query-status')['status']


def ready(vm, after=0):
    return vm.serial.wait(lambda r: r['kind'] == 'ready', after=after)


def refused(*arguments, code=1):
    """Runs a machine that cannot be; what it says."""
    result = godwit.run('run', *arguments, check=code)
    assert result.stdout == ''
    return result.stderr


def test_guest_runs_on_all_its_vcpus(machine):
    vm = machine(*GUEST, '--cpus', '3', serial=True)
    assert ready(vm)['cpus'] == 3
    report = vm.serial.wait(lambda r: r.get('sweeps', 0) > 10)
    assert report['wrong'] == 0
    assert len(vm.qmp.execute('query-cpus-fast')) == 3
    assert vm.qmp.execute('query-memory-size-summary')['base-memory'] == 64 << 20


def test_many_vcpus(machine):
    vm = machine('--guest', 'idle,fill=2M,interval=500', '--memory', '64M', '--cpus', '64', serial=True)
    assert ready(vm)['cpus'] == 64
    assert len({cpu['thread-id'] for cpu in vm.qmp.execute('query-cpus-fast')}) == 64
    vm.qmp.execute('stop')
    vm.qmp.execute('cont')
    vm.serial.next('sweeps')


def test_baseline_cpu(machine):
    vm = machine(*GUEST, '--cpu', 'baseline', '--cpus', '2', serial=True)
    assert ready(vm)['cpus'] == 2
    assert vm.serial.wait('sweeps')['wrong'] == 0


@pytest.mark.parametrize('backing', ['private', 'shared'])
def test_stop_holds_the_guest_and_cont_lets_it_go(machine, backing):
    vm = machine(*GUEST, '--memory-backing', backing, serial=True)
    vm.serial.wait('sweeps')
    vm.qmp.execute('stop')
    assert vm.qmp.execute('query-status') == {'status': 'paused', 'running': False}
    time.sleep(0.1)  # what was on its way
    seen = len(vm.serial.reports)
    time.sleep(0.5)
    assert len(vm.serial.reports) == seen
    vm.serial.send('c')  # waits until the guest runs
    time.sleep(0.1)
    assert len(vm.serial.reports) == seen
    vm.qmp.execute('stop')  # once more is no error
    vm.qmp.execute('cont')
    assert status(vm) == 'running'
    assert vm.serial.wait(lambda r: r['kind'] == 'check', after=seen)['wrong'] == 0


def test_stop_and_cont_many_times(machine):
    vm = machine(*GUEST, '--cpus', '2', serial=True)
    vm.serial.wait('sweeps')
    for _ in range(100):
        vm.qmp.execute('stop')
        vm.qmp.execute('cont')
    seen = len(vm.serial.reports)
    vm.serial.send('c')
    assert vm.serial.wait(lambda r: r['kind'] == 'check', after=seen)['wrong'] == 0


def test_paused_start(machine):
    vm = machine(*GUEST, '--paused', serial=True)
    assert vm.qmp.execute('query-status') == {'status': 'prelaunch', 'running': False}
    time.sleep(0.3)
    assert vm.serial.lines == []
    vm.qmp.execute('cont')
    ready(vm)


@pytest.mark.parametrize('by', ['client', 'guest'])
def test_reset(machine, by):
    vm = machine(*GUEST, '--cpus', '2', serial=True)
    for _ in range(3):
        vm.serial.wait('sweeps', after=len(vm.serial.reports))
        seen = len(vm.serial.reports)
        if by == 'client':
            vm.qmp.execute('system_reset')
        else:
            vm.serial.send('r')
        assert ready(vm, seen)['cpus'] == 2
        event = vm.qmp.event('RESET', timeout=10)
        assert event['data'] == {'guest': by == 'guest',
                                 'reason': 'guest-reset' if by == 'guest' else 'host-qmp-system-reset'}
    assert status(vm) == 'running'


def test_reset_while_paused_stays_paused(machine):
    vm = machine(*GUEST, serial=True)
    vm.serial.wait('sweeps')
    vm.qmp.execute('stop')
    vm.qmp.execute('system_reset')
    assert status(vm) == 'paused'
    time.sleep(0.2)
    seen = len(vm.serial.reports)
    vm.qmp.execute('cont')
    ready(vm, seen)


def test_power_off_by_the_guest_ends_the_process(machine):
    vm = machine(*GUEST, serial=True)
    vm.serial.wait('sweeps')
    vm.serial.send('q')
    assert vm.wait() == 0


def test_power_button(machine):
    vm = machine(*GUEST, serial=True)
    vm.serial.wait('sweeps')
    vm.qmp.execute('system_powerdown')
    vm.serial.wait(lambda r: r['kind'] == 'power-button')
    assert vm.wait() == 0


def test_no_shutdown(machine):
    vm = machine(*GUEST, '--no-shutdown', serial=True)
    vm.serial.wait('sweeps')
    vm.serial.send('q')
    event = vm.qmp.event('SHUTDOWN', timeout=10)
    assert event['data'] == {'guest': True, 'reason': 'guest-shutdown'}
    assert status(vm) == 'shutdown'
    with pytest.raises(QmpError, match='system_reset'):
        vm.qmp.execute('cont')
    seen = len(vm.serial.reports)
    vm.qmp.execute('system_reset')
    assert status(vm) == 'prelaunch'
    vm.qmp.execute('cont')
    ready(vm, seen)
    vm.qmp.execute('quit')
    assert vm.wait() == 0


def test_no_reboot(machine):
    vm = machine(*GUEST, '--no-reboot', serial=True)
    vm.serial.wait('sweeps')
    vm.serial.send('r')
    assert vm.wait() == 0


def test_signal_ends_it_with_an_event(machine):
    vm = machine(*GUEST)
    vm.process.terminate()
    assert vm.qmp.event('SHUTDOWN', timeout=10)['data'] == {'guest': False, 'reason': 'host-signal'}
    assert vm.wait() == 0


def test_kernel_file_with_a_command_line(machine, folder):
    elf = os.path.join(folder, 'guest.elf')
    godwit.run('guest', '--write', elf, check=0)
    vm = machine('--kernel', elf, '--append', 'stress,hot=2M,fill=4M,cpus=2', '--cpus', '2', serial=True)
    report = ready(vm)
    assert (report['cpus'], report['hot'], report['fill']) == (2, 2 << 20, 4 << 20)


def test_stdio_and_file(folder):
    path = os.path.join(folder, 'out')
    arguments = ('run', '--guest', 'stress,hot=1M,fill=0,interval=50,damage=x', '--serial')
    assert 'godwit-guest error' in godwit.run(*arguments, 'stdio', check=0).stdout
    for times in (1, 2):
        godwit.run(*arguments, path, check=0)
        with open(path, encoding='ascii') as file:
            assert file.read().count('godwit-guest error') == times


def test_kernel_files_that_are_none(folder):
    elf = os.path.join(folder, 'guest.elf')
    bad = os.path.join(folder, 'bad')
    godwit.run('guest', '--write', elf, check=0)
    with open(elf, 'rb') as file:
        image = file.read()

    assert 'cannot open /no/such/kernel: No such file' in refused('--kernel', '/no/such/kernel')
    assert 'not a regular file' in refused('--kernel', folder)
    for content, text in ((b'', 'no ELF'), (b'#!/bin/sh\n', 'no ELF'), (image[:40], 'truncated'),
                          (image[:len(image) // 2], 'truncated'),
                          (image.replace(b'Xen\0', b'Yen\0'), 'no PVH entry')):
        with open(bad, 'wb') as file:
            file.write(content)
        message = refused('--kernel', bad)
        assert text in message and bad in message
    assert 'cannot open /no/such/initrd' in refused('--kernel', elf, '--initrd', '/no/such/initrd')
    with open(bad, 'wb') as file:
        file.truncate(80 << 20)
    assert 'the initrd (83886080 bytes) does not fit' in refused('--kernel', elf, '--initrd', bad,
                                                                 '--memory', '64M')


@pytest.mark.parametrize('arguments, code, text', [
    (('--cpus', '0'), 2, '--cpus'),
    (('--cpus', '65'), 2, '64'),
    (('--cpus', 'two'), 2, '--cpus'),
    (('--memory', '1000000T'), 1, '1000000 TiB'),
    (('--memory', '900G'), 1, '900 GiB'),
    (('--memory', '3M'), 1, '2 MiB'),
    (('--memory', '0'), 2, '--memory'),
    (('--memory', 'much'), 2, '--memory'),
    (('--memory-backing', 'paper'), 2, 'private, shared or hugetlb'),
    (('--cpu', 'fast'), 1, 'host or baseline'),
    (('--uuid', '123'), 1, 'UUID'),
    (('--kernel', '/bin/true'), 1, '--guest'),
    (('--serial', '/no/such/folder/x'), 1, '/no/such/folder/x'),
    (('--serial', 'unix:/' + 'x' * 200), 1, '107'),
    (('--control', 'unix:/' + 'x' * 200), 1, '107'),
    (('--owner-record', '/no/such/folder/x'), 1, '/no/such/folder/x'),
    (('--log-level', 'loud'), 2, '--log-level'),
    (('--what',), 2, '--help'),
    (('what',), 2, 'what'),
])
def test_refusals(arguments, code, text):
    assert text in refused('--guest', 'idle', *arguments, code=code)


def test_nothing_to_run():
    for name in ('--kernel', '--guest', '--incoming'):
        assert name in refused(code=2)


def test_help():
    text = godwit.run('run', '--help', check=0).stdout
    assert 'godwit run --guest stress' in text
    for name in ('--kernel', '--incoming', '--memory-backing', '--owner-record', '--no-shutdown'):
        assert f'  {name} ' in text or f'  {name}\n' in text


def test_socket_that_is_taken(machine, folder):
    vm = machine(*GUEST)
    assert 'vm0.qmp' in refused(*GUEST, '--control', f'unix:{vm.control}')
    path = os.path.join(folder, 'taken')
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(path)
        taken.listen()
        assert 'Address already in use' in refused(*GUEST, '--serial', f'unix:{path}')
    assert status(vm) == 'running'


def test_owner_record_is_held_once(machine, folder):
    path = os.path.join(folder, 'record')
    vm = machine(*GUEST, '--owner-record', path)
    assert status(vm) == 'running'
    assert os.path.exists(path)
    message = refused(*GUEST, '--owner-record', path)
    assert path in message
    vm.qmp.execute('quit')
    assert vm.wait() == 0
    assert not os.path.exists(path)


def test_incoming_waits_and_refuses_what_has_no_sense(machine):
    vm = machine('--incoming', 'defer')
    assert vm.qmp.execute('query-status') == {'status': 'inmigrate', 'running': False}
    with pytest.raises(QmpError, match='not arrived'):
        vm.qmp.execute('system_reset')
    with pytest.raises(QmpError):
        vm.qmp.execute('migrate', uri='unix:/tmp/none')
    vm.qmp.execute('quit')
    assert vm.wait() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can take the right away')
def test_no_right_to_kvm(folder):
    os.chmod(folder, 0o777)
    mode = os.stat('/dev/kvm').st_mode & 0o777
    if mode & 0o006 == 0o006:
        pytest.skip('/dev/kvm is open to everybody here')
    without = ('setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups')
    # A copy, since the build folder may not be open to others.
    program = os.path.join(folder, 'godwit')
    shutil.copy(godwit.binary(), program)
    result = subprocess.run([*without, program, 'run', '--guest', 'idle'], capture_output=True,
                            text=True, timeout=20)
    assert result.returncode == 1
    assert 'no right to open /dev/kvm' in result.stderr
    assert 'group' in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can hide the device')
@pytest.mark.parametrize('hide, text', [
    ('mount --bind /dev/null /dev/kvm', 'does not answer as KVM does'),
    ('mount -t tmpfs none /dev', 'there is no /dev/kvm'),
])
def test_no_kvm(hide, text):
    command = f'{hide} && exec "$0" run --guest idle'
    result = subprocess.run(['unshare', '--mount', 'sh', '-c', command, godwit.binary()],
                            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    assert result.returncode == 1
    assert text in result.stderr
