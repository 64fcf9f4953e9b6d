# SPDX-License-Identifier: Apache-2.0
"""godwit demo, and godwit migrate between two real machines."""
import json
import os
import signal
import subprocess
import time

import pytest

import godwit

SMALL = ('--memory', '128M', '--hot', '8M', '--fill', '32M', '--rounds', '1')


def demo(folder, *arguments):
    return godwit.run('demo', *SMALL, *arguments, timeout=60, env=dict(os.environ, TMPDIR=folder))


def test_demo_moves_and_proves(folder):
    result = demo(folder, '--json')
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert [move['move'] for move in answer['moves']] == [1, 2]
    for move in answer['moves']:
        assert 0 < move['pause-us'] < 2_000_000
        assert 0 < move['guest-pause-us'] < 2_000_000
        assert 40 << 20 < move['bytes'] < 400 << 20
        assert move['rounds'] >= 1
        assert move['switchover-us']['total'] == move['pause-us']
    assert answer['words'] == (40 << 20) // 8
    assert answer['wrong'] == 0 and answer['verdict'] == 'passed'
    assert os.listdir(folder) == []


def test_demo_says_it_in_words(folder):
    result = demo(folder, '--cpus', '1', '--memory-backing', 'shared')
    assert result.returncode == 0, result.stderr
    assert 'passed: the guest checked 5242880 words after 2 moves, none is wrong' in result.stdout
    assert [line.split()[:2] for line in result.stdout.splitlines()[2:4]] == [['1', 'there'], ['2', 'back']]


def test_demo_finds_a_wrong_word(folder):
    """The guest spoils 3 of its own words: the demo must not say that all is well."""
    result = demo(folder, '--guest', 'damage=3')
    assert result.returncode == 1
    assert 'FAILED: the guest found 3 wrong words of 5242880' in result.stdout
    assert os.listdir(folder) == []


@pytest.mark.parametrize('arguments, status, text', [
    (('--memory', '32M'), 1, 'do not fit the memory'),
    (('--guest', 'nonsense=1'), 1, 'nonsense'),
    (('--memory-backing', 'paper'), 1, 'paper'),
    (('--cpus', '0'), 2, 'from 1 to 64'),
    (('--hot', 'much'), 2, 'much'),
    (('word',), 2, "'word' is not expected"),
])
def test_demo_errors(folder, arguments, status, text):
    result = demo(folder, *arguments)
    assert result.returncode == status
    assert text in result.stderr
    assert os.listdir(folder) == []


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('seconds', [0.15, 0.6, 1.5])
def test_demo_interrupted_leaves_nothing(folder, number, seconds):
    process = subprocess.Popen([godwit.binary(), 'demo', *SMALL, '--rounds', '50'],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=dict(os.environ, TMPDIR=folder))
    time.sleep(seconds)
    machines = godwit.children(process.pid)
    process.send_signal(number)
    _, text = process.communicate(timeout=30)
    assert process.returncode in (1, -number), text  # killed at once before it began
    assert not any(godwit.alive(pid) for pid in machines)
    assert os.listdir(folder) == []


def test_demo_keep(folder):
    result = demo(folder, '--keep')
    assert result.returncode == 0
    control = result.stderr.split("'godwit status ")[1].split("'")[0]
    assert 'running, 2 vCPUs, 128 MiB' in godwit.run('status', control, check=0).stdout
    assert json.loads(godwit.run('qmp', control, 'quit', check=0).stdout) == {}
    godwit.wait_until(lambda: not os.path.exists(control[len('unix:'):]), 'end of the machine')


def test_migrate_command(machine, folder):
    source = machine('--memory', '64M', '--guest', 'stress,hot=4M,fill=8M', serial=True)
    source.serial.wait(lambda report: report['kind'] == 'ready')
    machine('--memory', '128M', '--incoming', f'unix:{folder}/wrong')
    result = godwit.run('migrate', f'unix:{source.control}', f'unix:{folder}/wrong', '--check')
    assert result.returncode == 1
    assert 'memory.size' in result.stderr
    assert source.qmp.execute('query-status')['running'] is True
    destination = machine('--incoming', f'unix:{folder}/right')
    result = godwit.run('migrate', f'unix:{source.control}', f'unix:{folder}/right', '--check', check=0)
    assert result.stdout == 'the destination would accept the guest\n'
    assert destination.qmp.execute('query-status')['status'] == 'inmigrate'
    result = godwit.run('migrate', f'unix:{source.control}', f'unix:{folder}/right', check=0)
    for part in ('total time', 'rounds', 'sent', 'not sent', 'pause', 'stop', 'harvest', 'memory', 'state',
                 'wire', 'load', 'resume'):
        assert f'\n{part} ' in '\n' + result.stdout.replace('\n  ', '\n'), result.stdout
    assert source.qmp.execute('query-status')['status'] == 'postmigrate'
    destination.qmp.wait_state('running')
    info = source.qmp.execute('query-migrate')
    assert info['status'] == 'completed' and info['switchover-us']['total'] > 0
    with pytest.raises(godwit.QmpError):
        source.qmp.execute('cont')
