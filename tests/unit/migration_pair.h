/* SPDX-License-Identifier: Apache-2.0 */
/* A source and a destination, each a fake machine with an engine, joined by a socket pair. */
#pragma once

#include "fake_guest.h"

struct pair {
	struct fake_guest source, destination;
	struct fake_board board;
	int fds[2]; /* source's end, destination's end; -1 once handed over */
};

/* The source runs, and has an engine, as the destination does; nothing is started. */
void pair_create(struct pair *pair, const struct fake_config *config);
void pair_destroy(struct pair *pair);

/* Starts both ends over fd:. */
void pair_incoming(struct pair *pair);
void pair_outgoing(struct pair *pair, bool check_only);
void pair_start(struct pair *pair);

/* The source's outcome is `completed`, the guest is on the destination only, with all its memory
 * and state. */
void pair_assert_moved(struct pair *pair);
/* The source's outcome is `status` with `part` in its error, and it runs as before; the
 * destination has never run. */
void pair_assert_stayed(struct pair *pair, enum migration_status status, const char *part);

/* Memory when the destination began to run equals the source's at its stop. */
void pair_assert_memory(struct pair *pair);
