/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device and vCPU state on the wire. The dictionary (SCHEMA) names every value once and thereby
 * gives it an id, its place in the dictionary; afterwards state travels as (id, value).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buffer.h"
#include "base/error.h"
#include "base/state.h"

struct state_binding {
	const struct state_object *object; /* NULL: known to the sender only, skipped */
	const struct state_field *field;
	uint32_t size;       /* bytes of the value */
	size_t early_offset; /* into state_map.early */
};

struct state_map {
	struct state_binding *bindings; /* by id */
	unsigned int count;
	size_t values_size; /* bytes of all values with their ids */
	uint8_t *early;     /* source: the values as they were sent early */
};

/* Source: every field of every object, in order. */
int state_map_build(struct state_map *map, const struct state_object *objects, unsigned int count,
		    struct error **err);
void state_map_encode(const struct state_map *map, struct buffer *schema);

/*
 * Destination: binds the source's dictionary to this machine's objects, by name. Refused by name:
 * a value this machine does not know (unless marked optional), one of another type or size, one
 * given twice, and one that is missing although machine version `source_version` had it.
 */
int state_map_decode(struct state_map *map, struct reader *schema,
		     const struct state_object *objects, unsigned int count,
		     unsigned int source_version, struct error **err);
void state_map_free(struct state_map *map);

/* Source: appends all values and remembers them as the early copy. */
void state_encode_early(struct state_map *map, struct buffer *out);
/* Source [window, with values_size reserved]: appends the values that differ from the early copy.
 */
void state_encode_delta(const struct state_map *map, struct buffer *out);
/*
 * Destination [window]: stores values into the objects' data. Ids ascend; all: every value of the
 * dictionary must be there (STATE-EARLY), so that none can be left at what it was by chance.
 */
int state_decode(const struct state_map *map, struct reader *in, bool all, struct error **err);
