# SPDX-License-Identifier: Apache-2.0
"""The outside of the program: usage, and refusals that say what is wrong and what to do."""
import contextlib
import os
import re
import socket
import struct

import pytest

import godwit

COMMANDS = ['run', 'migrate', 'status', 'qmp', 'demo', 'guest']


def complaint(result, status=1):
    """The text of a refusal: the right exit status, nothing on stdout, no crash, one short message."""
    assert result.returncode == status, f'{result.returncode}: {result.stdout}{result.stderr}'
    assert result.stdout == ''
    assert 'runtime error' not in result.stderr and 'Sanitizer' not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert 1 <= len(lines) <= 4, result.stderr
    assert all(line.isprintable() for line in lines)
    return result.stderr


def refused(folder, *arguments, **options):
    """The complaint of a `godwit run` that must not come up."""
    control = options.pop('control', f'unix:{folder}/q')
    return complaint(godwit.run('run', '--control', control, *arguments, timeout=20), **options)


def elf(folder, name='kernel', size=None):
    """The built-in guest as a PVH ELF, cut to size bytes."""
    path = os.path.join(folder, name)
    godwit.run('guest', '--write', path, check=0)
    if size is not None:
        os.truncate(path, size)
    return path


# Usage.

def test_help_names_every_command():
    result = godwit.run('--help', check=0)
    assert result.stderr == ''
    for command in COMMANDS:
        assert re.search(rf'^\s+{command}\b', result.stdout, re.MULTILINE), command


@pytest.mark.parametrize('command', COMMANDS)
def test_command_help(command):
    result = godwit.run(command, '--help', check=0)
    assert result.stderr == ''
    assert f'godwit {command}' in result.stdout
    assert '--help' in result.stdout


def test_version():
    assert re.fullmatch(r'godwit \d+\.\d+\.\d+\n', godwit.run('--version', check=0).stdout)


def test_no_command_is_a_usage_error():
    result = godwit.run()
    assert result.returncode == 2
    assert 'run' in result.stderr and result.stdout == ''


def test_unknown_command():
    text = complaint(godwit.run('frobnicate'), 2)
    assert 'frobnicate' in text and '--help' in text


@pytest.mark.parametrize('command', COMMANDS)
def test_unknown_option(command):
    text = complaint(godwit.run(command, '--frobnicate'), 2)
    assert '--frobnicate' in text


def test_option_without_value():
    assert '--memory' in complaint(godwit.run('run', '--memory'), 2)


# Values out of range.

@pytest.mark.parametrize('cpus', ['0', '65', '-1', 'two', '', '4294967297'])
def test_cpus_out_of_range(folder, cpus):
    text = refused(folder, '--guest', 'stress', '--cpus', cpus, status=2)
    assert '--cpus' in text and '64' in text or 'number' in text


@pytest.mark.parametrize('memory', ['0', 'much', '-1G', '1.5X', '99999999999T'])
def test_memory_no_size(folder, memory):
    assert '--memory' in refused(folder, '--guest', 'stress', '--memory', memory, status=2)


@pytest.mark.parametrize('memory', ['1K', '1M', '65M'])
def test_memory_not_in_steps_of_2m(folder, memory):
    text = refused(folder, '--guest', 'stress', '--memory', memory)
    assert memory[:-1] in text and '2 MiB' in text


def test_memory_more_than_possible(folder):
    text = refused(folder, '--guest', 'stress', '--memory', '900T')
    assert '900' in text and 'T' in text


def test_memory_backing_unknown(folder):
    text = refused(folder, '--guest', 'stress', '--memory-backing', 'floppy', status=2)
    for word in ('floppy', 'private', 'shared', 'hugetlb'):
        assert word in text


# Kernels.

def test_kernel_missing(folder):
    text = refused(folder, '--kernel', f'{folder}/nothing')
    assert f'{folder}/nothing' in text and 'No such file' in text


def test_kernel_is_a_folder(folder):
    assert folder in refused(folder, '--kernel', folder)


def test_kernel_no_elf(folder):
    path = os.path.join(folder, 'text')
    with open(path, 'w', encoding='ascii') as file:
        file.write('#!/bin/sh\necho no kernel\n' * 200)
    text = refused(folder, '--kernel', path)
    assert path in text and 'ELF' in text


def test_kernel_empty(folder):
    path = os.path.join(folder, 'empty')
    with open(path, 'w', encoding='ascii'):
        pass
    assert path in refused(folder, '--kernel', path)


