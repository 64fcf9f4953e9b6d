# SPDX-License-Identifier: Apache-2.0
"""The benchmark's pure parts: the guest's lines, the move among the gaps, speeds, rows, tables."""
import dataclasses
import json
import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, 'bench'))

from benchlib import cases, guestlog, measure, report  # noqa: E402

TICK = 2800000  # a millisecond


def gap(start_ms, length_ms, cpu=0, kind='run'):
    return guestlog.Gap(cpu, kind, round(start_ms * TICK), round(length_ms * TICK))


def ring(work, first_ms=0):
    return guestlog.Ring(first_ms * TICK, TICK, tuple(work))


def ring_lines(rows, newest_ms, kind='ring'):
    """Lines as the guest prints them; rows: one list of buckets a vCPU."""
    lines = [f'godwit-guest {kind} newest={newest_ms * TICK:#x} tick={TICK:#x} '
             f'buckets={len(rows[0])} cpus={len(rows)}']
    for cpu, row in enumerate(rows):
        for at in range(0, len(row), 64):
            digits = ''.join(f'{value:04x}' for value in row[at:at + 64])
            lines.append(f'godwit-guest work cpu={cpu} at={at} {digits}')
    return lines + [f'godwit-guest ring-end count={len(rows[0])}']


def test_lines():
    assert guestlog.split_line('godwit-guest interval=2 sweeps=222 wrong=0') == \
        ('interval', {'interval': '2', 'sweeps': '222', 'wrong': '0'}, [])
    assert guestlog.split_line('godwit-guest error no room hot=5') == \
        ('error', {'hot': '5'}, ['no', 'room'])
    assert guestlog.split_line('godwit-guest power-off') == ('power-off', {}, [])
    assert guestlog.split_line('oodwit-guest check wrong=0') is None
    assert guestlog.split_line('') is None


def test_gaps_are_parsed_once_and_in_order():
    lines = ['godwit-guest gap cpu=0 kind=run start=0x5000 length=0x100 us=1',
             'godwit-guest gap cpu=1 kind=move start=0x4000 length=0x2000 us=9',
             'godwit-guest gaps count=2',
             'est gap cpu=0 kind=run start=0x1 length=0x1',
             'godwit-guest top cpu=0 kind=run start=0x5000 length=0x100 us=1',
             'godwit-guest top cpu=0 kind=io start=0x100 length=0x300 us=1']
    assert guestlog.parse_gaps(lines) == [
        guestlog.Gap(0, 'io', 0x100, 0x300), guestlog.Gap(1, 'move', 0x4000, 0x2000),
        guestlog.Gap(0, 'run', 0x5000, 0x100)]
    assert guestlog.Gap(1, 'move', 0x4000, 0x2000).end == 0x6000


def test_ring_is_summed_over_vcpus():
    first = [100 + i for i in range(70)]
    second = [0x8000 | 7] * 70    # the mark of a device access is no work
    found = guestlog.parse_ring(ring_lines([first, second], 1000))
    assert found.tick == TICK
    assert found.first == (1000 - 69) * TICK
    assert found.work == tuple(value + 7 for value in first)


@pytest.mark.parametrize('cut', [0, 1, 2, 3])
def test_ring_must_be_whole(cut):
    lines = ring_lines([[1] * 130], 1000)
    assert len(lines) == 5
    del lines[cut]
    with pytest.raises(ValueError):
        guestlog.parse_ring(lines)


def test_ring_must_not_be_larger_than_it_says():
    lines = ring_lines([[1] * 64], 1000)
    lines.insert(2, 'godwit-guest work cpu=0 at=64 0001')
    with pytest.raises(ValueError, match='more buckets'):
        guestlog.parse_ring(lines)


def test_clock_map_by_two_pairs_and_by_rate():
    start = {'tsc': 5000000, 'realtime_ns': 1700000000000000000}
    end = {'tsc': 5000000 + 1000 * TICK, 'realtime_ns': 1700000001000000000}
    for clock in (measure.ClockMap(start, end), measure.ClockMap(start, khz=TICK)):
        assert abs(clock.tsc_at(1700000000500000000) - (5000000 + 500 * TICK)) <= 1000
    with pytest.raises(ValueError):
        measure.ClockMap(start)


