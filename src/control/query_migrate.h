/* SPDX-License-Identifier: Apache-2.0 */
/* query-migrate: the account of a move. */
#pragma once

#include "control/command.h"

extern const struct schema_type schema_migration_info;

/* Why a machine in this state cannot be moved away; NULL when it can. */
const char *migrate_blocked_reason(enum machine_state state);

void run_query_migrate(struct request *request);
