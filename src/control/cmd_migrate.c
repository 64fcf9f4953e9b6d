/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that start, end and steer a move; query-migrate is in cmd_query_migrate.c. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "control/migrate_uri.h"
#include "control/internal.h"
#include "control/parameters.h"
#include "control/query_migrate.h"

#define CHECK_INTERVAL_MS 20
#define START_US          3000000 /* for the one before to be tidied up */

static SCHEMA_OBJECT_TYPE(migrate_arg, "q_obj_migrate-arg", SCHEMA_OPTIONAL("uri", schema_str),
			  SCHEMA_OPTIONAL("channels", schema_channel_list),
			  SCHEMA_OPTIONAL("detach", schema_bool),
			  SCHEMA_OPTIONAL("check", schema_bool),
			  SCHEMA_OPTIONAL("insecure", schema_bool),
			  SCHEMA_OPTIONAL("parameters", schema_parameters_arg),
			  SCHEMA_OPTIONAL("capabilities", schema_capability_list));
static SCHEMA_OBJECT_TYPE(migrate_result, "MigrateResult",
			  SCHEMA_OPTIONAL("accepted", schema_bool));
static SCHEMA_OBJECT_TYPE(incoming_arg, "q_obj_migrate-incoming-arg",
			  SCHEMA_OPTIONAL("uri", schema_str),
			  SCHEMA_OPTIONAL("channels", schema_channel_list),
			  SCHEMA_OPTIONAL("insecure", schema_bool));
static SCHEMA_OBJECT_TYPE(continue_arg, "q_obj_migrate-continue-arg",
			  SCHEMA_REQUIRED("state", schema_migration_status));
static SCHEMA_ENUM_TYPE(owner_place, "MigrationOwner", "here", "there");
static SCHEMA_OBJECT_TYPE(resolve_arg, "q_obj_x-migrate-resolve-arg",
			  SCHEMA_REQUIRED("owner", owner_place));

/* Finds out where to, while the names of descriptors can be looked up. */
static int migrate_target(struct request *request, struct error **err)
{
	int result = migrate_uri_parse(request->arguments, request->name, &request->uri, err);
	const char *name = result ? NULL : request->uri + 3;

	if (result || strncmp(request->uri, "fd:", 3) != 0)
		return result;
	request->fd = isdigit((unsigned char)*name) ? io_inherited_fd(name, err)
						    : fds_take(request->server, name);
	if (request->fd == -ENOENT)
		return error_set(err, -ENOENT, "File descriptor named '%.100s' not found", name);
	return request->fd < 0 ? request->fd : 0;
}

static struct migration_request migrate_how(const struct request *request)
{
	const struct machine_config *config = machine_get_config(request->server->machine);

	return (struct migration_request){
		.uri = request->uri,
		.fd = request->fd >= 0 ? fcntl(request->fd, F_DUPFD_CLOEXEC, 3) : -1,
		.check_only = json_is_true(json_object_get(request->arguments, "check")),
		.insecure = config->insecure ||
			    json_is_true(json_object_get(request->arguments, "insecure")),
		.allow_exec = config->allow_exec,
	};
}

static bool migration_ended(enum migration_status status)
{
	return status == MIGRATION_NONE || status == MIGRATION_COMPLETED ||
	       status == MIGRATION_FAILED || status == MIGRATION_CANCELLED;
}

/* The engine tidies up after it has told of a migration's end: until then the next one waits. */
static int migrate_start_engine(struct request *request, struct error **err)
{
	struct migration *migration = machine_migration(request->server->machine);
	uint64_t deadline = clock_us() + START_US;

	for (;;) {
		struct migration_request how = migrate_how(request);
		struct migration_info info;
		int result = migration_start(migration, &how, err);

		if (result != -EBUSY || clock_us() > deadline)
			return result;
		migration_query(migration, &info);
		if (!migration_ended(info.status))
			return result;
		error_free(err);
		usleep(1000);
	}
}

/* Inline settings hold from here on; they are taken back when the move cannot start. */
static int migrate_job(struct request *request, struct error **err)
{
	struct migration *migration = machine_migration(request->server->machine);
	json_t *arguments = request->arguments;
	struct migration_parameters parameters;
	struct migration_capabilities capabilities;
	int result;

	migration_get_parameters(migration, &parameters);
	migration_get_capabilities(migration, &capabilities);
	result = parameters_apply(migration, json_object_get(arguments, "parameters"), err);
	if (result)
		return result;
	result = capabilities_apply(migration, json_object_get(arguments, "capabilities"), err);
	if (!result)
		result = migrate_start_engine(request, err);
	if (result) {
		migration_set_parameters(migration, &parameters, NULL);
		migration_set_capabilities(migration, &capabilities, NULL);
	}
	return result;
}

