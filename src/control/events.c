/* SPDX-License-Identifier: Apache-2.0 */
#include "control/command.h"

SCHEMA_ENUM_TYPE(schema_migration_status, "MigrationStatus", "none", "setup", "active",
		 "pre-switchover", "device", "completed", "failed", "cancelling", "cancelled");

static SCHEMA_ENUM_TYPE(shutdown_cause, "ShutdownCause", "none", "host-error", "host-qmp-quit",
			"host-qmp-system-reset", "host-signal", "guest-shutdown", "guest-reset",
			"guest-panic");
static SCHEMA_OBJECT_TYPE(shutdown_data, "q_obj_SHUTDOWN-arg",
			  SCHEMA_REQUIRED("guest", schema_bool),
			  SCHEMA_REQUIRED("reason", shutdown_cause));
static SCHEMA_OBJECT_TYPE(migration_data, "q_obj_MIGRATION-arg",
			  SCHEMA_REQUIRED("status", schema_migration_status));
static SCHEMA_OBJECT_TYPE(pass_data, "q_obj_MIGRATION_PASS-arg",
			  SCHEMA_REQUIRED("pass", schema_int));

static json_t *fill_shutdown(const struct machine_event *event)
{
	return json_pack("{s:b, s:s}", "guest", event->guest, "reason",
			 event->reason ? event->reason : "none");
}

static json_t *fill_migration(const struct machine_event *event)
{
	return json_pack("{s:s}", "status",
			 migration_status_name((enum migration_status)event->value));
}

static json_t *fill_pass(const struct machine_event *event)
{
	return json_pack("{s:I}", "pass", (json_int_t)event->value);
}

const struct event_type event_types[] = {
	[MACHINE_EVENT_STOP] = {"STOP"},
	[MACHINE_EVENT_RESUME] = {"RESUME"},
	[MACHINE_EVENT_RESET] = {"RESET", &shutdown_data, fill_shutdown},
	[MACHINE_EVENT_SHUTDOWN] = {"SHUTDOWN", &shutdown_data, fill_shutdown},
	[MACHINE_EVENT_POWERDOWN] = {"POWERDOWN"},
	[MACHINE_EVENT_MIGRATION] = {"MIGRATION", &migration_data, fill_migration},
	[MACHINE_EVENT_MIGRATION_PASS] = {"MIGRATION_PASS", &pass_data, fill_pass},
	[MACHINE_EVENT_EXIT] = {NULL},
};

const unsigned int event_types_count = sizeof(event_types) / sizeof(event_types[0]);
