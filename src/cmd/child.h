/* SPDX-License-Identifier: Apache-2.0 */
/* A `godwit run` that another command started: its process, control connection and serial line. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/error.h"
#include "control/client.h"

struct child {
	pid_t pid; /* 0: none */
	struct control_client *client;
	int serial; /* -1: not connected */
	char control_path[104], serial_path[104], log_path[104];
	char line[1024]; /* the serial line being read */
	size_t line_length;
};

/*
 * Starts this program again with argv (from argv[1] on; ends with NULL), plus --control and
 * --serial in `folder` under `name`, its messages going to a file there, and connects to the
 * control socket (the serial line when it is used). On an error nothing is left running and err
 * quotes what the process said.
 */
int child_start(struct child *child, const char *folder, const char *name, char *const argv[],
		struct error **err);

/*
 * Waits for a line of the guest that starts with prefix, and copies it to `line`. Lines before it
 * are dropped. -ETIMEDOUT; -EINTR: a signal asks to end; -ECONNRESET: the serial line closed.
 */
int child_wait_line(struct child *child, const char *prefix, char *line, size_t length,
		    uint64_t timeout_us, struct error **err);
int child_type(struct child *child, const char *text, struct error **err);

/* The number after " name=" in a guest's line; 0 and *found false when there is none. */
uint64_t line_value(const char *line, const char *name, bool *found);

/* Closes the connections; the process runs on. */
void child_leave(struct child *child);

/* Asks it to quit, waits, kills it if it does not; removes its files. */
void child_stop(struct child *child);
/* What it said on stderr last; "" when nothing. Returns buffer. */
char *child_last_words(const struct child *child, char *buffer, size_t length);
