/* SPDX-License-Identifier: Apache-2.0 */
#include "machine/runstate.h"

#include <stddef.h>

#define TO(state) (1u << MACHINE_##state)

static const char *const names[] = {
	[MACHINE_PRELAUNCH] = "prelaunch",
	[MACHINE_INMIGRATE] = "inmigrate",
	[MACHINE_RUNNING] = "running",
	[MACHINE_PAUSED] = "paused",
	[MACHINE_FINISH_MIGRATE] = "finish-migrate",
	[MACHINE_POSTMIGRATE] = "postmigrate",
	[MACHINE_SHUTDOWN] = "shutdown",
	[MACHINE_INTERNAL_ERROR] = "internal-error",
};

static const unsigned int transitions[] = {
	[MACHINE_PRELAUNCH] = TO(RUNNING) | TO(FINISH_MIGRATE),
	[MACHINE_INMIGRATE] = TO(RUNNING) | TO(PAUSED),
	[MACHINE_RUNNING] = TO(PAUSED) | TO(FINISH_MIGRATE) | TO(SHUTDOWN) | TO(INTERNAL_ERROR),
	[MACHINE_PAUSED] = TO(RUNNING) | TO(FINISH_MIGRATE) | TO(SHUTDOWN) | TO(INTERNAL_ERROR) |
			   TO(POSTMIGRATE),
	[MACHINE_FINISH_MIGRATE] = TO(PRELAUNCH) | TO(RUNNING) | TO(PAUSED) | TO(POSTMIGRATE),
	/* Nothing: the guest runs elsewhere. */
	[MACHINE_POSTMIGRATE] = 0,
	/* After a reset. */
	[MACHINE_SHUTDOWN] = TO(PRELAUNCH),
	[MACHINE_INTERNAL_ERROR] = TO(PRELAUNCH),
};

const char *machine_state_name(enum machine_state state)
{
	return names[state];
}

bool runstate_may_follow(enum machine_state from, enum machine_state to)
{
	return transitions[from] >> to & 1;
}

static const char busy[] = "the guest is being handed over at this moment; try again when the "
			   "migration has ended";
static const char moved[] = "the guest has moved away and runs in another process; this one can "
			    "only quit";

const char *runstate_refuse_cont(enum machine_state state)
{
	switch (state) {
	case MACHINE_FINISH_MIGRATE:
		return busy;
	case MACHINE_POSTMIGRATE:
		return moved;
	case MACHINE_SHUTDOWN:
		return "the guest has powered itself off; system_reset starts it anew";
	case MACHINE_INTERNAL_ERROR:
		return "KVM could not go on with this guest; system_reset starts it anew";
	default:
		return NULL;
	}
}

const char *runstate_refuse_stop(enum machine_state state)
{
	return state == MACHINE_FINISH_MIGRATE ? busy : NULL;
}

const char *runstate_refuse_reset(enum machine_state state)
{
	switch (state) {
	case MACHINE_FINISH_MIGRATE:
		return busy;
	case MACHINE_POSTMIGRATE:
		return moved;
	case MACHINE_INMIGRATE:
		return "the guest has not arrived yet";
	default:
		return NULL;
	}
}
