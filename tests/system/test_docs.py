# SPDX-License-Identifier: Apache-2.0
"""What --help says, the man pages and the completions agree: the same commands, the same options."""
import os
import re
import shutil
import subprocess

import pytest

import godwit

OPTION = re.compile(r'(?<![\w-])--([a-z][a-z0-9-]*)')


def read(name):
    with open(os.path.join(godwit.ROOT, name), encoding='utf-8') as file:
        return file.read()


def commands():
    """The commands in `godwit --help`: a line each, indented, under a line that says so."""
    text = godwit.run('--help', check=0).stdout
    found = re.findall(r'^ +([a-z]+)  +\S', text, re.MULTILINE)
    assert 'migrate' in found, text
    return found


def options_of_help(command):
    """The options listed in the help, at the beginning of a line; of the program itself, all it names."""
    text = godwit.run(*([command] if command else []), '--help', check=0).stdout
    if not command:
        return set(OPTION.findall(text)) - {'option'}  # "[--option value]..." stands for any
    return set(re.findall(r'^ *(?:-\w, )?--([a-z][a-z0-9-]*)', text, re.MULTILINE))


def options_of_man(command):
    text = read(f'man/godwit-{command}.1' if command else 'man/godwit.1')
    return set(re.findall(r'^\.It Fl -([a-z][a-z0-9-]*)', text, re.MULTILINE))


def options_of_bash(command):
    script = 'source "$1"; _godwit_options "$2"'
    text = subprocess.run(['bash', '-c', script, 'bash', os.path.join(godwit.ROOT, 'completions/godwit.bash'),
                           command or ''], capture_output=True, text=True, check=True).stdout
    return set(OPTION.findall(text))


def options_of_zsh(command):
    text = read('completions/_godwit')
    if command:
        text = re.search(rf'^{command}\)$(.*?)^\t;;$', text, re.MULTILINE | re.DOTALL).group(1)
    else:
        text = text.split('case $command')[0]
    return set(re.findall(r"'\*?--([a-z][a-z0-9-]*)\[", text))


def pages():
    """Commands that have a man page, and the program itself."""
    names = sorted(os.listdir(os.path.join(godwit.ROOT, 'man')))
    return [''] + [name[len('godwit-'):-2] for name in names if name.startswith('godwit-')]


def test_every_command_is_documented():
    for command in commands():
        assert os.path.exists(os.path.join(godwit.ROOT, f'man/godwit-{command}.1')), command
        assert f'.It Cm {command}\n' in read('man/godwit.1'), command
        assert re.search(rf"^\t'{command}:", read('completions/_godwit'), re.MULTILINE), command
    text = subprocess.run(['bash', '-c', 'source "$1"; COMP_WORDS=(godwit ""); COMP_CWORD=1; _godwit; '
                           'echo "${COMPREPLY[@]}"', 'bash',
                           os.path.join(godwit.ROOT, 'completions/godwit.bash')],
                          capture_output=True, text=True, check=True).stdout.split()
    assert set(commands()) <= set(text)


@pytest.mark.parametrize('command', pages())
def test_options_agree(command):
    if command and command not in commands():
        pytest.skip(f'this build has no command {command}')
    said = options_of_help(command)
    assert 'help' in said
    assert options_of_man(command) == said, 'man page'
    assert options_of_bash(command) == said, 'completions/godwit.bash'
    assert options_of_zsh(command) == said, 'completions/_godwit'


def test_bash_completes():
    script = ('source "$1"; compopt() { :; }; '
              'COMP_WORDS=(godwit run --memory-backing s); COMP_CWORD=3; _godwit; echo "${COMPREPLY[@]}"; '
              'COMP_WORDS=(godwit mig); COMP_CWORD=1; _godwit; echo "${COMPREPLY[@]}"; '
              'COMP_WORDS=(godwit demo --ro); COMP_CWORD=2; _godwit; echo "${COMPREPLY[@]}"')
    text = subprocess.run(['bash', '-c', script, 'bash', os.path.join(godwit.ROOT, 'completions/godwit.bash')],
                          capture_output=True, text=True, check=True).stdout
    assert text.splitlines() == ['shared', 'migrate', '--rounds']


@pytest.mark.parametrize('page', sorted(os.listdir(os.path.join(godwit.ROOT, 'man'))))
def test_man_page_is_well_formed(page):
    path = os.path.join(godwit.ROOT, 'man', page)
    text = read(f'man/{page}')
    assert text.startswith('.\\" SPDX-License-Identifier: Apache-2.0\n')
    for section in ('NAME', 'SYNOPSIS', 'DESCRIPTION', 'EXIT STATUS'):
        assert f'\n.Sh {section}\n' in text
    for other in re.findall(r'^\.Xr (godwit\S*) 1', text, re.MULTILINE):
        assert os.path.exists(os.path.join(godwit.ROOT, 'man', f'{other}.1')), other
    if shutil.which('mandoc'):
        result = subprocess.run(['mandoc', '-Tlint', '-Wwarning', path], capture_output=True, text=True)
        assert result.stdout == ''


@pytest.mark.skipif(not os.path.isdir(os.path.join(godwit.ROOT, '.git')) and
                    not os.path.isfile(os.path.join(godwit.ROOT, '.git')), reason='not a git checkout')
def test_files_carry_their_licence():
    names = subprocess.run(['git', '-C', godwit.ROOT, 'ls-files', '*.c', '*.h', '*.S', '*.py', '*.pml', '*.1',
                            '*meson.build', 'scripts/*', 'Makefile'], capture_output=True, text=True,
                           check=True).stdout.split()
    assert names
    for name in names:
        wanted = 'GPL-2.0' if name.startswith('linux/') else 'Apache-2.0'
        if os.path.exists(os.path.join(godwit.ROOT, name)):
            assert f'SPDX-License-Identifier: {wanted}' in read(name)[:400], name


def test_links_lead_somewhere():
    names = subprocess.run(['git', '-C', godwit.ROOT, 'ls-files', '*.md'], capture_output=True, text=True,
                           check=True).stdout.split()
    for name in names:
        for target in re.findall(r'\]\(([^)#:]+)(?:#[^)]*)?\)', read(name)):
            path = os.path.join(godwit.ROOT, os.path.dirname(name), target)
            assert os.path.exists(path), f'{name}: {target}'