@pytest.mark.parametrize('part', ['header', 'program headers', 'middle', 'last byte'])
def test_kernel_truncated(folder, part):
    path = elf(folder)
    with open(path, 'rb') as file:
        image = file.read()
    offset, count = struct.unpack_from('<Q', image, 32)[0], struct.unpack_from('<H', image, 56)[0]
    if image[4] == 1:  # 32-bit
        offset, count = struct.unpack_from('<I', image, 28)[0], struct.unpack_from('<H', image, 44)[0]
    entry = 32 if image[4] == 1 else 56
    end = 0  # of what is loaded; sections and symbols after it are nobody's business
    for index in range(count):
        at = offset + index * entry
        if image[4] == 1:
            kind, start, size = struct.unpack_from('<I', image, at)[0], *struct.unpack_from('<I8xI', image, at + 4)
        else:
            kind = struct.unpack_from('<I', image, at)[0]
            start, size = struct.unpack_from('<Q', image, at + 8)[0], struct.unpack_from('<Q', image, at + 32)[0]
        if kind == 1:
            end = max(end, start + size)
    size = {'header': 20, 'program headers': offset + 3, 'middle': end // 2, 'last byte': end - 1}[part]
    os.truncate(path, size)
    text = refused(folder, '--kernel', path)
    assert path in text


def test_no_kernel_and_no_guest(folder):
    text = refused(folder, status=2)
    assert '--kernel' in text and '--guest' in text


def test_initrd_missing(folder):
    text = refused(folder, '--kernel', elf(folder), '--initrd', f'{folder}/nothing')
    assert f'{folder}/nothing' in text


def test_guest_unknown(folder):
    """The guest itself says so, and powers off."""
    result = godwit.run('run', '--guest', 'solitaire', '--serial', 'stdio', timeout=20)
    lines = [godwit.Serial.parse(line) for line in result.stdout.splitlines()]
    errors = [line['text'] for line in lines if line and line['kind'] == 'error']
    assert len(errors) == 1 and 'solitaire' in errors[0] and 'stress' in errors[0], result.stdout


# Sockets.

def test_control_path_too_long(folder):
    path = os.path.join(folder, 'x' * 120)
    text = refused(folder, '--guest', 'stress', control=f'unix:{path}')
    assert path in text and '107 is the most' in text


def test_control_address_unknown(folder):
    assert 'unix:' in refused(folder, '--guest', 'stress', control='carrier-pigeon:1')


def test_control_folder_missing(folder):
    path = f'{folder}/nowhere/q'
    assert f'{folder}/nowhere' in refused(folder, '--guest', 'stress', control=f'unix:{path}')


def test_control_socket_taken(machine, folder):
    first = machine('--memory', '64M', '--guest', 'stress,hot=1M')
    text = refused(folder, '--guest', 'stress', '--name', 'other', control=f'unix:{first.control}')
    assert first.control in text and 'another process listens' in text
    # ... and the one that has it goes on serving.
    assert first.qmp.execute('query-status')['running'] is True


def test_control_socket_stale_is_replaced(machine, folder):
    path = os.path.join(folder, 'vm0.qmp')
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as stale:
        stale.bind(path)
    vm = machine('--memory', '64M', '--guest', 'stress,hot=1M')
    assert vm.control == path
    assert vm.qmp.execute('query-status')['running'] is True


def test_control_path_is_no_socket(folder):
    path = os.path.join(folder, 'precious')
    with open(path, 'w', encoding='ascii') as file:
        file.write('keep me')
    assert path in refused(folder, '--guest', 'stress', control=f'unix:{path}')
    with open(path, encoding='ascii') as file:
        assert file.read() == 'keep me'


# /dev/kvm.

@pytest.mark.skipif(os.geteuid() != 0, reason='needs root to hide /dev/kvm')
def test_no_kvm(folder):
    """In a mount namespace where /dev is empty."""
    script = 'mount -t tmpfs none /dev && exec "$0" run --guest stress --control "$1"'
    result = godwit.subprocess.run(['unshare', '--mount', 'sh', '-c', script, godwit.binary(), f'unix:{folder}/q'],
                                   stdin=godwit.subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    assert '/dev/kvm' in complaint(result)


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root to become somebody else')
def test_no_right_to_kvm(folder):
    """/dev/kvm is there but not for us: the message names the group."""
    os.chmod(folder, 0o777)
    script = ('mount -t tmpfs none /dev && mknod /dev/kvm c 10 232 && chown root:root /dev/kvm && '
              'chmod 660 /dev/kvm && exec setpriv --reuid 65534 --regid 65534 --clear-groups '
              '"$0" run --guest stress --control "$1"')
    reachable = os.path.join(folder, 'godwit')  # the build folder may not be readable to others
    godwit.shutil.copy(godwit.binary(), reachable)
    result = godwit.subprocess.run(['unshare', '--mount', 'sh', '-c', script, reachable, f'unix:{folder}/q'],
                                   stdin=godwit.subprocess.DEVNULL, capture_output=True, text=True, timeout=20,
                                   env=dict(os.environ, XDG_RUNTIME_DIR=folder))
    text = complaint(result)
    assert '/dev/kvm' in text and 'group' in text and 'root' in text


# It runs and ends.

def test_runs_and_quits(machine):
    vm = machine('--memory', '64M', '--cpus', '2', '--guest', 'stress,hot=1M')
    status = vm.qmp.execute('query-status')
    assert status['status'] == 'running' and status['running'] is True
    assert len(vm.qmp.execute('query-cpus-fast')) == 2
    assert vm.qmp.execute('query-memory-size-summary')['base-memory'] == 64 << 20
    vm.qmp.execute('quit')
    assert vm.wait() == 0
    assert not os.path.exists(vm.control)


def test_sigterm_ends_it(machine):
    vm = machine('--memory', '64M', '--guest', 'stress,hot=1M')
    vm.process.terminate()
    assert vm.wait() == 0
    assert not os.path.exists(vm.control)
