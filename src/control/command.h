/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands and events of the control protocol: one table row each. A handler gets checked arguments
 * on the loop thread, must not wait, and answers the request once, now or later.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <uv.h>
#include "control/schema.h"
#include "machine/machine.h"

struct control_server;
struct session;
struct request;

struct command {
	const char *name;
	const struct schema_type *arguments; /* NULL: none */
	const struct schema_type *result;    /* NULL: the empty object */
	void (*run)(struct request *request);
	bool oob; /* may be sent with exec-oob: overtakes what waits */
};

struct event_type {
	const char *name;
	const struct schema_type *data;                     /* NULL: none */
	json_t *(*fill)(const struct machine_event *event); /* NULL: no data */
};

struct request {
	struct control_server *server;
	struct session *session; /* NULL: the client is gone */
	struct request *next;    /* in its session's queue */
	const char *name;        /* of the command, from `input`; NULL: input was no command */
	json_t *input;           /* the whole request; owned */
	json_t *arguments;       /* an object, from `input`, or NULL */
	json_t *id;              /* from `input`, or NULL */
	bool oob;
	uv_work_t work;
	int (*job)(struct request *request, struct error **err);
	void (*done)(struct request *request);
	struct error *error;
	char *uri; /* of a migration; owned */
	int fd;    /* for "fd:"; owned, -1: none */
};

/* Groups of rows, each ending with a NULL name; command_next() walks them all, from NULL. */
extern const struct command commands_introspect[], commands_query[], commands_machine[],
	commands_migrate[], commands_parameters[], commands_descriptor[], commands_dirty[];
const struct command *command_next(const struct command *command);
const struct command *command_find(const char *name);

/* Indexed by enum machine_event_type; those without a name are not for clients. */
extern const struct event_type event_types[];
extern const unsigned int event_types_count;
extern const struct schema_type schema_migration_status, schema_run_state;

/* Each frees the request. value is stolen; NULL is the empty object. */
void request_return(struct request *request, json_t *value);
void request_refuse(struct request *request, const char *class, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* With *err, which is freed, as GenericError. */
void request_fail(struct request *request, struct error **err);
/*
 * Runs job on a worker thread, where it may wait, and answers with its error, if there is one; else
 * with the empty object, or through done(). The job may use all of the request but its session.
 */
void request_work(struct request *request, int (*job)(struct request *request, struct error **err),
		  void (*done)(struct request *request));

/* Any text as a JSON string, also when it is no valid UTF-8. */
json_t *json_text(const char *text);
