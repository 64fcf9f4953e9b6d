# SPDX-License-Identifier: Apache-2.0
"""Helpers of the system tests: the binary, a machine, its control socket and serial port, leak checks.

    with Machine('--memory', '64M', '--guest', 'stress,hot=4M') as vm:
        assert vm.qmp.execute('query-status')['status'] == 'running'
        line = vm.serial.wait('sweeps')

Everything here waits for a bounded time, and raises with what it saw so far.
"""
import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from qmp import Qmp, QmpError  # noqa: F401  (for those who import this module)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def binary():
    return os.path.abspath(os.environ.get('GODWIT') or os.path.join(ROOT, 'build', 'godwit'))


def run(*arguments, timeout=30, check=None, **options):
    """Runs godwit to its end; .stdout and .stderr are text. check: the exit status to insist on."""
    result = subprocess.run([binary(), *map(str, arguments)], stdin=subprocess.DEVNULL,
                            capture_output=True, text=True, errors='replace', timeout=timeout, **options)
    if check is not None:
        assert result.returncode == check, f'exit status {result.returncode}:\n{result.stdout}{result.stderr}'
    return result


@contextlib.contextmanager
def temporary_folder():
    path = tempfile.mkdtemp(prefix='gw.')
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def wait_until(condition, what, timeout=10, step=0.005):
    """Waits until condition() gives something true, and returns it."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f'{what}: not within {timeout} s')
        time.sleep(step)


# What a process holds.

def descriptors(pid):
    """{number: what it refers to} of a process's open files."""
    found = {}
    for name in os.listdir(f'/proc/{pid}/fd'):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f'/proc/{pid}/fd/{name}')
    return found


def descriptor_count(pid):
    return len(descriptors(pid))


def resident_bytes(pid):
    with open(f'/proc/{pid}/statm', encoding='ascii') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def thread_count(pid):
    return len(os.listdir(f'/proc/{pid}/task'))


def children(pid):
    """Process ids of the children, zombies too."""
    found = []
    for task in os.listdir(f'/proc/{pid}/task'):
        with contextlib.suppress(OSError), open(f'/proc/{pid}/task/{task}/children', encoding='ascii') as file:
            found += [int(word) for word in file.read().split()]
    return sorted(found)


def alive(pid):
    """True unless the process has ended (a zombie has)."""
    try:
        with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as file:
            return file.read().rpartition(')')[2].split()[0] not in 'ZX'
    except (FileNotFoundError, ProcessLookupError):
        return False


# The serial port of the built-in guest.

class Serial:
    """Reads "godwit-guest name=value ..." lines from `--serial unix:PATH`, on a thread of its own."""

    NUMBER = re.compile(r'-?(\d+|0x[0-9a-fA-F]+)$')

    def __init__(self, path, timeout=10):
        self.lines = []    # all lines, as text
        self.reports = []  # a dict for each godwit-guest line; numbers are int
        self._changed = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX)

        def connect():
            try:
                self._socket.connect(path)
                return True
            except (FileNotFoundError, ConnectionRefusedError):
                return False

        try:
            wait_until(connect, f'serial port {path}', timeout)
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        text = b''
        while True:
            try:
                data = self._socket.recv(65536)
            except OSError:
                data = b''
            if not data:
                break
            *lines, text = (text + data).split(b'\n')
            with self._changed:
                for line in lines:
                    self._line(line.decode(errors='replace').rstrip('\r'))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @classmethod
    def parse(cls, line):
        """Of "godwit-guest move pause-us=700 cpu=1": {"kind": "move", "pause-us": 700, "cpu": 1}. A line
        without a word of its own is of the kind "interval"; words that are no name=value are "text".
        None for a line that is no report."""
        words = line.split()
        if not words or words[0] != 'godwit-guest':
            return None
        report, rest = {'kind': 'interval'}, []
        for index, word in enumerate(words[1:]):
            name, sign, value = word.partition('=')
            if sign:
                report[name] = int(value, 0) if cls.NUMBER.match(value) else value
            elif index == 0:
                report['kind'] = word
            else:
                rest.append(word)
        if rest:
            report['text'] = ' '.join(rest)
        return report

    def _line(self, line):
        self.lines.append(line)
        report = self.parse(line)
        if report is not None:
            self.reports.append(report)

    def send(self, data):
        self._socket.sendall(data if isinstance(data, bytes) else data.encode())

    def wait(self, condition=None, after=0, timeout=20):
        """The first report from number `after` on that has the name, or meets the function, given."""
        def fits(report):
            return condition is None or (condition in report if isinstance(condition, str) else condition(report))

        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                for report in self.reports[after:]:
                    if fits(report):
                        return report
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f'no such report from the guest within {timeout} s; last lines: '
                                       f'{self.lines[-5:]}')
                self._changed.wait(min(left, 0.5))

    def next(self, condition=None, timeout=20):
        """A report that is made after this call."""
        return self.wait(condition, after=len(self.reports), timeout=timeout)

    def close(self):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


