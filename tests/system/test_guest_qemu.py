# SPDX-License-Identifier: Apache-2.0
"""The built-in guest under QEMU's microvm: what it prints, and that it notices damage."""
import os
import re
import select
import shutil
import signal
import subprocess
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GODWIT = os.environ.get('GODWIT', os.path.join(ROOT, 'build', 'godwit'))
QEMU = shutil.which('qemu-system-x86_64')

pytestmark = [
    pytest.mark.skipif(not QEMU, reason='qemu-system-x86_64 is not installed'),
    pytest.mark.skipif(not os.access('/dev/kvm', os.R_OK | os.W_OK), reason='no right to /dev/kvm'),
]


@pytest.fixture(scope='module')
def elf(tmp_path_factory):
    path = tmp_path_factory.mktemp('guest') / 'guest.elf'
    subprocess.run([GODWIT, 'guest', '--write', str(path)], check=True, timeout=10)
    return str(path)


class Qemu:
    """One run; lines are parsed into (kind, {name: value})."""

    def __init__(self, elf, arguments, cpus=1, memory='256M'):
        self.process = subprocess.Popen(
            [QEMU, '-accel', 'kvm', '-M', 'microvm', '-cpu', 'host,-arch-capabilities',
             '-m', memory, '-smp', str(cpus), '-nodefaults', '-no-reboot', '-display', 'none',
             '-serial', 'stdio', '-kernel', elf, '-append', arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.started = time.monotonic()
        self.buffer = b''
        self.seen = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def line(self, timeout):
        deadline = time.monotonic() + timeout
        while b'\n' not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise AssertionError(f'no line within {timeout} s after {self.seen[-5:]}')
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, f'QEMU ended after {self.seen[-5:]}'
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b'\n')
        text = text.decode('ascii')
        self.seen.append(text)
        # Lines never mix, whichever vCPU prints.
        assert re.fullmatch(r'godwit-guest( [a-z-]+)?( .*)?', text), text
        assert text.count('godwit-guest') == 1, text
        words = text.split()[1:]
        kind = 'interval' if words[0].startswith('interval=') else words[0]
        return kind, dict(word.split('=', 1) for word in words if '=' in word), text

    def wait(self, kind, timeout=20):
        """Values of the next line of a kind; what comes before it is passed over."""
        return self.until(kind, timeout)[1]

    def until(self, kind, timeout=20):
        deadline, before = time.monotonic() + timeout, []
        while True:
            found, values, text = self.line(deadline - time.monotonic())
            if found == kind:
                return before, values
            before.append((found, values, text))

    def send(self, text):
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def ended(self, timeout=10):
        return self.process.wait(timeout)


@pytest.mark.parametrize('cpus', [1, 2])
def test_boots_and_sweeps(elf, cpus):
    arguments = f'stress,hot=8M,fill=32M,interval=200,cpus={cpus}'
    with Qemu(elf, arguments, cpus=cpus) as guest:
        boot = guest.wait('boot')
        assert boot['mode'] == 'stress'
        assert boot['cpus'] == str(cpus)
        assert 245 <= int(boot['memory-mb']) <= 256
        assert 500000 < int(boot['tsc-khz']) < 10000000
        assert boot['tsc-from'] in ('cpuid-0x15', 'cpuid-0x40000010', 'pit')
        ready = guest.wait('ready')
        assert ready['cpus'] == str(cpus)
        assert ready['hot'] == str(8 << 20)
        assert ready['fill'] == str(32 << 20)
        lines = [guest.wait('interval') for _ in range(4)]
        assert [int(line['interval']) for line in lines] == [1, 2, 3, 4]
        sweeps = [int(line['sweeps']) for line in lines]
        assert 0 < sweeps[0] < sweeps[1] < sweeps[2] < sweeps[3]
        checked = [int(line['checked-mb']) for line in lines]
        assert checked[0] < checked[3]
        for line in lines:
            assert line['wrong'] == '0'
            assert line['moves'] == '0' and line['move-us'] == '0'  # QEMU has no such register
            assert int(line['work']) > 1000
            assert 190 <= int(line['ms']) < 5000
            assert int(line['longest-us']) < int(line['ms']) * 1000


def test_tsc_rate_is_right(elf):
    """The guest's clock against ours: intervals of 1 s take 1 s."""
    with Qemu(elf, 'idle,fill=1M,interval=1000') as guest:
        guest.wait('interval')
        start = time.monotonic()
        ms = sum(int(guest.wait('interval')['ms']) for _ in range(2))
        assert abs(time.monotonic() - start - ms / 1000) < 0.2


@pytest.mark.parametrize('cpus', [1, 2])
def test_full_check(elf, cpus):
    with Qemu(elf, f'stress,hot=4M,fill=16M,cpus={cpus}', cpus=cpus) as guest:
        guest.wait('ready')
        guest.send('c')
        check = guest.wait('check')
        assert check == {'wrong': '0', 'words': str((20 << 20) // 8), 'new': '0',
                         'cpus': str(cpus)}


def test_gaps(elf):
    """Stopping the whole of QEMU for 300 ms is a gap on both vCPUs, of that length."""
    with Qemu(elf, 'stress,hot=4M,fill=4M,cpus=2,interval=60000', cpus=2) as guest:
        guest.wait('ready')
        time.sleep(0.2)
        guest.process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        guest.process.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        guest.send('g')
        before, end = guest.until('gaps')
        gaps = [values for kind, values, _ in before if kind == 'gap']
        assert int(end['count']) == len(gaps)
        for cpu in ('0', '1'):
            # vCPU 0 may have been in a device access just then.
            long = [g for g in gaps if g['cpu'] == cpu and int(g['us']) > 290000]
            assert len(long) == 1, gaps
            assert long[0]['kind'] in ('run', 'io')
            assert int(long[0]['us']) < 3000000
            assert int(long[0]['start'], 16) > 0
        assert all(set(g) == {'cpu', 'kind', 'start', 'length', 'us'} for g in gaps)
        guest.send('3g')
        before, end = guest.until('gaps')
        assert len([1 for kind, _, _ in before if kind == 'gap']) == int(end['count']) <= 6


def test_gap_is_in_the_interval(elf):
    with Qemu(elf, 'stress,hot=4M,fill=4M,cpus=2,interval=1000', cpus=2) as guest:
        guest.wait('interval')
        time.sleep(0.2)
        guest.process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        guest.process.send_signal(signal.SIGCONT)
        assert int(guest.wait('interval')['longest-us']) > 290000
        guest.send('t')
        before, end = guest.until('tops')
        tops = [values for kind, values, _ in before if kind == 'top']
        assert int(end['count']) == len(tops) <= 16
        assert max(int(top['us']) for top in tops) > 290000


@pytest.mark.parametrize('cpus', [1, 2])
def test_work_ring(elf, cpus):
    with Qemu(elf, f'stress,hot=4M,fill=4M,interval=60000,cpus={cpus}', cpus=cpus) as guest:
        guest.wait('ready')
        time.sleep(0.6)
        guest.send('300h')
        ring = guest.wait('ring')
        assert ring['buckets'] == '300' and ring['cpus'] == str(cpus)
        tick, newest = int(ring['tick'], 16), int(ring['newest'], 16)
        assert newest % tick == 0
        lines, end = guest.until('ring-end')
        assert end == {'count': '300'}
        work = {}
        for kind, values, text in lines:
            assert kind == 'work'
            row = work.setdefault(values['cpu'], [])
            assert int(values['at']) == len(row)
            digits = text.split()[-1]
            row += [int(digits[i:i + 4], 16) for i in range(0, len(digits), 4)]
        assert set(work) == {str(cpu) for cpu in range(cpus)}
        for row in work.values():
            assert len(row) == 300
            assert sum(value & 0x7fff for value in row) > 3000  # pages in 0.3 s
        # Polls of the serial port are marked on vCPU 0, and there only.
        assert any(value & 0x8000 for value in work['0'])
        assert not any(value & 0x8000 for value in work.get('1', []))


@pytest.mark.parametrize('arguments,damaged', [
    ('stress,hot=4M,fill=16M,damage=1', 1),
    ('stress,hot=16M,fill=0,damage=1', 1),
    ('stress,hot=16M,fill=16M,damage=7,cpus=2', 7),
])
def test_damage_is_noticed(elf, arguments, damaged):
    with Qemu(elf, arguments + ',interval=200', cpus=2) as guest:
        guest.wait('ready')
        time.sleep(0.5)
        guest.send('c')
        before, check = guest.until('check')
        assert int(check['wrong']) == damaged
        words = [values for kind, values, _ in before if kind == 'wrong']
        assert len({word['address'] for word in words}) == damaged
        for word in words:
            difference = int(word['expected'], 16) ^ int(word['found'], 16)
            assert bin(difference).count('1') == 1
        # Each is counted once.
        guest.send('c')
        assert guest.wait('check')['new'] == '0'
        assert int(guest.wait('interval')['wrong']) == damaged


def test_memory_above_4_gib(elf):
    with Qemu(elf, 'stress,hot=4M,fill=16M,top=1,damage=1', memory='5G') as guest:
        assert int(guest.wait('boot')['memory-mb']) >= 5119
        address = int(guest.wait('wrong')['address'], 16)
        assert 4 << 30 < address < 6 << 30
        guest.send('c')
        assert guest.wait('check')['wrong'] == '1'


def test_idle(elf):
    with Qemu(elf, 'idle,fill=16M,interval=200') as guest:
        assert guest.wait('ready')['hot'] == '0'
        first, second = guest.wait('interval'), guest.wait('interval')
        assert int(first['checked-mb']) <= int(second['checked-mb']) <= 3
        assert int(second['work']) > 1000
        assert second['sweeps'] == '0' and second['wrong'] == '0'


def test_pace(elf):
    with Qemu(elf, 'stress,hot=64K,fill=0,pace=20000,interval=500') as guest:
        guest.wait('ready')
        assert 5 <= int(guest.wait('interval')['sweeps']) <= 26


@pytest.mark.parametrize('arguments,text', [
    ('stress,hot=1G', 'do not fit the memory'),
    ('dance', 'unknown mode (known: stress idle): dance'),
    ('stress,colour=1', 'unknown option'),
    ('stress,hot=many', 'not a number'),
    ('stress,hot', 'needs a value'),
    ('stress,cpus=65', 'out of range'),
    ('stress,fill=99999999999999999999', 'not a number'),
])
def test_refuses(elf, arguments, text):
    with Qemu(elf, arguments) as guest:
        kind, _, line = guest.line(10)
        assert kind == 'error' and text in line


def test_missing_vcpu_is_told(elf):
    with Qemu(elf, 'stress,cpus=3,interval=200', cpus=2) as guest:
        warning = guest.wait('warning')
        assert warning['wanted'] == '3' and warning['started'] == '2'
        assert guest.wait('ready')['cpus'] == '2'
        assert guest.wait('interval')['wrong'] == '0'


@pytest.mark.parametrize('command,kind', [('q', 'power-off'), ('r', 'reset')])
def test_power(elf, command, kind):
    with Qemu(elf, 'stress,cpus=2', cpus=2) as guest:
        guest.wait('ready')
        guest.send(command)
        guest.wait(kind)
        assert guest.ended() == 0


def test_unknown_command(elf):
    with Qemu(elf, 'stress') as guest:
        guest.wait('ready')
        guest.send(' \nZ')
        assert guest.wait('unknown-command') == {'byte': '0x5a'}
