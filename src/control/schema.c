/* SPDX-License-Identifier: Apache-2.0 */
#include "control/schema.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SCHEMA_MAX_PATH 200

const struct schema_type schema_str = {.name = "str", .meta = SCHEMA_STR};
const struct schema_type schema_int = {.name = "int", .meta = SCHEMA_INT};
const struct schema_type schema_size = {.name = "size", .meta = SCHEMA_SIZE};
const struct schema_type schema_number = {.name = "number", .meta = SCHEMA_NUMBER};
const struct schema_type schema_bool = {.name = "bool", .meta = SCHEMA_BOOL};
const struct schema_type schema_empty = {
	.name = "q_empty",
	.meta = SCHEMA_OBJECT,
	.members = (const struct schema_member[]){{NULL}},
};

static const char *schema_json_type(enum schema_meta meta)
{
	switch (meta) {
	case SCHEMA_STR:
	case SCHEMA_ENUM:
		return "string";
	case SCHEMA_INT:
	case SCHEMA_SIZE:
		return "int";
	case SCHEMA_NUMBER:
		return "number";
	case SCHEMA_BOOL:
		return "boolean";
	case SCHEMA_ARRAY:
		return "array";
	case SCHEMA_OBJECT:
		return "object";
	}
	return "value";
}

static bool schema_fits(enum schema_meta meta, const json_t *value)
{
	switch (meta) {
	case SCHEMA_STR:
	case SCHEMA_ENUM:
		return json_is_string(value);
	case SCHEMA_INT:
	case SCHEMA_SIZE:
		return json_is_integer(value);
	case SCHEMA_NUMBER:
		return json_is_number(value);
	case SCHEMA_BOOL:
		return json_is_boolean(value);
	case SCHEMA_ARRAY:
		return json_is_array(value);
	case SCHEMA_OBJECT:
		return json_is_object(value);
	}
	return false;
}

int schema_enum_index(const struct schema_type *type, const char *value)
{
	for (int i = 0; type->values[i]; i++)
		if (value && !strcmp(type->values[i], value))
			return i;
	return -1;
}

static const struct schema_type *schema_variant(const struct schema_type *type, json_t *value)
{
	const char *tag;

	if (!type->tag)
		return NULL;
	tag = json_string_value(json_object_get(value, type->tag));
	for (const struct schema_variant *v = type->variants; tag && v->value; v++)
		if (!strcmp(v->value, tag))
			return v->type;
	return NULL;
}

/* The member's type in the object or in the variant that its tag chooses. */
static const struct schema_member *schema_member(const struct schema_type *type, json_t *value,
						 const char *name)
{
	for (; type; type = schema_variant(type, value))
		for (const struct schema_member *m = type->members; m->name; m++)
			if (!strcmp(m->name, name))
				return m;
	return NULL;
}

static int schema_check_at(const struct schema_type *type, json_t *value, const char *path,
			   struct error **err);

static int schema_check_object(const struct schema_type *type, json_t *value, const char *path,
			       struct error **err)
{
	char name[SCHEMA_MAX_PATH];
	const char *dot = *path ? "." : "";
	const char *key;
	json_t *child;

	/* The known ones first: a wrong tag is named before the members that depend on it. */
	for (const struct schema_type *t = type; t; t = schema_variant(t, value)) {
		for (const struct schema_member *m = t->members; m->name; m++) {
			int result;

			snprintf(name, sizeof(name), "%s%s%s", path, dot, m->name);
			child = json_object_get(value, m->name);
			if (!child && m->optional)
				continue;
			if (!child)
				return error_set(err, -EINVAL, "Parameter '%s' is missing", name);
			result = schema_check_at(m->type, child, name, err);
			if (result)
				return result;
		}
	}
	json_object_foreach(value, key, child)
	{
		if (!schema_member(type, value, key))
			return error_set(err, -EINVAL, "Parameter '%s%s%.64s' is unexpected", path,
					 dot, key);
	}
	return 0;
}

