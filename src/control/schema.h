/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types of the control protocol as tables: what arguments are checked against and what
 * query-qmp-schema shows is the same thing.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include "base/error.h"

enum schema_meta {
	SCHEMA_STR,
	SCHEMA_INT,
	SCHEMA_SIZE, /* a non-negative integer */
	SCHEMA_NUMBER,
	SCHEMA_BOOL,
	SCHEMA_ENUM,
	SCHEMA_ARRAY,
	SCHEMA_OBJECT,
};

struct schema_type;

struct schema_member {
	const char *name;
	const struct schema_type *type;
	bool optional;
};

/* One case of a union: the members that come with the tag's value. */
struct schema_variant {
	const char *value;
	const struct schema_type *type;
};

struct schema_type {
	const char *name;
	enum schema_meta meta;
	const char *const *values;             /* enum; ends with NULL */
	const struct schema_type *element;     /* array */
	const struct schema_member *members;   /* object; ends with a NULL name */
	const char *tag;                       /* union: the member that chooses */
	const struct schema_variant *variants; /* union; ends with a NULL value */
};

extern const struct schema_type schema_str, schema_int, schema_size, schema_number, schema_bool;
extern const struct schema_type schema_empty; /* no members */

#define SCHEMA_ENUM_TYPE(variable, name_, ...)                                                     \
	const struct schema_type variable = {                                                      \
		.name = (name_),                                                                   \
		.meta = SCHEMA_ENUM,                                                               \
		.values = (const char *const[]){__VA_ARGS__, NULL},                                \
	}

#define SCHEMA_ARRAY_TYPE(variable, name_, element_)                                               \
	const struct schema_type variable = {                                                      \
		.name = "[" name_ "]",                                                             \
		.meta = SCHEMA_ARRAY,                                                              \
		.element = &(element_),                                                            \
	}

#define SCHEMA_OBJECT_TYPE(variable, name_, ...)                                                   \
	const struct schema_type variable = {                                                      \
		.name = (name_),                                                                   \
		.meta = SCHEMA_OBJECT,                                                             \
		.members = (const struct schema_member[]){__VA_ARGS__, {NULL}},                    \
	}

#define SCHEMA_REQUIRED(name_, type_)                                                              \
	{                                                                                          \
		.name = (name_), .type = &(type_)                                                  \
	}
#define SCHEMA_OPTIONAL(name_, type_)                                                              \
	{                                                                                          \
		.name = (name_), .type = &(type_), .optional = true                                \
	}

/* Refuses by name what does not fit: unknown, missing and ill-typed members, unknown enum values.
 */
int schema_check(const struct schema_type *type, json_t *value, struct error **err);

/* Index of an enum value that was checked; -1 when it is none. */
int schema_enum_index(const struct schema_type *type, const char *value);

/*
 * Appends QEMU's SchemaInfo of the type, and of all it uses, to `list`; `known` is a scratch object
 * that holds the names done so far.
 */
int schema_describe(const struct schema_type *type, json_t *list, json_t *known);
