/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "machine/machine.h"

void fake_machine_emit(struct machine *machine, enum machine_event_type type, uint64_t value,
		       bool guest, const char *reason);
