# SPDX-License-Identifier: Apache-2.0
"""Control clients at the wrong moment."""
import pytest

import godwit

GUEST = ('--guest', 'stress,hot=4M,fill=8M,interval=100', '--memory', '64M')


@pytest.mark.parametrize('how', ['quit', 'SIGTERM'])
def test_a_waiting_destination_ends_well(machine, folder, how):
    vm = machine('--incoming', f'unix:{folder}/move')
    if how == 'quit':
        vm.qmp.execute('quit')
    else:
        vm.process.terminate()
    assert vm.wait(5) == 0
    assert vm.stderr == ''


def test_a_cancelled_wait_is_said(machine, folder):
    vm = machine('--incoming', f'unix:{folder}/move')
    vm.qmp.execute('migrate_cancel')
    assert vm.wait(5) == 1
    assert 'the guest did not arrive: it was cancelled' in vm.stderr


def test_quit_is_answered_behind_unread_events(machine):
    vm = machine(*GUEST)
    with vm.connect() as late:  # it has not read one event when it says quit
        for _ in range(700):
            vm.qmp.execute('stop')
            vm.qmp.execute('cont')
        assert late.execute('quit') == {}
    assert vm.wait(5) == 0


def test_power_button_does_not_hold_the_control_thread(machine):
    vm = machine(*GUEST, '--cpus', '2', serial=True)
    vm.serial.wait('sweeps')
    clients = [vm.connect() for _ in range(4)]
    for client in clients:
        client.send(b'{"execute": "stop"}{"execute": "cont"}' * 20)
    vm.qmp.execute('query-status', timeout=2)
    for client in clients:
        client.close()
    assert godwit.alive(vm.pid)