def test_pause_is_the_gap_that_shares_most_time_with_the_stop():
    gaps = [gap(10, 5), gap(100, 0.4), gap(101, 3), gap(110, 9)]
    # STOP at 101.2, RESUME at 103.5: the long gaps before and after are preemption.
    found = measure.find_pause(gaps, round(101.2 * TICK), round(103.5 * TICK))
    assert found == [gap(101, 3)]
    assert measure.find_pause(gaps, 50 * TICK, 51 * TICK) == []


def test_pause_of_each_vcpu():
    gaps = [gap(100, 2), gap(100.5, 2.5, cpu=1), gap(102.2, 0.2)]
    found = measure.find_pause(gaps, 101 * TICK, 102 * TICK)
    assert found == [gap(100, 2), gap(100.5, 2.5, cpu=1)]


def test_pause_that_the_guest_knows_goes_first():
    # RESUME was stamped late, and something else kept the guest from running just after the move.
    gaps = [gap(10, 9, kind='move'), gap(100, 1, kind='move'), gap(101.1, 4)]
    assert measure.find_pause(gaps, round(100.5 * TICK), 104 * TICK) == [gaps[1]]


def test_longest_gap_within():
    gaps = [gap(10, 50), gap(100, 2), gap(200, 3)]
    assert measure.longest_gap(gaps, 90 * TICK, 210 * TICK) == 3 * TICK
    assert measure.longest_gap(gaps, 70 * TICK, 90 * TICK) == 0


def test_speed_before_is_a_median_of_windows():
    work = [1000] * 300
    for at in range(0, 300, 50):
        work[at] = 0    # now and then something else ran
    assert measure.speed_before(ring(work), 300 * TICK) == 1000
    with pytest.raises(ValueError):
        measure.speed_before(ring([5, 5]), 2 * TICK)


def test_a_guest_that_did_not_run_before_is_no_measure():
    with pytest.raises(ValueError, match='too busy'):
        measure.speed_before(ring([0] * 300), 300 * TICK)


def test_speed_before_leaves_out_what_follows():
    work = [1000] * 200 + [10] * 200
    assert measure.speed_before(ring(work), 200 * TICK, buckets=150) == 1000


def test_recovery_at_once():
    # Resumed in the middle of bucket 50.
    found = measure.recovery(ring([1000] * 50 + [300] + [1000] * 300), round(50.5 * TICK), 1000)
    assert found.ms == pytest.approx(0.5)
    assert found.mean20 == pytest.approx(1)
    assert found.mean200 == pytest.approx(1)


def test_recovery_after_a_brownout():
    work = [1000] * 50 + [0] + [100] * 10 + [900] * 10 + [1000] * 300
    found = measure.recovery(ring(work), round(50.25 * TICK), 1000)
    assert found.ms == pytest.approx(0.75 + 10)
    assert found.mean20 == pytest.approx((10 * 100 + 10 * 900) / 20 / 1000)
    assert found.mean200 == pytest.approx((10 * 100 + 10 * 900 + 180 * 1000) / 200 / 1000)


def test_recovery_that_never_comes_has_no_figure():
    found = measure.recovery(ring([1000] * 50 + [500] * 300), 50 * TICK, 1000)
    assert found.ms is None
    assert found.mean200 == pytest.approx(0.5)


def test_recovery_needs_the_ring_to_reach():
    with pytest.raises(ValueError, match='200 are needed'):
        measure.recovery(ring([1000] * 100), 50 * TICK, 1000)
    with pytest.raises(ValueError, match='reach back'):
        measure.recovery(ring([1000] * 400, first_ms=100), 50 * TICK, 1000)


def test_spread():
    assert measure.spread([3, None, 1, 10]) == measure.Spread(3, 1, 10, 3)
    assert measure.spread([1, 2]).median == 1.5
    assert measure.spread([None]) is None


CASE = cases.CASES[0]


def test_row_against_a_peer():
    ask = cases.Ask(cases.PAUSE, cases.QEMU, most=1 / 3, strict=False)
    row = report.make_row(CASE, ask, [{'pause_ms': 0.5}, {'pause_ms': 0.7}, {'pause_ms': 5}],
                          [{'pause_ms': 3.0}, {'pause_ms': 2.1}, {'pause_ms': 1.0}])
    assert (row.value, row.peer_value) == (0.7, 2.1)
    assert row.limit == pytest.approx(0.7) and row.ratio == pytest.approx(1 / 3)
    assert row.json('migrate') == {
        'bench': 'migrate', 'case': 'idle', 'metric': 'guest-pause', 'unit': 'ms', 'value': 0.7,
        'peer': 'QEMU', 'peer_value': 2.1, 'ratio': row.ratio, 'limit_value': row.limit}
    json.dumps(row.json('migrate'))


