/* SPDX-License-Identifier: Apache-2.0 */
#include "migration/state_map.h"

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME   64
#define MAX_FIELDS 65536u
#define MAX_VALUE  (1u << 20)
#define MAX_VALUES (3u << 20) /* all of them together, so that STATE fits one message */

static int map_allocate(struct state_map *map, unsigned int count, struct error **err)
{
	map->bindings = calloc(count ? count : 1, sizeof(*map->bindings));
	map->count = 0;
	map->values_size = 0;
	map->early = NULL;
	return map->bindings ? 0 : error_set(err, -ENOMEM, "out of memory");
}

static void map_append(struct state_map *map, const struct state_object *object,
		       const struct state_field *field, uint32_t size)
{
	map->bindings[map->count] = (struct state_binding){
		.object = object,
		.field = field,
		.size = size,
		.early_offset = map->values_size - 4 * (size_t)map->count,
	};
	map->count++;
	map->values_size += 4 + size;
}

int state_map_build(struct state_map *map, const struct state_object *objects, unsigned int count,
		    struct error **err)
{
	unsigned int fields = 0;

	for (unsigned int i = 0; i < count; i++)
		fields += objects[i].count;
	if (map_allocate(map, fields, err) < 0)
		return -ENOMEM;
	for (unsigned int i = 0; i < count; i++)
		for (unsigned int f = 0; f < objects[i].count; f++)
			map_append(map, &objects[i], &objects[i].fields[f],
				   objects[i].fields[f].size);
	if (map->values_size > MAX_VALUES || fields > MAX_FIELDS) {
		state_map_free(map);
		return error_set(err, -E2BIG, "the machine has too much device state to send");
	}
	map->early = calloc(1, map->values_size ? map->values_size : 1);
	if (!map->early) {
		state_map_free(map);
		return error_set(err, -ENOMEM, "out of memory");
	}
	return 0;
}

void state_map_free(struct state_map *map)
{
	free(map->bindings);
	free(map->early);
	memset(map, 0, sizeof(*map));
}

void state_map_encode(const struct state_map *map, struct buffer *schema)
{
	const struct state_object *last = NULL;
	unsigned int objects = 0;
	size_t count_at = schema->size;

	buffer_put_u32(schema, 0);
	for (unsigned int id = 0; id < map->count; id++) {
		const struct state_binding *binding = &map->bindings[id];

		if (binding->object != last) {
			last = binding->object;
			objects++;
			buffer_put_string(schema, last->name);
			buffer_put_u32(schema, last->instance);
			buffer_put_u32(schema, last->count);
		}
		buffer_put_string(schema, binding->field->name);
		buffer_put_u8(schema, (uint8_t)binding->field->type);
		buffer_put_u32(schema, binding->size);
		buffer_put_u16(schema, binding->field->flags);
	}
	if (!schema->error)
		buffer_set_u32(schema, count_at, objects);
}

static const struct state_object *find_object(const struct state_object *objects,
					      unsigned int count, const char *name,
					      uint32_t instance)
{
	for (unsigned int i = 0; i < count; i++)
		if (objects[i].instance == instance && strcmp(objects[i].name, name) == 0)
			return &objects[i];
	return NULL;
}

static const struct state_field *find_field(const struct state_object *object, const char *name)
{
	for (unsigned int i = 0; i < object->count; i++)
		if (strcmp(object->fields[i].name, name) == 0)
			return &object->fields[i];
	return NULL;
}

/* Which of this machine's fields the dictionary has named so far. */
struct binder {
	const struct state_object *objects;
	unsigned int count;
	bool *seen;   /* one an object */
	bool **bound; /* one a field; all rows lie in bound[0] */
};

static int binder_init(struct binder *binder, const struct state_object *objects,
		       unsigned int count, struct error **err)
{
	size_t fields = 1;

	for (unsigned int i = 0; i < count; i++)
		fields += objects[i].count;
	*binder = (struct binder){.objects = objects, .count = count};
	binder->seen = calloc(count + 1, sizeof(*binder->seen));
	binder->bound = calloc(count + 1, sizeof(*binder->bound));
	if (!binder->seen || !binder->bound || !(binder->bound[0] = calloc(fields, sizeof(bool))))
		return error_set(err, -ENOMEM, "out of memory");
	for (unsigned int i = 1; i < count; i++)
		binder->bound[i] = binder->bound[i - 1] + objects[i - 1].count;
	return 0;
}

static void binder_free(struct binder *binder)
{
	if (binder->bound)
		free(binder->bound[0]);
	free(binder->bound);
	free(binder->seen);
}

/* Names come from the stream and end up in messages. */
static void get_name(struct reader *schema, char name[MAX_NAME])
{
	reader_get_string(schema, name, MAX_NAME);
	for (const char *c = name; *c; c++)
		if (*c <= ' ' || *c > '~')
			schema->failed = true;
	if (!*name)
		schema->failed = true;
}

struct field_header {
	char name[MAX_NAME];
	unsigned int type, flags;
	uint32_t size;
};

