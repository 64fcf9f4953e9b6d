# SPDX-License-Identifier: Apache-2.0
"""One move of one guest under one monitor, and what was measured of it."""
import os
import time

from . import guestlog, measure
from .host import bare_copy
from .qmp import QmpError, event_ns
from .vmm import Failed

BEFORE_MS = 700     # of work, right before the move
AFTER_S = 0.45      # the guest is left alone after it
QUERY_EVERY = 0.005
MOVE_LIMIT = 30     # seconds; then the move is given up


def set_up(vmm, machine):
    capabilities = [{'capability': 'events', 'state': True}]
    machine.qmp.command('migrate-set-capabilities', capabilities=capabilities)
    if vmm.parameters:
        machine.qmp.command('migrate-set-parameters', **vmm.parameters)


def boot(vmm, case, folder):
    machine = vmm.start(folder, 'source', case)
    try:
        port = machine.serial   # before the first line comes
        machine.qmp.command('cont')
        port.wait('ready', timeout=60)
    except BaseException:
        machine.end()
        raise
    return machine


def query_until_done(qmp):
    """Asks query-migrate every 5 ms to the end. (last answer, [seconds an answer took])."""
    answers, deadline = [], time.monotonic() + MOVE_LIMIT
    due = time.monotonic()
    while True:
        asked = time.monotonic()
        info = qmp.command('query-migrate')
        answers.append(time.monotonic() - asked)
        status = info.get('status')
        if status == 'completed':
            return info, answers
        if status in ('failed', 'cancelled'):
            raise Failed(f'the migration {status}: {info.get("error-desc", "no reason is given")}')
        if time.monotonic() > deadline:
            raise Failed(f'the migration did not end within {MOVE_LIMIT} s (status {status})')
        now = time.monotonic()
        due = max(due + QUERY_EVERY, now)
        time.sleep(due - now)


def wait_socket(path, machine, timeout=10):
    deadline = time.monotonic() + timeout
    while not os.path.exists(path):
        machine.alive()
        if time.monotonic() > deadline:
            raise Failed('the destination does not listen')
        time.sleep(0.005)


def is_host_tsc(ready, pair, khz):
    """Whether the guest's TSC is the host's: `ready` was printed in the last minutes."""
    return -600 * 1000 * khz < guestlog.number(ready['tsc']) - pair['tsc'] < 1000 * khz


def floor(machine, clocks, barecopy, size):
    """A bare copy runs beside the guest, and nothing moves: its rates, and the ticks of the guest's
    longest gap meanwhile."""
    first = clocks.pair()['tsc']
    found = bare_copy(barecopy, size)
    last = clocks.pair()['tsc']
    lines = machine.serial.ask('g', 'gaps')
    return found, measure.longest_gap(guestlog.parse_gaps(lines), first, last)


def check_words(machine):
    answer = machine.serial.ask('c', 'check', timeout=60)
    return int(guestlog.split_line(answer[-1])[1]['wrong'])


def gaps_of_move(serial, find):
    """find() over the guest's list of gaps; the longer list takes a while to print."""
    for command in ('64g', '512g'):
        gaps = guestlog.parse_gaps(serial.ask(command, 'gaps'))
        found = find(gaps)
        if found:
            return found
    raise Failed(f'none of the guest\'s last {len(gaps)} gaps meets the time between STOP and '
                 'RESUME: the host is too busy to measure on')


def one_event(qmp, name, status=None):
    return event_ns(qmp.wait_event(
        lambda event: event['event'] == name and
        (status is None or event['data']['status'] == status), 10))


