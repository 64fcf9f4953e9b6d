/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A blocking QMP client for the commands of this program. Every call has a deadline, given in
 * microseconds from now. One thread at a time.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include "base/error.h"

#define CONTROL_CLIENT_TIMEOUT_US 10000000u /* for calls that ought to be short */

struct control_client;

/* Connects to "unix:PATH" or a path, reads the greeting, negotiates. */
int control_client_connect(struct control_client **client, const char *address, uint64_t timeout_us,
			   struct error **err);
void control_client_close(struct control_client *client);
void control_client_cleanup_(struct control_client **client);
#define cleanup_client __attribute__((cleanup(control_client_cleanup_)))

/*
 * arguments (may be NULL) is stolen; *result (may be NULL) is the caller's. -EREMOTEIO: the other
 * side refused, err is its sentence; -ETIMEDOUT; -ECONNRESET: it is gone. A signal does not end the
 * wait.
 */
int control_client_execute(struct control_client *client, const char *command, json_t *arguments,
			   json_t **result, uint64_t timeout_us, struct error **err);

/*
 * The next event called `name` (NULL: any), also one that came while a command was executed; those
 * before it are dropped. -ETIMEDOUT; -EINTR: a signal came.
 */
int control_client_wait_event(struct control_client *client, const char *name, json_t **event,
			      uint64_t timeout_us, struct error **err);

/* Integer and text members of an answer; 0 and "" when there are none. path is "ram.total". */
uint64_t json_path_number(const json_t *object, const char *path);
const char *json_path_text(const json_t *object, const char *path);
