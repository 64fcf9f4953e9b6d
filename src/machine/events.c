/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine tells: events to its listener, and its published status. */
#include <time.h>
#include "base/log.h"
#include "machine/internal.h"

uint64_t machine_realtime_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000;
}

void machine_emit(struct machine *machine, const struct machine_event *event)
{
	struct machine_event stamped = *event;

	pthread_mutex_lock(&machine->event_lock);
	if (stamped.realtime_us == 0)
		stamped.realtime_us = machine_realtime_us();
	if (machine->listener)
		machine->listener(machine->opaque, &stamped);
	pthread_mutex_unlock(&machine->event_lock);
}

void machine_emit_simple(struct machine *machine, enum machine_event_type type)
{
	machine_emit(machine, &(struct machine_event){.type = type});
}

void machine_publish(struct machine *machine)
{
	struct machine_status status = {
		.state = machine->state,
		.running = machine->state == MACHINE_RUNNING,
		.cpus = machine->vcpu_count,
		.memory = machine->built ? machine->config.memory : 0,
		.backing = machine->config.backing,
	};

	for (unsigned int i = 0; machine->built && i < machine->vcpu_count; i++)
		status.vcpu_tid[i] = (pid_t)atomic_load(&machine->vcpus[i].tid);
	published_put(&machine->status, &status);
}

void machine_set_state(struct machine *machine, enum machine_state state)
{
	if (!runstate_may_follow(machine->state, state))
		log_error("run state %s does not follow %s; please report this",
			  machine_state_name(state), machine_state_name(machine->state));
	machine->state = state;
	machine_publish(machine);
}

void machine_query(struct machine *machine, struct machine_status *status)
{
	published_get(&machine->status, status);
	status->guest_pause_us = atomic_load(&machine->movegen.pause_us);
}
