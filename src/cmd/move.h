/* SPDX-License-Identifier: Apache-2.0 */
/* Drives one move over a control connection, and prints the account of it. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include "base/error.h"
#include "control/client.h"

struct move_options {
	const char *uri;
	uint64_t timeout_us; /* of the whole move, then it is cancelled; 0: no limit */
	bool has_downtime_limit, has_max_bandwidth;
	uint64_t downtime_limit_ms, max_bandwidth;
	bool check, insecure;
	/* Called several times a second with the answer of query-migrate; may be NULL. */
	void (*progress)(void *opaque, const json_t *info);
	void *opaque;
};

/* Starts it, or asks whether it would be accepted (check: waits for the answer). */
int move_start(struct control_client *client, const struct move_options *options,
	       struct error **err);

/*
 * Waits for the end of a move that was started; *info is the last answer of query-migrate (the
 * caller's, may be set on failure too). A signal or the timeout cancels the move: -EINTR,
 * -ETIMEDOUT (once it really is cancelled; a move that completed all the same is 0). -EREMOTEIO: it
 * failed, err says why.
 */
int move_wait(struct control_client *client, const struct move_options *options, json_t **info,
	      struct error **err);

/* For people: total time, pause and its parts, rounds, bytes. */
void move_print_account(const json_t *info);
/* One line of progress, without its end; returns buffer. */
char *move_progress_line(char *buffer, size_t length, const json_t *info);
