# SPDX-License-Identifier: Apache-2.0
"""Monitors: a process each, with its control and serial sockets, started for one side of a move."""
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import threading
import time

from . import guestlog
from .qmp import Qmp, connect_unix

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def before_exec():
    """In the child: it ends with the benchmark, whatever ends that, and runs at plain priority."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


class Failed(Exception):
    """A run that gave no figure; the text says why."""


class Serial:
    """The guest's serial port: a thread keeps the lines, so that the guest never waits for us."""

    def __init__(self, path, alive):
        self.socket = connect_unix(path, 10, alive)
        self.lines, self.changed, self.ended = [], threading.Condition(), False
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        rest = b''
        while True:
            try:
                data = self.socket.recv(65536)
            except OSError:
                data = b''
            rest += data
            *lines, rest = rest.split(b'\n')
            with self.changed:
                self.lines += [line.decode('ascii', 'replace').strip() for line in lines]
                self.ended = not data
                self.changed.notify_all()
            if not data:
                return

    def send(self, text):
        self.socket.sendall(text.encode())

    def position(self):
        with self.changed:
            return len(self.lines)

    def wait(self, kind, start=0, timeout=20):
        """(values, lines from `start` to it) of the first line of the kind at or after `start`."""
        deadline, at = time.monotonic() + timeout, start
        with self.changed:
            while True:
                for at in range(at, len(self.lines)):
                    parsed = guestlog.split_line(self.lines[at])
                    if not parsed:
                        continue
                    if parsed[0] == kind:
                        return parsed[1], self.lines[start:at + 1]
                    if parsed[0] in ('error', 'exception'):
                        raise Failed(f'the guest says: {self.lines[at]}')
                at = len(self.lines)
                left = deadline - time.monotonic()
                if self.ended or left <= 0:
                    raise Failed(f'no line "{kind}" from the guest '
                                 f'({"its port was closed" if self.ended else f"{timeout} s"})')
                self.changed.wait(left)

    def ask(self, command, last, timeout=20):
        """The lines of the answer to a command, up to the kind `last`."""
        start = self.position()
        self.send(command)
        return self.wait(last, start, timeout)[1]

    def close(self):
        self.socket.close()


class Machine:
    """A running monitor. `command` is complete; its sockets are NAME.qmp and NAME.serial."""

    def __init__(self, folder, name, command):
        self.path = os.path.join(folder, name)
        self.qmp = self._serial = None
        with open(self.path + '.log', 'wb') as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, preexec_fn=before_exec)
        try:
            self.qmp = Qmp(self.path + '.qmp', self.alive)
        except BaseException:
            self.end()
            raise

    @property
    def serial(self):
        """Connected when it is first wanted: a destination may open it late."""
        if not self._serial:
            self._serial = Serial(self.path + '.serial', self.alive)
        return self._serial

    def log(self):
        with open(self.path + '.log', encoding='utf-8', errors='replace') as log:
            return ' '.join(log.read().split())[-400:]

    def alive(self):
        if self.process.poll() is not None:
            raise Failed(f'{os.path.basename(self.process.args[0])} ended with status '
                         f'{self.process.returncode}: {self.log()}')

    def end(self):
        for part in (self.qmp, self._serial):
            if part:
                part.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Qemu:
    """The peer, as its users start it, at QEMU's defaults but for what is said in `parameters`."""
    name = 'QEMU'
    reports_moves = False   # to the guest, by the register at port 0x620

    def __init__(self, program, elf, parameters=None, label=None):
        self.program, self.elf = program, elf
        self.label = label or self.name
        # 0 is no limit; the default would hold QEMU 7.2 to 128 MiB/s.
        self.parameters = {'max-bandwidth': 0, **(parameters or {})}

    def version(self):
        text = subprocess.run([self.program, '--version'], capture_output=True, text=True,
                              check=True).stdout
        found = re.search(r'version (\S+)', text)
        return found.group(1) if found else 'unknown'

    def start(self, folder, name, case, incoming=None):
        path = os.path.join(folder, name)
        command = [self.program, '-accel', 'kvm', '-M', 'microvm',
                   '-cpu', 'host,-arch-capabilities', '-m', case.memory, '-smp', str(case.cpus),
                   '-nodefaults', '-no-reboot', '-display', 'none',
                   '-serial', f'unix:{path}.serial,server=on,wait=off',
                   '-qmp', f'unix:{path}.qmp,server=on,wait=off',
                   '-kernel', self.elf, '-append', case.guest()]
        command += ['-incoming', incoming] if incoming else ['-S']
        return Machine(folder, name, command)


class Godwit:
    name = 'Godwit'
    reports_moves = True

    def __init__(self, program, backing=None, parameters=None, label=None):
        self.program, self.backing = program, backing
        self.label = label or self.name
        self.parameters = parameters or {}

    def version(self):
        return subprocess.run([self.program, '--version'], capture_output=True, text=True,
                              check=True).stdout.split()[-1]

    def start(self, folder, name, case, incoming=None):
        path = os.path.join(folder, name)
        command = [self.program, 'run', '--memory', case.memory, '--cpus', str(case.cpus),
                   '--control', f'unix:{path}.qmp', '--serial', f'unix:{path}.serial']
        if self.backing:
            command += ['--memory-backing', self.backing]
        command += ['--incoming', incoming] if incoming else \
            ['--guest', case.guest(), '--paused']
        return Machine(folder, name, command)


def find_qemu():
    return shutil.which('qemu-system-x86_64')