static int bind_field(struct state_map *map, struct binder *binder,
		      const struct state_object *object, const char *where, uint32_t instance,
		      const struct field_header *header, struct error **err)
{
	bool *bound;
	const struct state_field *field = object ? find_field(object, header->name) : NULL;

	if (header->size > MAX_VALUE || map->values_size + 4 + header->size > MAX_VALUES)
		return error_set(err, -EPROTO, "state value '%s %u: %s' is too large (%u bytes)",
				 where, instance, header->name, header->size);
	if (!field) {
		if (!(header->flags & STATE_OPTIONAL))
			return error_set(err, -EINVAL,
					 "the source sends '%s %u: %s', which this machine does "
					 "not have",
					 where, instance, header->name);
		map_append(map, NULL, NULL, header->size);
		return 0;
	}
	if (header->size != field->size)
		return error_set(err, -EINVAL, "'%s %u: %s' has %u bytes on the source and %u here",
				 where, instance, header->name, header->size, field->size);
	if (header->type != field->type)
		return error_set(err, -EINVAL,
				 "'%s %u: %s' is of type %u on the source and of type %u here",
				 where, instance, header->name, header->type, field->type);
	bound = &binder->bound[object - binder->objects][field - object->fields];
	if (*bound)
		return error_set(err, -EPROTO, "the source names '%s %u: %s' twice", where,
				 instance, header->name);
	*bound = true;
	map_append(map, object, field, header->size);
	return 0;
}

static int check_missing(const struct binder *binder, unsigned int source_version,
			 struct error **err)
{
	for (unsigned int i = 0; i < binder->count; i++) {
		const struct state_object *object = &binder->objects[i];

		for (unsigned int f = 0; f < object->count; f++) {
			const struct state_field *field = &object->fields[f];

			if (binder->bound[i][f] || field->since > source_version ||
			    (field->flags & STATE_OPTIONAL))
				continue;
			return error_set(err, -EINVAL,
					 "the source does not send '%s %u: %s', which this machine "
					 "needs",
					 object->name, object->instance, field->name);
		}
	}
	return 0;
}

static int decode_objects(struct state_map *map, struct reader *schema, struct binder *binder,
			  struct error **err)
{
	uint32_t sent = reader_get_u32(schema);

	for (uint32_t i = 0; i < sent && !schema->failed; i++) {
		const struct state_object *object;
		char where[MAX_NAME];
		uint32_t instance, fields;

		get_name(schema, where);
		instance = reader_get_u32(schema);
		fields = reader_get_u32(schema);
		if (schema->failed)
			break;
		object = find_object(binder->objects, binder->count, where, instance);
		if (object && binder->seen[object - binder->objects])
			return error_set(err, -EPROTO, "the source names '%s %u' twice", where,
					 instance);
		if (object)
			binder->seen[object - binder->objects] = true;
		for (uint32_t f = 0; f < fields && !schema->failed; f++) {
			struct field_header header;
			int status;

			get_name(schema, header.name);
			header.type = reader_get_u8(schema);
			header.size = reader_get_u32(schema);
			header.flags = reader_get_u16(schema);
			if (schema->failed)
				break;
			if (map->count == MAX_FIELDS)
				return error_set(err, -EPROTO,
						 "the source names more than %u "
						 "state values",
						 MAX_FIELDS);
			status = bind_field(map, binder, object, where, instance, &header, err);
			if (status < 0)
				return status;
		}
	}
	if (schema->failed || reader_left(schema))
		return error_set(err, -EPROTO, "the source's state dictionary is damaged");
	return 0;
}

int state_map_decode(struct state_map *map, struct reader *schema,
		     const struct state_object *objects, unsigned int count,
		     unsigned int source_version, struct error **err)
{
	/* A field takes at least 9 bytes of the dictionary, which bounds their number. */
	size_t most = reader_left(schema) / 9 + 1;
	struct binder binder;
	int status;

	status = map_allocate(map, most > MAX_FIELDS ? MAX_FIELDS : (unsigned int)most, err);
	if (status == 0)
		status = binder_init(&binder, objects, count, err);
	else
		return status;
	if (status == 0)
		status = decode_objects(map, schema, &binder, err);
	if (status == 0)
		status = check_missing(&binder, source_version, err);
	binder_free(&binder);
	if (status < 0)
		state_map_free(map);
	return status;
}

/* The hosts that Godwit runs on are little-endian, as the stream is. */
_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "state values need swapping here");

static uint8_t *value_place(const struct state_binding *binding)
{
	return (uint8_t *)binding->object->data + binding->field->offset;
}

static void value_put(struct buffer *out, unsigned int id, const struct state_binding *binding)
{
	void *space;

	buffer_put_u32(out, id);
	space = buffer_put_space(out, binding->size);
	if (space)
		memcpy(space, value_place(binding), binding->size);
}

void state_encode_early(struct state_map *map, struct buffer *out)
{
	for (unsigned int id = 0; id < map->count; id++) {
		const struct state_binding *binding = &map->bindings[id];

		memcpy(map->early + binding->early_offset, value_place(binding), binding->size);
		value_put(out, id, binding);
	}
}

void state_encode_delta(const struct state_map *map, struct buffer *out)
{
	for (unsigned int id = 0; id < map->count; id++) {
		const struct state_binding *binding = &map->bindings[id];

		if (memcmp(map->early + binding->early_offset, value_place(binding),
			   binding->size) != 0)
			value_put(out, id, binding);
	}
}

int state_decode(const struct state_map *map, struct reader *in, bool all, struct error **err)
{
	uint32_t next = 0;

	while (reader_left(in) && !in->failed) {
		uint32_t id = reader_get_u32(in);
		const struct state_binding *binding;
		const void *value;

		if (in->failed || id >= map->count)
			return error_set(err, -EPROTO, "device state damaged: no value has id %u",
					 id);
		if (id < next || (all && id > next))
			return error_set(err, -EPROTO,
					 "device state damaged: value %u came where "
					 "%u was due",
					 id, next);
		next = id + 1;
		binding = &map->bindings[id];
		value = reader_get_span(in, binding->size);
		if (value && binding->object)
			memcpy(value_place(binding), value, binding->size);
	}
	if (in->failed)
		return error_set(err, -EPROTO, "device state damaged: it ends in a value");
	if (all && next != map->count)
		return error_set(err, -EPROTO, "device state damaged: it ends before value %u",
				 next);
	return 0;
}