@pytest.mark.parametrize('value,verdict', [(0.99, 'ok'), (1.0, 'MISSED'), (1.2, 'MISSED')])
def test_row_below_a_limit(value, verdict):
    row = report.make_row(CASE, cases.Ask(cases.PAUSE, most=1), [{'pause_ms': value}], [])
    assert (row.verdict, row.limit, row.ratio) == (verdict, 1, None)


def test_row_at_least():
    ask = cases.Ask(cases.RATE, cases.BARE, least=0.8)
    rows = [report.make_row(CASE, ask, [{'rate': rate}], [{'rate': 1e9}])
            for rate in (0.79e9, 0.81e9)]
    assert [row.verdict for row in rows] == ['MISSED', 'ok']
    assert rows[0].value == 790 and rows[0].limit == 800


def test_worst_run_counts_for_the_longest_answer():
    runs = [{'answer_max_ms': 1}, {'answer_max_ms': 25}, {'answer_max_ms': 2}]
    row = report.make_row(CASE, cases.Ask(cases.WORST, most=20, strict=False), runs, [])
    assert (row.value, row.verdict) == (25, 'MISSED')


def test_absolute_limit_beside_a_peer():
    ask = cases.Ask(cases.RECOVERY, cases.QEMU, most=20, strict=False, absolute=True)
    row = report.make_row(CASE, ask, [{'recovery_ms': 20}], [{'recovery_ms': 2}])
    assert (row.limit, row.verdict, row.ratio) == (20, 'ok', 10)


def test_a_guest_that_never_got_back_to_speed_misses():
    ask = cases.Ask(cases.RECOVERY, most=20, strict=False)
    row = report.make_row(CASE, ask, [{'recovery_ms': 1}, {'recovery_ms': None}], [])
    assert row.verdict == 'MISSED'


def test_nothing_measured_is_no_success():
    ask = cases.Ask(cases.PAUSE, cases.QEMU, most=1 / 3)
    assert report.make_row(CASE, ask, [], []).verdict == 'not measured'
    assert report.make_row(CASE, ask, [{'pause_ms': 1}], []).verdict == 'not measured'
    assert report.make_row(CASE, cases.Ask(cases.BYTES, cases.QEMU), [], []).verdict == ''


def test_every_case_states_the_limits_of_its_kind():
    for case in cases.CASES:
        limits = {(ask.metric.name, ask.peer): ask for ask in cases.asks(case)
                  if ask.most is not None or ask.least is not None}
        assert ('guest-pause', None) in limits and ('guest-pause', cases.QEMU) in limits
        assert ('total-time', cases.QEMU) in limits
        assert limits[('recovery', cases.QEMU)].most == 20
        assert limits[('answer-median', cases.QEMU)].most == 2
        assert limits[('answer-max', cases.QEMU)].most == 20
        assert limits[('wrong-words', None)].most == 0
    assert ('rate', cases.BESIDE) in {(ask.metric.name, ask.peer) for ask in cases.asks(cases.CASES[0])
                                    if ask.least == 0.8}


def test_tables():
    row = report.make_row(CASE, cases.Ask(cases.PAUSE, most=1), [{'pause_ms': 0.5}, {'pause_ms': 0.7}],
                          [])
    first, line = report.plain([row])
    assert first.split() == ['Godwit', 'against', 'ratio', 'limit']
    assert line.startswith('pause seen by the guest, ms  0.60 (0.50-0.70)') and line.endswith('ok')
    assert report.markdown([row])[2] == \
        '| pause seen by the guest, ms | 0.60 (0.50-0.70) |  |  |  | < 1.00 | ok |'


def test_document_section_is_replaced():
    text = 'a\n<!-- begin migrate -->\nold\n<!-- end migrate -->\nb\n'
    assert report.replace_section(text, 'migrate', ['new']) == \
        'a\n<!-- begin migrate -->\nnew\n<!-- end migrate -->\nb\n'
    with pytest.raises(ValueError):
        report.replace_section(text, 'backings', [])


def test_cases_are_what_they_say():
    hot = dataclasses.replace(cases.CASES[1], cpus=2)
    assert hot.guest() == 'stress,hot=64M,fill=512M,cpus=2,interval=1000'
