/* SPDX-License-Identifier: Apache-2.0 */
#include "device/movegen.h"

#include "device/ports.h"

static const struct state_field fields[] = {
	STATE_FIELD(struct movegen_state, generation, STATE_U32, "generation"),
	STATE_FIELD(struct movegen_state, pause_us, STATE_U32, "pause_us"),
};

static void access(void *opaque, uint64_t offset, bool write, uint64_t *value, unsigned int size)
{
	struct movegen *movegen = opaque;

	if (!write)
		*value = atomic_load(&movegen->generation);
	else if (size == 4)
		atomic_store(&movegen->pause_us, (uint32_t)*value);
}

int movegen_attach(struct movegen *movegen, struct bus *ports, struct error **err)
{
	return bus_add(ports, PORT_MOVEGEN, 4, "movegen", access, movegen, err);
}

struct state_object movegen_object(struct movegen *movegen)
{
	return (struct state_object){.name = "movegen",
				     .fields = fields,
				     .count = sizeof(fields) / sizeof(fields[0]),
				     .data = &movegen->state};
}

void movegen_save(struct movegen *movegen)
{
	movegen->state.generation = atomic_load(&movegen->generation);
	movegen->state.pause_us = atomic_load(&movegen->pause_us);
}

void movegen_load(struct movegen *movegen)
{
	atomic_store(&movegen->generation, movegen->state.generation);
	atomic_store(&movegen->pause_us, movegen->state.pause_us);
}

void movegen_arrived(struct movegen *movegen)
{
	atomic_fetch_add(&movegen->generation, 1);
	atomic_store(&movegen->pause_us, 0);
}
