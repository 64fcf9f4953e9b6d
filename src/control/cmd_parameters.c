/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include "control/internal.h"
#include "control/parameters.h"

/* One row a parameter: checking, setting, reporting and the schema all use it. */
static const struct parameter {
	const char *name;
	size_t offset; /* of a uint64_t in struct migration_parameters */
	uint64_t max;
	const char *unit;
	uint64_t min;
	bool is_bool; /* a bool, and not a number */
} parameters[] = {
	{"downtime-limit", offsetof(struct migration_parameters, downtime_limit_ms), 2000000, "ms"},
	{"max-bandwidth", offsetof(struct migration_parameters, max_bandwidth), INT64_MAX,
	 "bytes/second, 0 for no limit"},
	{"x-switchover-timeout", offsetof(struct migration_parameters, switchover_timeout_ms),
	 3600000, "ms"},
	{"throttle-trigger-threshold",
	 offsetof(struct migration_parameters, throttle_trigger_threshold), 100, "percent", 1},
	{"cpu-throttle-initial", offsetof(struct migration_parameters, cpu_throttle_initial), 99,
	 "percent", 1},
	{"cpu-throttle-increment", offsetof(struct migration_parameters, cpu_throttle_increment),
	 99, "percent", 1},
	{"max-cpu-throttle", offsetof(struct migration_parameters, max_cpu_throttle), 99, "percent",
	 1},
	{"cpu-throttle-tailslow", offsetof(struct migration_parameters, cpu_throttle_tailslow),
	 .is_bool = true},
};

#define PARAMETERS (sizeof(parameters) / sizeof(parameters[0]))

SCHEMA_OBJECT_TYPE(schema_parameters_arg, "MigrateSetParameters",
		   SCHEMA_OPTIONAL("downtime-limit", schema_size),
		   SCHEMA_OPTIONAL("max-bandwidth", schema_size),
		   SCHEMA_OPTIONAL("x-switchover-timeout", schema_size),
		   SCHEMA_OPTIONAL("throttle-trigger-threshold", schema_size),
		   SCHEMA_OPTIONAL("cpu-throttle-initial", schema_size),
		   SCHEMA_OPTIONAL("cpu-throttle-increment", schema_size),
		   SCHEMA_OPTIONAL("max-cpu-throttle", schema_size),
		   SCHEMA_OPTIONAL("cpu-throttle-tailslow", schema_bool));
static SCHEMA_OBJECT_TYPE(parameters_result, "MigrationParameters",
			  SCHEMA_OPTIONAL("downtime-limit", schema_size),
			  SCHEMA_OPTIONAL("max-bandwidth", schema_size),
			  SCHEMA_OPTIONAL("x-switchover-timeout", schema_size),
			  SCHEMA_OPTIONAL("throttle-trigger-threshold", schema_size),
			  SCHEMA_OPTIONAL("cpu-throttle-initial", schema_size),
			  SCHEMA_OPTIONAL("cpu-throttle-increment", schema_size),
			  SCHEMA_OPTIONAL("max-cpu-throttle", schema_size),
			  SCHEMA_OPTIONAL("cpu-throttle-tailslow", schema_bool));

static const struct capability {
	const char *name;
	size_t offset; /* of a bool in struct migration_capabilities */
} capabilities[] = {
	{"auto-converge", offsetof(struct migration_capabilities, auto_converge)},
	{"events", offsetof(struct migration_capabilities, events)},
	{"pause-before-switchover",
	 offsetof(struct migration_capabilities, pause_before_switchover)},
	{"return-path", offsetof(struct migration_capabilities, return_path)},
};

#define CAPABILITIES (sizeof(capabilities) / sizeof(capabilities[0]))

static SCHEMA_ENUM_TYPE(capability_name, "MigrationCapability", "auto-converge", "events",
			"pause-before-switchover", "return-path");
static SCHEMA_OBJECT_TYPE(capability_status, "MigrationCapabilityStatus",
			  SCHEMA_REQUIRED("capability", capability_name),
			  SCHEMA_REQUIRED("state", schema_bool));
