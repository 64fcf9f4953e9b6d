/* SPDX-License-Identifier: Apache-2.0 */
/* Which run state may follow which: the one table that says so. */
#pragma once

#include <stdbool.h>
#include "machine/machine.h"

bool runstate_may_follow(enum machine_state from, enum machine_state to);

/* Why `cont` (or `stop`, or `system_reset`) is refused in this state: a sentence for the user, or
 * NULL when it is not. */
const char *runstate_refuse_cont(enum machine_state state);
const char *runstate_refuse_stop(enum machine_state state);
const char *runstate_refuse_reset(enum machine_state state);
