# SPDX-License-Identifier: Apache-2.0
"""The same moves under Godwit on each kind of --memory-backing: the pause, and what comes after."""
import dataclasses

from . import cases, host, report, vmm

KINDS = ('private', 'shared', 'hugetlb')
SIZES = {'M': 1 << 20, 'G': 1 << 30}


def memory_bytes(case):
    return int(case.memory[:-1]) * SIZES[case.memory[-1]]


def asks(kind):
    peer = None if kind == KINDS[0] else KINDS[0]
    return [cases.Ask(metric, peer) for metric in
            (cases.PAUSE, cases.RECOVERY, cases.SPEED20, cases.SPEED200, cases.TOTAL, cases.RATE,
             cases.SPEED_BEFORE)] + [cases.Ask(cases.WRONG, most=0, strict=False)]


def measure(bench, chosen, wanted, say):
    """[(case, rows)], a part a case and kind; `say` tells what is left out."""
    largest = max(memory_bytes(case) for case in wanted)
    kinds = list(KINDS)
    # Both processes of a move, and the image beside them.
    with host.huge_pages(2 * largest + (64 << 20)) as reserved:
        if not reserved:
            say('hugetlb is left out: no right to set /proc/sys/vm/nr_hugepages, or too little '
                'memory')
            kinds.remove('hugetlb')
        for case in wanted:
            say(case.title)
            for number in range(chosen.runs):
                for kind in kinds:
                    monitor = vmm.Godwit(chosen.godwit, backing=kind, label=kind)
                    bench.move(case, kind, monitor, check=number == 0)
    return [(part(case, kind), [report.make_row(part(case, kind), ask, bench.of(case, kind),
                                                bench.of(case, ask.peer) if ask.peer else [])
                                for ask in asks(kind)])
            for case in wanted for kind in kinds]


def part(case, kind):
    return dataclasses.replace(case, name=f'{case.name}-{kind}', title=f'{case.title}; {kind}')