def guest_side(serial, find, khz, speed, since_ms):
    """What the guest itself tells of the move that began to stop it `since_ms` ago: its pause and
    its speed after it."""
    ring = guestlog.parse_ring(serial.ask(f'{min(4096, round(since_ms) + 100)}h', 'ring-end'))
    pauses = gaps_of_move(serial, find)
    resumed = max(gap.end for gap in pauses)
    again = measure.recovery(ring, resumed, speed)
    return {
        'pause_ms': max(gap.length for gap in pauses) / khz,
        'pause_from': 'guest',
        'pause_kind': sorted({gap.kind for gap in pauses}),
        'recovery_ms': again.ms,
        'speed20': again.mean20,
        'speed200': again.mean200,
        'work_ms': list(ring.work),
    }


def transfer(vmm, source, destination, clocks, check):
    """Moves the guest; a dictionary of what was measured."""
    uri = destination.path + '.move'
    wait_socket(uri, destination)
    set_up(vmm, source)
    khz = guestlog.number(source.serial.wait('boot')[0]['tsc-khz'])
    first = clocks.pair()
    host_tsc = is_host_tsc(source.serial.wait('ready')[0], first, khz)
    time.sleep(BEFORE_MS / 1000)
    before = guestlog.parse_ring(source.serial.ask(f'{BEFORE_MS}h', 'ring-end'))
    speed = measure.speed_before(before, before.first + len(before.work) * before.tick)
    time.sleep(0.1)

    source.qmp.events.clear()
    began = time.time_ns()
    source.qmp.command('migrate', uri=f'unix:{uri}')
    info, answers = query_until_done(source.qmp)
    resume = one_event(destination.qmp, 'RESUME')
    completed = one_event(source.qmp, 'MIGRATION', 'completed')
    stop = one_event(source.qmp, 'STOP')
    total = (max(resume, completed) - began) / 1e9
    time.sleep(AFTER_S)
    clock = measure.ClockMap(first, clocks.pair())
    result = {
        'events_ms': (resume - stop) / 1e6,
        'vmm_downtime_ms': info.get('downtime'),
        'total_ms': total * 1000,
        'vmm_total_ms': info.get('total-time'),
        'bytes': info['ram']['transferred'],
        'rate': info['ram']['transferred'] / total,
        'answer_median_ms': measure.spread(answers).median * 1000,
        'answer_max_ms': max(answers) * 1000,
        'answers': len(answers),
        'speed_before': speed,
        'rounds': info['ram'].get('dirty-sync-count'),
        'switchover': info.get('switchover-us'),
    }
    find = None
    if host_tsc:
        stop_tsc, resume_tsc = clock.tsc_at(stop), clock.tsc_at(resume)
        find = lambda gaps: measure.find_pause(gaps, stop_tsc, resume_tsc)  # noqa: E731
    elif vmm.reports_moves:
        find = lambda gaps: [gap for gap in gaps if gap.kind == 'move']  # noqa: E731
    if find:
        result |= guest_side(destination.serial, find, khz, speed, (time.time_ns() - stop) / 1e6)
    else:
        # The guest's TSC stood still, or cannot be placed in time.
        result |= {'pause_ms': result['events_ms'], 'pause_from': 'events'}
    result['wrong'] = check_words(destination) if check else None
    return result


def run(vmm, case, folder, clocks, barecopy, check=False, floor_size=None):
    """A guest is started, moved once, and ended."""
    os.mkdir(folder)
    machines = []
    try:
        source = boot(vmm, case, folder)
        machines.append(source)
        beside, stalled = floor(source, clocks, barecopy, floor_size) if floor_size else (None, None)
        destination = vmm.start(folder, 'destination', case,
                                'unix:' + os.path.join(folder, 'destination.move'))
        machines.append(destination)
        result = transfer(vmm, source, destination, clocks, check)
        if stalled is not None:
            khz = guestlog.number(source.serial.wait('boot')[0]['tsc-khz'])
            result['floor_ms'] = stalled / khz
            result['beside'] = beside
        return result
    except (QmpError, OSError, ValueError, KeyError) as error:
        raise Failed(f'{type(error).__name__}: {error}') from error
    finally:
        for machine in machines:
            machine.end()