class Machine:
    """`godwit run` in a folder of its own (or a given one), with a control socket.

    serial=True adds a serial socket, and .serial reads the guest's reports from it. qmp=False leaves
    out the control connection, for machines that are expected to end early. The process is ended, by
    its own process id, when the block or the test ends, however it ends.
    """

    def __init__(self, *arguments, folder=None, name='vm', serial=False, qmp=True, environment=None,
                 wrapper=()):
        self.arguments = [str(argument) for argument in arguments]
        self.name = name
        self._own_folder = None if folder else tempfile.mkdtemp(prefix='gw.')
        self.folder = folder or self._own_folder
        self.control = os.path.join(self.folder, f'{name}.qmp')
        self.serial_path = os.path.join(self.folder, f'{name}.serial') if serial else None
        self.stderr_path = os.path.join(self.folder, f'{name}.stderr')
        self.environment = environment or {}
        self.wrapper = list(wrapper)  # e.g. ['ip', 'netns', 'exec', NAME]
        self.want_qmp = qmp
        self.process = self.qmp = self.serial = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.end()

    def command_line(self):
        line = [*self.wrapper, binary(), 'run', '--name', self.name, '--control', f'unix:{self.control}']
        if self.serial_path:
            line += ['--serial', f'unix:{self.serial_path}']
        return line + self.arguments

    def start(self, timeout=20):
        environment = dict(os.environ, XDG_RUNTIME_DIR=self.folder, **self.environment)
        try:
            with open(self.stderr_path, 'ab') as stderr:
                self.process = subprocess.Popen(self.command_line(), stdin=subprocess.DEVNULL,
                                                stdout=stderr, stderr=stderr, cwd=self.folder,
                                                env=environment)
            if self.want_qmp:
                self.qmp = self.connect(timeout)
            if self.serial_path:
                self.serial = Serial(self.serial_path, timeout)
        except BaseException:
            self.end()
            raise
        return self

    @property
    def pid(self):
        return self.process.pid

    @property
    def stderr(self):
        with open(self.stderr_path, encoding='utf-8', errors='replace') as file:
            return file.read()

    def connect(self, timeout=10):
        """A further control connection; waits for the socket to be there."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return Qmp(self.control, timeout=timeout)
            except (FileNotFoundError, ConnectionRefusedError):
                if self.process.poll() is not None:
                    raise AssertionError(f'{self.name} ended with status {self.process.returncode}: '
                                         f'{self.stderr}') from None
                if time.monotonic() > deadline:
                    raise TimeoutError(f'{self.name}: no control socket within {timeout} s') from None
                time.sleep(0.005)

    def migrate(self, uri, timeout=60, **arguments):
        """Moves the guest away and returns query-migrate's last answer."""
        self.qmp.execute('migrate', uri=uri, **arguments)
        return self.qmp.wait_migration(timeout=timeout)

    def wait(self, timeout=20):
        """Waits for the process to end by itself; its exit status (-9: killed)."""
        return self.process.wait(timeout)

    def kill(self):
        """SIGKILL, and waits until it is gone."""
        self.process.kill()
        return self.process.wait(10)

    def end(self):
        """Ends the process if it still runs, and removes what this object made. May be called twice."""
        for connection in (self.qmp, self.serial):
            if connection:
                connection.close()
        self.qmp = self.serial = None
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        if self._own_folder:
            shutil.rmtree(self._own_folder, ignore_errors=True)
