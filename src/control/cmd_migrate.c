/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that start, end and steer a move; query-migrate is in cmd_query_migrate.c. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include "base/cleanup.h"
#include "control/migrate_uri.h"
#include "control/internal.h"
#include "control/parameters.h"
#include "control/query_migrate.h"

#define CHECK_INTERVAL_MS 20

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

/* A copy of descriptor N that this process was started with: those it opened itself are CLOEXEC. */
static int inherited_fd(const char *number, struct error **err)
{
	char *end;
	long fd = strtol(number, &end, 10);
	int flags = *end || fd < 0 || fd > INT32_MAX ? -1 : fcntl((int)fd, F_GETFD);
	int copy;

	if (flags < 0 || (flags & FD_CLOEXEC))
		return error_set(
			err, -EBADF,
			"File descriptor %.32s was not handed to this process at its start",
			number);
	copy = fcntl((int)fd, F_DUPFD_CLOEXEC, 3);
	return copy >= 0 ? copy : error_set_errno(err, -errno, "cannot use descriptor %s", number);
}

static int migrate_request(struct request *request, struct migration_request *migration, char **uri,
			   struct error **err)
{
	const struct machine_config *config = machine_get_config(request->server->machine);
	int result = migrate_uri_parse(request->arguments, request->name, uri, err);

	if (result)
		return result;
	*migration = (struct migration_request){
		.uri = *uri,
		.fd = -1,
		.check_only = json_is_true(json_object_get(request->arguments, "check")),
		.insecure = config->insecure ||
			    json_is_true(json_object_get(request->arguments, "insecure")),
		.allow_exec = config->allow_exec,
	};
	if (strncmp(*uri, "fd:", 3))
		return 0;
	migration->fd = isdigit((unsigned char)(*uri)[3]) ? inherited_fd(*uri + 3, err)
							  : fds_take(request->server, *uri + 3);
	if (migration->fd == -ENOENT)
		return error_set(err, -ENOENT, "File descriptor named '%.100s' not found",
				 *uri + 3);
	return migration->fd < 0 ? migration->fd : 0;
}

/* Inline settings hold from here on; they are taken back when the move cannot start. */
static int migrate_start(struct migration *migration, json_t *arguments,
			 const struct migration_request *how, struct error **err)
{
	struct migration_parameters parameters;
	struct migration_capabilities capabilities;
	int result;

	migration_get_parameters(migration, &parameters);
	migration_get_capabilities(migration, &capabilities);
	result = parameters_apply(migration, json_object_get(arguments, "parameters"), err);
	if (!result)
		result = capabilities_apply(migration, json_object_get(arguments, "capabilities"),
					    err);
	if (result) {
		migration_set_parameters(migration, &parameters, NULL);
		if (how->fd >= 0)
			close(how->fd);
		return result;
	}
	result = migration_start(migration, how, err);
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
	struct migration *migration;
	struct request *request = server->check;
	struct migration_info info;

	if (!request)
		return;
	migration = machine_migration(server->machine);
	if (migration_active(migration))
		return;
	server->check = NULL;
	uv_timer_stop(&server->check_timer);
	migration_query(migration, &info);
	if (info.status == MIGRATION_COMPLETED)
		request_return(request, json_pack("{s:b}", "accepted", 1));
	else
		request_refuse(request, "GenericError", "%s",
			       *info.error ? info.error : "the check was cancelled");
}

static void run_migrate(struct request *request)
{
	struct control_server *server = request->server;
	struct migration *migration = machine_migration(server->machine);
	struct migration_request how;
	cleanup_free char *uri = NULL;
	cleanup_error struct error *error = NULL;

	if (migration_active(migration) || server->check) {
		request_refuse(request, "GenericError", "There's a migration process in progress");
		return;
	}
	if (migrate_request(request, &how, &uri, &error) ||
	    migrate_start(migration, request->arguments, &how, &error)) {
		request_fail(request, &error);
		return;
	}
	if (!how.check_only) {
		request_return(request, NULL);
		return;
	}
	server->check = request;
	uv_timer_start(&server->check_timer, check_timer_fired, CHECK_INTERVAL_MS,
		       CHECK_INTERVAL_MS);
}

static void run_incoming(struct request *request)
{
	struct machine *machine = request->server->machine;
	struct migration *migration = machine_migration(machine);
	const struct machine_config *config = machine_get_config(machine);
	struct machine_status status;
	struct migration_request how;
	cleanup_free char *uri = NULL;
	cleanup_error struct error *error = NULL;

	machine_query(machine, &status);
	if (!config->incoming) {
		request_refuse(request, "GenericError",
			       "'--incoming' was not specified on the command line");
		return;
	}
	if (status.state != MACHINE_INMIGRATE || migration_active(migration) ||
	    strcmp(config->incoming, "defer")) {
		request_refuse(request, "GenericError",
			       "The incoming migration has already been started");
		return;
	}
	if (migrate_request(request, &how, &uri, &error) ||
	    migration_incoming(migration, &how, &error))
		request_fail(request, &error);
	else
		request_return(request, NULL);
}

static void run_cancel(struct request *request)
{
	struct migration *migration = machine_migration(request->server->machine);

	/* As in QEMU, nothing to cancel is no error. */
	if (migration_active(migration) && migration_cancel(migration))
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
	if (strcmp(state, migration_status_name(info.status)) ||
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
