/* SPDX-License-Identifier: Apache-2.0 */
/* query-migrate: the account of a move. */
#pragma once

#include "control/command.h"

extern const struct schema_type schema_migration_info;

void run_query_migrate(struct request *request);
