/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State is data. Each device and vCPU declares what it must carry in a table; saving, loading,
 * comparing, documenting and fuzzing all walk that table. In the stream a value is known by the
 * name given here (once, in the SCHEMA section), never by its position.
 *
 * An object's data is a plain struct that its owner fills (save) and applies (load); the migration
 * engine reads and writes it only through the table, while the owner does not touch it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum state_type {
	STATE_U8 = 1,
	STATE_U16,
	STATE_U32,
	STATE_U64,
	STATE_BYTES, /* a fixed number of bytes, no byte order */
};

/* A receiver that does not know the field may leave it out (otherwise it refuses, by name). */
#define STATE_OPTIONAL 1u

struct state_field {
	const char *name; /* unique within the object: "rip", "msr.0xc0000102", "lapic.regs" */
	enum state_type type;
	uint32_t offset; /* into the object's data */
	uint32_t size;  /* bytes; that of the type, or the length of STATE_BYTES (multiples of 1) */
	uint16_t since; /* machine version that introduced it; 1 = always. A field missing from an
			   older sender keeps the receiver's fresh value. */
	uint16_t flags;
};

struct state_object {
	const char *name;  /* "vcpu", "serial", "clock" */
	uint32_t instance; /* 0, or the vCPU's index */
	const struct state_field *fields;
	unsigned int count;
	void *data; /* the struct that `offset` counts from */
};

#define STATE_FIELD(struct_, member_, type_, name_)                                                \
	{                                                                                          \
		.name = (name_), .type = (type_), .offset = offsetof(struct_, member_),            \
		.size = sizeof(((struct_ *)0)->member_), .since = 1                                \
	}