SCHEMA_ARRAY_TYPE(schema_capability_list, "MigrationCapabilityStatus", capability_status);
static SCHEMA_OBJECT_TYPE(capabilities_arg, "q_obj_migrate-set-capabilities-arg",
			  SCHEMA_REQUIRED("capabilities", schema_capability_list));

int parameters_apply(struct migration *migration, json_t *arguments, struct error **err)
{
	struct migration_parameters values;

	if (!arguments)
		return 0;
	migration_get_parameters(migration, &values);
	for (size_t i = 0; i < PARAMETERS; i++) {
		const struct parameter *p = &parameters[i];
		json_t *value = json_object_get(arguments, p->name);

		if (!value)
			continue;
		if (p->is_bool) {
			*(bool *)((char *)&values + p->offset) = json_is_true(value);
			continue;
		}
		if ((uint64_t)json_integer_value(value) > p->max ||
		    (uint64_t)json_integer_value(value) < p->min)
			return error_set(
				err, -ERANGE,
				"Parameter '%s' expects an integer in the range of %llu to %llu "
				"(%s)",
				p->name, (unsigned long long)p->min, (unsigned long long)p->max,
				p->unit);
		*(uint64_t *)((char *)&values + p->offset) = (uint64_t)json_integer_value(value);
	}
	return migration_set_parameters(migration, &values, err);
}

int capabilities_apply(struct migration *migration, json_t *list, struct error **err)
{
	struct migration_capabilities values;
	size_t index;
	json_t *entry;

	if (!list)
		return 0;
	migration_get_capabilities(migration, &values);
	json_array_foreach(list, index, entry)
	{
		const char *name = json_string_value(json_object_get(entry, "capability"));
		bool state = json_is_true(json_object_get(entry, "state"));
		int i = schema_enum_index(&capability_name, name);

		*(bool *)((char *)&values + capabilities[i].offset) = state;
	}
	return migration_set_capabilities(migration, &values, err);
}

static void run_set_parameters(struct request *request)
{
	struct migration *migration = machine_migration(request->server->machine);
	cleanup_error struct error *error = NULL;

	if (parameters_apply(migration, request->arguments, &error))
		request_fail(request, &error);
	else
		request_return(request, NULL);
}

static void run_get_parameters(struct request *request)
{
	struct migration_parameters values;
	json_t *answer = json_object();

	migration_get_parameters(machine_migration(request->server->machine), &values);
	for (size_t i = 0; i < PARAMETERS; i++) {
		const void *place = (const char *)&values + parameters[i].offset;

		json_object_set_new(answer, parameters[i].name,
				    parameters[i].is_bool
					    ? json_boolean(*(const bool *)place)
					    : json_integer((json_int_t) * (const uint64_t *)place));
	}
	request_return(request, answer);
}

static void run_set_capabilities(struct request *request)
{
	json_t *list = json_object_get(request->arguments, "capabilities");
	cleanup_error struct error *error = NULL;

	if (capabilities_apply(machine_migration(request->server->machine), list, &error))
		request_fail(request, &error);
	else
		request_return(request, NULL);
}

static void run_get_capabilities(struct request *request)
{
	struct migration_capabilities values;
	json_t *list = json_array();

	migration_get_capabilities(machine_migration(request->server->machine), &values);
	for (size_t i = 0; i < CAPABILITIES; i++) {
		bool state = *(bool *)((char *)&values + capabilities[i].offset);

		json_array_append_new(list, json_pack("{s:s, s:b}", "capability",
						      capabilities[i].name, "state", state));
	}
	request_return(request, list);
}

const struct command commands_parameters[] = {
	{"migrate-set-parameters", &schema_parameters_arg, NULL, run_set_parameters},
	{"query-migrate-parameters", NULL, &parameters_result, run_get_parameters, .oob = true},
	{"migrate-set-capabilities", &capabilities_arg, NULL, run_set_capabilities},
	{"query-migrate-capabilities", NULL, &schema_capability_list, run_get_capabilities,
	 .oob = true},
	{NULL},
};
