# SPDX-License-Identifier: Apache-2.0
"""What is asked of the host: clock pairs, the bare copy, huge pages, the temporary folder."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile

from .vmm import Failed, before_exec

HUGE_PAGES = '/proc/sys/vm/nr_hugepages'


class Interrupted(BaseException):
    pass


def _interrupt(number, _frame):
    raise Interrupted(signal.Signals(number).name)


@contextlib.contextmanager
def temporary_folder():
    """Removed at the end, also after SIGINT, SIGTERM and SIGHUP (which come as Interrupted)."""
    before = {number: signal.signal(number, _interrupt)
              for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    path = tempfile.mkdtemp(prefix='godwit-bench.')
    try:
        yield path
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        shutil.rmtree(path, ignore_errors=True)


def find_barecopy(godwit, folder):
    """The program: from the build folder, or compiled here from the source beside the scripts."""
    built = os.path.join(os.path.dirname(os.path.abspath(godwit)), 'bench', 'barecopy')
    if os.access(built, os.X_OK):
        return built
    source = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'barecopy.c')
    compiler = shutil.which('cc')
    if not compiler or not os.path.exists(source):
        raise Failed('the program barecopy is not built: run "make", or install a C compiler')
    path = os.path.join(folder, 'barecopy')
    subprocess.run([compiler, '-O2', '-D_GNU_SOURCE', '-pthread', source, '-o', path], check=True)
    return path


class Clocks:
    """Pairs of TSC and time of day, from a process that is there already when they are wanted."""

    def __init__(self, barecopy):
        self.process = subprocess.Popen([barecopy, '--clock'], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, preexec_fn=before_exec)

    def pair(self):
        self.process.stdin.write(b'\n')
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise Failed('barecopy --clock ended')
        return json.loads(line)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def bare_copy(barecopy, size, backing='private'):
    process = subprocess.Popen([barecopy, '--bytes', str(size), '--backing', backing],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, preexec_fn=before_exec)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise Failed(err.strip() or f'barecopy ended with status {process.returncode}')
    return json.loads(out)


def _huge_pages(count=None):
    with open(HUGE_PAGES, 'r' if count is None else 'w', encoding='ascii') as file:
        if count is None:
            return int(file.read())
        return file.write(str(count))


@contextlib.contextmanager
def huge_pages(size):
    """Sees to free huge pages (2 MiB) for `size` bytes, and puts their number back at the end.
    Gives False when they cannot be had."""
    try:
        before = _huge_pages()
    except OSError:
        yield False
        return
    wanted = before + -(-size // (2 << 20))
    try:
        try:
            _huge_pages(wanted)
            enough = _huge_pages() >= wanted
        except OSError:
            enough = False
        yield enough
    finally:
        with contextlib.suppress(OSError):
            if _huge_pages() != before:
                _huge_pages(before)


def keep_ahead():
    """The benchmark's own thread gets a CPU when it wants one, so that what it measures of the
    control socket is the monitor's time. Needs a right that root has; says whether it worked."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
        return True
    except OSError:
        return False
