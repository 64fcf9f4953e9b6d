#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The moves of the same guest under Godwit and under QEMU, and a bare copy of the same bytes.

What is measured and how: docs/benchmarks.md."""
import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from benchlib import backings, cases, host, measure, move, report, vmm  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def say(text):
    print(text, file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(
        prog='godwit bench migrate', allow_abbrev=False,
        description='Moves the built-in guest under Godwit and under QEMU in turn, and copies the '
                    'same bytes bare; prints medians, ratios and limits.')
    parser.add_argument('--godwit', metavar='FILE', default=os.path.join(ROOT, 'build', 'godwit'),
                        help='the program to measure (default: build/godwit of the source tree)')
    parser.add_argument('--runs', type=int, default=5, metavar='N', help='runs of each (5)')
    parser.add_argument('--case', action='append', choices=[case.name for case in cases.CASES],
                        help='only this case (may be given several times)')
    parser.add_argument('--cpus', type=int, default=1, metavar='N', help='vCPUs of the guest (1)')
    parser.add_argument('--backings', action='store_true',
                        help='instead, compare --memory-backing private, shared and hugetlb')
    parser.add_argument('--without', action='append', default=[], choices=['godwit', 'qemu', 'bare'],
                        help='leave one out')
    parser.add_argument('--json', action='store_true', help='print the rows as JSON, not a table')
    parser.add_argument('--output', metavar='FOLDER',
                        help='where the JSON files go (default: the folder of the program, if that '
                             'is a build folder)')
    parser.add_argument('--document', metavar='FILE',
                        help='also put the tables into this file (docs/benchmarks.md)')
    parser.add_argument('--check', action='store_true', help='exit status 1 when a limit is missed')
    chosen = parser.parse_args()
    if chosen.runs < 1 or not 1 <= chosen.cpus <= 64:
        parser.error('--runs is at least 1, --cpus 1 to 64')
    if chosen.backings and 'godwit' in chosen.without:
        parser.error('--backings compares Godwit with itself')
    if not os.access(chosen.godwit, os.X_OK):
        parser.error(f'{chosen.godwit} is not there: run "make", or name the program by --godwit')
    if not os.access('/dev/kvm', os.R_OK | os.W_OK):
        parser.error('no right to /dev/kvm: join the group kvm')
    folder = os.path.dirname(os.path.abspath(chosen.godwit))
    if not chosen.output and os.path.exists(os.path.join(folder, 'build.ninja')):
        chosen.output = folder
    return chosen


def contenders(chosen, elf):
    """{label: monitor}, Godwit first."""
    found = {}
    if 'godwit' not in chosen.without:
        found['Godwit'] = vmm.Godwit(chosen.godwit)
    if chosen.backings:
        return found
    qemu = vmm.find_qemu()
    if 'qemu' not in chosen.without and qemu:
        found[cases.QEMU] = vmm.Qemu(qemu, elf)
        found[cases.QEMU_5] = vmm.Qemu(qemu, elf, {'downtime-limit': 5}, cases.QEMU_5)
    elif 'qemu' not in chosen.without:
        say('qemu-system-x86_64 is not installed: no comparison (Debian: qemu-system-x86)')
    return found


class Bench:
    """Runs things one after the other in one folder; keeps what came out by case and label."""

    def __init__(self, folder, barecopy):
        self.folder, self.barecopy = folder, barecopy
        self.clocks = host.Clocks(barecopy)
        self.runs, self.failures, self.number = {}, [], 0

    def of(self, case, label):
        return self.runs.setdefault((case.name, label), [])

    def attempt(self, case, label, action):
        began = time.monotonic()
        try:
            result = action()
        except vmm.Failed as error:
            self.failures.append({'case': case.name, 'label': label, 'error': str(error)})
            say(f'  {case.name:10} {label:18} failed: {error}')
            return
        self.of(case, label).append(result)
        shown = f'{result["pause_ms"]:8.2f} ms pause {result["total_ms"]:7.0f} ms in total' \
            if 'pause_ms' in result else f'{result["rate"] / 1e6:8.0f} MB/s'
        say(f'  {case.name:10} {label:18} {shown}  ({time.monotonic() - began:.1f} s)')

    def move(self, case, label, monitor, check=False, floor_size=None):
        self.number += 1
        folder = os.path.join(self.folder, str(self.number))
        self.attempt(case, label, lambda: self.move_result(case, monitor, folder, check, floor_size))

    def move_result(self, case, monitor, folder, check, floor_size):
        result = move.run(monitor, case, folder, self.clocks, self.barecopy, check, floor_size)
        if 'beside' in result:
            self.of(case, cases.BESIDE).append({'rate': result['beside']['total_rate']})
            self.of(case, cases.BESIDE_WARM).append({'rate': result['beside']['warm_rate']})
        return result

    def bare(self, case, size):
        self.attempt(case, cases.BARE, lambda: self.bare_result(case, size))

    def bare_result(self, case, size):
        found = host.bare_copy(self.barecopy, size)
        self.of(case, cases.WARM).append({'rate': found['warm_rate']})
        return {'rate': found['total_rate'], **found}

    def bytes_moved(self, case):
        for label in ('Godwit', cases.QEMU):
            if self.of(case, label):
                return self.of(case, label)[-1]['bytes']
        return case.bare


def measure_case(bench, chosen, case, monitors):
    for number in range(chosen.runs):
        for label, monitor in monitors.items():
            own = label == 'Godwit'
            if own or label in case.peers:
                bench.move(case, label, monitor, check=number == 0,
                           floor_size=bench.bytes_moved(case) if own else None)
        if 'bare' not in chosen.without:
            bench.bare(case, bench.bytes_moved(case))


def host_lines(chosen, monitors):
    """What the figures hold for: machine, programs."""
    model = 'unknown processor'
    with open('/proc/cpuinfo', encoding='utf-8') as file:
        for line in file:
            if line.startswith('model name'):
                model = line.split(':', 1)[1].strip()
                break
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30)
    versions = [f'{monitor.name} {monitor.version()}' for label, monitor in monitors.items()
                if label in ('Godwit', cases.QEMU)]
    return [f'{os.cpu_count()} CPUs ({model}), {memory:.0f} GiB, Linux {platform.release()}, '
            f'{", ".join(versions)}; {chosen.runs} runs, {chosen.cpus} vCPU'
            f'{"s" if chosen.cpus > 1 else ""}; load at the start {os.getloadavg()[0]:.1f}.']


def tables(bench, chosen, wanted):
    """[(case, rows)]"""
    return [(case, [report.make_row(case, ask, bench.of(case, 'Godwit'),
                                    bench.of(case, ask.peer) if ask.peer else [])
                    for ask in cases.asks(case)])
            for case in wanted]


def account_lines(bench, case):
    """Medians of the parts that Godwit itself gives of the pause."""
    accounts = [run['switchover'] for run in bench.of(case, 'Godwit') if run.get('switchover')]
    if not accounts:
        return []
    parts = [f'{name} {measure.spread([one.get(name) for one in accounts]).median:.0f}'
             for name in accounts[0]]
    return [f'Godwit\'s own account of the pause, medians in us: {", ".join(parts)}.']


def failure_lines(bench):
    return [f'{failure["case"]}, {failure["label"]}: {failure["error"]}' for failure in bench.failures]


def write_files(chosen, name, rows, bench):
    if not chosen.output:
        return
    os.makedirs(chosen.output, exist_ok=True)
    runs = [{'case': case, 'label': label, 'runs': runs}
            for (case, label), runs in bench.runs.items()]
    for suffix, content in (('', rows), ('-runs', {'runs': runs, 'failures': bench.failures})):
        path = os.path.join(chosen.output, f'bench-{name}{suffix}.json')
        with open(path, 'w', encoding='utf-8') as file:
            json.dump(content, file, indent=1)
            file.write('\n')
        say(f'written: {os.path.relpath(path)}')


def write_document(path, section, lines):
    with open(path, encoding='utf-8') as file:
        document = file.read()
    with open(path, 'w', encoding='utf-8') as file:
        file.write(report.replace_section(document, section, lines))
    say(f'written: {path}')


def finish(chosen, bench, found, about, name):
    rows = [row.json(name) for _, rows in found for row in rows]
    if chosen.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
    else:
        print('\n'.join(about))
        for case, part in found:
            print(f'\n{case.title}')
            print('\n'.join('  ' + line for line in report.plain(part) + account_lines(bench, case)))
        for line in failure_lines(bench):
            print(f'failed: {line}')
    write_files(chosen, name, rows, bench)
    if chosen.document:
        lines = list(about)
        for case, part in found:
            lines += ['', f'### {case.title[0].upper()}{case.title[1:]}', ''] + report.markdown(part)
            lines += ['', *account_lines(bench, case)]
        lines += ['', *(f'Failed: {line}' for line in failure_lines(bench))]
        write_document(chosen.document, name, lines)
    missed = [row for _, part in found for row in part if row.verdict not in ('', 'ok')]
    own_failures = [failure for failure in bench.failures
                    if failure['label'] == 'Godwit' or chosen.backings]
    if missed or own_failures:
        say(f'{len(missed)} limits missed or not measured, {len(own_failures)} runs failed')
    return 1 if chosen.check and (missed or own_failures) else 0


def main():
    chosen = arguments()
    wanted = [dataclasses.replace(case, cpus=chosen.cpus) for case in cases.CASES
              if not chosen.case or case.name in chosen.case]
    with host.temporary_folder() as folder:
        barecopy = host.find_barecopy(chosen.godwit, folder)
        elf = os.path.join(folder, 'guest.elf')
        subprocess.run([chosen.godwit, 'guest', '--write', elf], check=True)
        if not host.keep_ahead():
            say('no right to raise the benchmark\'s own priority: waiting for a CPU shows in the '
                'answer times')
        bench = Bench(folder, barecopy)
        monitors = contenders(chosen, elf)
        about = host_lines(chosen, monitors)
        try:
            if chosen.backings:
                found = backings.measure(bench, chosen, wanted, say)
            else:
                for case in wanted:
                    say(case.title)
                    measure_case(bench, chosen, case, monitors)
                found = tables(bench, chosen, wanted)
        finally:
            bench.clocks.close()
    return finish(chosen, bench, found, about, 'backings' if chosen.backings else 'migrate')


if __name__ == '__main__':
    try:
        sys.exit(main())
    except vmm.Failed as problem:
        sys.exit(f'godwit bench: {problem}')
    except host.Interrupted as problem:
        sys.exit(f'godwit bench: ended by {problem}')