static void check_timer_fired(uv_timer_t *timer)
{
	migrate_check_poll(timer->data);
}

/* Answers a pre-check when the engine is through with it. */
void migrate_check_poll(struct control_server *server)
{
	struct request *request = server->check;
	struct migration_info info;

	if (!request)
		return;
	migration_query(machine_migration(server->machine), &info);
	if (!migration_ended(info.status))
		return;
	server->check = NULL;
	server->starting = false;
	uv_timer_stop(&server->check_timer);
	info.error[sizeof(info.error) - 1] = '\0';
	if (info.status == MIGRATION_COMPLETED)
		request_return(request, json_pack("{s:b}", "accepted", 1));
	else
		request_refuse(request, "GenericError", "%s",
			       *info.error ? info.error : "the check was cancelled");
}

static void migrate_started(struct request *request)
{
	struct control_server *server = request->server;

	if (!request->error && !server->closing &&
	    json_is_true(json_object_get(request->arguments, "check"))) {
		server->check = request;
		uv_timer_start(&server->check_timer, check_timer_fired, CHECK_INTERVAL_MS,
			       CHECK_INTERVAL_MS);
		return;
	}
	server->starting = false;
	if (request->error)
		request_fail(request, &request->error);
	else
		request_return(request, NULL);
}

static void run_migrate(struct request *request)
{
	struct control_server *server = request->server;
	cleanup_error struct error *error = NULL;
	struct machine_status status;
	const char *blocked;

	machine_query(server->machine, &status);
	blocked = migrate_blocked_reason(status.state);
	if (blocked) {
		request_refuse(request, "GenericError", "%s", blocked);
		return;
	}
	if (migration_active(machine_migration(server->machine)) || server->starting) {
		request_refuse(request, "GenericError", "There's a migration process in progress");
		return;
	}
	if (migrate_target(request, &error)) {
		request_fail(request, &error);
		return;
	}
	server->starting = true;
	request_work(request, migrate_job, migrate_started);
}

static int incoming_job(struct request *request, struct error **err)
{
	struct migration_request how = migrate_how(request);

	return migration_incoming(machine_migration(request->server->machine), &how, err);
}

static void run_incoming(struct request *request)
{
	struct machine *machine = request->server->machine;
	const struct machine_config *config = machine_get_config(machine);
	struct machine_status status;
	cleanup_error struct error *error = NULL;

	machine_query(machine, &status);
	if (!config->incoming)
		request_refuse(request, "GenericError",
			       "'--incoming' was not specified on the command line");
	else if (status.state != MACHINE_INMIGRATE || strcmp(config->incoming, "defer") != 0 ||
		 migration_active(machine_migration(machine)))
		request_refuse(request, "GenericError",
			       "The incoming migration has already been started");
	else if (migrate_target(request, &error))
		request_fail(request, &error);
	else
		request_work(request, incoming_job, NULL);
}

static void run_cancel(struct request *request)
{
	struct migration *migration = machine_migration(request->server->machine);
	struct migration_info info;

	/* As in QEMU, nothing to cancel is no error. */
	migration_query(migration, &info);
	if (!migration_ended(info.status) && migration_cancel(migration))
		request_refuse(request, "GenericError",
			       "The migration is past the point where it can be cancelled");
	else
		request_return(request, NULL);
}

static void run_continue(struct request *request)
{
	struct migration *migration = machine_migration(request->server->machine);
	const char *state = json_string_value(json_object_get(request->arguments, "state"));
	cleanup_error struct error *error = NULL;
	struct migration_info info;

	migration_query(migration, &info);
	if (strcmp(state, migration_status_name(info.status)) != 0 ||
	    info.status != MIGRATION_PRE_SWITCHOVER)
		request_refuse(request, "GenericError", "Migration not in expected state: %s",
			       migration_status_name(info.status));
	else if (migration_continue(migration, &error))
		request_fail(request, &error);
	else
		request_return(request, NULL);
}

static void run_resolve(struct request *request)
{
	const char *owner = json_string_value(json_object_get(request->arguments, "owner"));
	cleanup_error struct error *error = NULL;

	if (migration_resolve(machine_migration(request->server->machine), !strcmp(owner, "here"),
			      &error))
		request_fail(request, &error);
	else
		request_return(request, NULL);
}

const struct command commands_migrate[] = {
	{"migrate", &migrate_arg, &migrate_result, run_migrate},
	{"migrate-incoming", &incoming_arg, NULL, run_incoming},
	{"migrate_cancel", NULL, NULL, run_cancel, .oob = true},
	{"migrate-continue", &continue_arg, NULL, run_continue, .oob = true},
	{"x-migrate-resolve", &resolve_arg, NULL, run_resolve, .oob = true},
	{"query-migrate", NULL, &schema_migration_info, run_query_migrate, .oob = true},
	{NULL},
};
