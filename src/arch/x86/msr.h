/* SPDX-License-Identifier: Apache-2.0 */
/* Which model-specific registers a move carries beyond, or instead of, those KVM lists. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Carried otherwise or never: the TSC (vcpu_state.tsc), performance counters, and the like. */
bool x86_msr_left_out(uint32_t index);

/* Guest state that KVM_GET_MSR_INDEX_LIST does not list: the MTRRs. */
extern const uint32_t x86_msr_unlisted[];
extern const unsigned int x86_msr_unlisted_count;
