# SPDX-License-Identifier: Apache-2.0
"""Runs to rows, rows to JSON, text and Markdown."""
import dataclasses

from .measure import spread

FIELDS = ('bench', 'case', 'metric', 'unit', 'value', 'peer', 'peer_value', 'ratio', 'limit_value')
HEADS = ('', 'Godwit', 'against', '', 'ratio', 'limit', '')


@dataclasses.dataclass(frozen=True)
class Row:
    ask: object
    case: object
    own: object         # Spread or None
    other: object
    value: float
    peer_value: float
    ratio: float
    limit: float
    verdict: str        # ok, MISSED, not measured, or empty

    def json(self, bench):
        values = (bench, self.case.name, self.ask.metric.name, self.ask.metric.unit, self.value,
                  self.ask.peer, self.peer_value, self.ratio, self.limit)
        return dict(zip(FIELDS, values))

    def cells(self):
        metric = self.ask.metric
        sign = '≥' if self.ask.least is not None else '<' if self.ask.strict else '≤'
        return (metric.title + (f', {metric.unit}' if metric.unit else ''),
                text(self.own, metric), self.ask.peer or '',
                text(self.other, metric) if self.ask.peer else '',
                '' if self.ratio is None else f'{self.ratio:.3f}',
                '' if self.limit is None else f'{sign} {self.limit:.{max(metric.digits, 1)}f}',
                self.verdict)


def value_of(found, metric):
    return None if found is None else found.high if metric.worst else found.median


def text(found, metric):
    if found is None:
        return '-'
    shown = f'{value_of(found, metric):.{metric.digits}f}'
    if found.low == found.high:
        return shown
    return f'{shown} ({found.low:.{metric.digits}f}-{found.high:.{metric.digits}f})'


def judge(ask, value, limit):
    if ask.most is None and ask.least is None:
        return ''
    if value is None or limit is None:
        return 'not measured'
    if ask.least is not None:
        good = value >= limit
    else:
        good = value < limit if ask.strict else value <= limit
    return 'ok' if good else 'MISSED'


def make_row(case, ask, own_runs, peer_runs):
    """own_runs, peer_runs: dictionaries of the runs; peer_runs is empty where there is no peer."""
    metric = ask.metric
    scaled = [[run[metric.key] * metric.scale for run in runs if run.get(metric.key) is not None]
              for runs in (own_runs, peer_runs)]
    own, other = (spread(values) for values in scaled)
    value, peer_value = value_of(own, metric), value_of(other, metric)
    factor = ask.least if ask.least is not None else ask.most
    limit = factor
    if factor is not None and ask.peer and not ask.absolute:
        limit = None if peer_value is None else factor * peer_value
    ratio = value / peer_value if value is not None and peer_value else None
    # A run that was measured and never got back to speed has no figure, and misses the limit.
    lost = metric.key == 'recovery_ms' and any(
        'recovery_ms' in run and run['recovery_ms'] is None for run in own_runs)
    verdict = 'MISSED' if lost and limit is not None else judge(ask, value, limit)
    return Row(ask, case, own, other, value, peer_value, ratio, limit, verdict)


def plain(rows):
    """Lines of an aligned table; columns that are empty all over are kept narrow."""
    cells = [HEADS] + [row.cells() for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADS))]
    return ['  '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
            for line in cells]


def markdown(rows):
    heads = ['measure', 'Godwit', 'against', 'its figure', 'ratio', 'limit', 'verdict']
    lines = ['| ' + ' | '.join(heads) + ' |', '|' + ' --- |' * len(heads)]
    return lines + ['| ' + ' | '.join(row.cells()) + ' |' for row in rows]


def replace_section(document, name, lines):
    """The document with what stands between the marks of a section replaced."""
    begin, end = f'<!-- begin {name} -->', f'<!-- end {name} -->'
    head, found, rest = document.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f'the document has no section {begin} ... {end}')
    return head + begin + '\n' + '\n'.join(lines) + '\n' + end + tail