static int schema_check_at(const struct schema_type *type, json_t *value, const char *path,
			   struct error **err)
{
	if (!schema_fits(type->meta, value))
		return error_set(err, -EINVAL, "Invalid parameter type for '%s', expected: %s",
				 path,
				 type->meta == SCHEMA_INT || type->meta == SCHEMA_SIZE
					 ? "integer"
					 : schema_json_type(type->meta));
	if (type->meta == SCHEMA_SIZE && json_integer_value(value) < 0)
		return error_set(err, -EINVAL, "Parameter '%s' expects a non-negative integer",
				 path);
	if (type->meta == SCHEMA_ENUM && schema_enum_index(type, json_string_value(value)) < 0)
		return error_set(err, -EINVAL, "Parameter '%s' does not accept value '%.64s'", path,
				 json_string_value(value));
	if (type->meta == SCHEMA_ARRAY) {
		char name[SCHEMA_MAX_PATH];
		size_t i;
		json_t *child;

		json_array_foreach(value, i, child)
		{
			int result;

			snprintf(name, sizeof(name), "%s[%zu]", path, i);
			result = schema_check_at(type->element, child, name, err);
			if (result)
				return result;
		}
	}
	return type->meta == SCHEMA_OBJECT ? schema_check_object(type, value, path, err) : 0;
}

int schema_check(const struct schema_type *type, json_t *value, struct error **err)
{
	return schema_check_at(type, value, "", err);
}

static json_t *schema_info_enum(const struct schema_type *type)
{
	json_t *values = json_array();
	json_t *members = json_array();

	for (int i = 0; type->values[i]; i++) {
		json_array_append_new(values, json_string(type->values[i]));
		json_array_append_new(members, json_pack("{s:s}", "name", type->values[i]));
	}
	return json_pack("{s:s, s:s, s:o, s:o}", "name", type->name, "meta-type", "enum", "members",
			 members, "values", values);
}

static json_t *schema_info_object(const struct schema_type *type)
{
	json_t *members = json_array();
	json_t *variants;
	json_t *info;

	for (const struct schema_member *m = type->members; m->name; m++) {
		json_t *member = json_pack("{s:s, s:s}", "name", m->name, "type", m->type->name);

		if (m->optional)
			json_object_set_new(member, "default", json_null());
		json_array_append_new(members, member);
	}
	info = json_pack("{s:s, s:s, s:o}", "name", type->name, "meta-type", "object", "members",
			 members);
	if (!type->tag)
		return info;
	variants = json_array();
	for (const struct schema_variant *v = type->variants; v->value; v++)
		json_array_append_new(
			variants, json_pack("{s:s, s:s}", "case", v->value, "type", v->type->name));
	json_object_set_new(info, "tag", json_string(type->tag));
	json_object_set_new(info, "variants", variants);
	return info;
}

static json_t *schema_info(const struct schema_type *type)
{
	switch (type->meta) {
	case SCHEMA_ENUM:
		return schema_info_enum(type);
	case SCHEMA_OBJECT:
		return schema_info_object(type);
	case SCHEMA_ARRAY:
		return json_pack("{s:s, s:s, s:s}", "name", type->name, "meta-type", "array",
				 "element-type", type->element->name);
	default:
		return json_pack("{s:s, s:s, s:s}", "name", type->name, "meta-type", "builtin",
				 "json-type", schema_json_type(type->meta));
	}
}

int schema_describe(const struct schema_type *type, json_t *list, json_t *known)
{
	int result = 0;

	if (json_object_get(known, type->name))
		return 0;
	if (json_object_set_new(known, type->name, json_true()) ||
	    json_array_append_new(list, schema_info(type)))
		return -ENOMEM;
	if (type->element)
		result = schema_describe(type->element, list, known);
	for (const struct schema_member *m = type->members; m && m->name && !result; m++)
		result = schema_describe(m->type, list, known);
	for (const struct schema_variant *v = type->variants; v && v->value && !result; v++)
		result = schema_describe(v->type, list, known);
	return result;
}
