# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: monitors, the guest's lines, measures, tables."""
