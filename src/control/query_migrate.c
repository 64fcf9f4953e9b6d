/* SPDX-License-Identifier: Apache-2.0 */
#include "control/query_migrate.h"

#include "base/clock.h"
#include "control/migrate_uri.h"
#include "control/internal.h"

static SCHEMA_ARRAY_TYPE(string_list, "str", schema_str);
static SCHEMA_OBJECT_TYPE(
	ram_stats, "MigrationStats", SCHEMA_REQUIRED("transferred", schema_int),
	SCHEMA_REQUIRED("remaining", schema_int), SCHEMA_REQUIRED("total", schema_int),
	SCHEMA_REQUIRED("duplicate", schema_int), SCHEMA_REQUIRED("normal", schema_int),
	SCHEMA_REQUIRED("normal-bytes", schema_int),
	SCHEMA_REQUIRED("dirty-pages-rate", schema_int), SCHEMA_REQUIRED("mbps", schema_number),
	SCHEMA_REQUIRED("dirty-sync-count", schema_int),
	SCHEMA_REQUIRED("postcopy-requests", schema_int), SCHEMA_REQUIRED("page-size", schema_int),
	SCHEMA_REQUIRED("multifd-bytes", schema_int),
	SCHEMA_REQUIRED("pages-per-second", schema_int),
	SCHEMA_REQUIRED("precopy-bytes", schema_int), SCHEMA_REQUIRED("downtime-bytes", schema_int),
	SCHEMA_REQUIRED("postcopy-bytes", schema_int),
	SCHEMA_REQUIRED("dirty-sync-missed-zero-copy", schema_int),
	SCHEMA_REQUIRED("untouched", schema_int));
static SCHEMA_OBJECT_TYPE(switchover, "SwitchoverAccount", SCHEMA_REQUIRED("stop", schema_int),
			  SCHEMA_REQUIRED("harvest", schema_int),
			  SCHEMA_REQUIRED("memory", schema_int),
			  SCHEMA_REQUIRED("state", schema_int), SCHEMA_REQUIRED("wire", schema_int),
			  SCHEMA_REQUIRED("load", schema_int),
			  SCHEMA_REQUIRED("resume", schema_int),
			  SCHEMA_REQUIRED("total", schema_int));
static SCHEMA_ENUM_TYPE(phase, "MigrationPhase", "none", "connect", "check", "scan", "rounds",
			"ready", "switchover", "in-doubt", "done");
SCHEMA_OBJECT_TYPE(
	schema_migration_info, "MigrationInfo", SCHEMA_OPTIONAL("status", schema_migration_status),
	SCHEMA_OPTIONAL("ram", ram_stats), SCHEMA_OPTIONAL("total-time", schema_int),
	SCHEMA_OPTIONAL("setup-time", schema_int), SCHEMA_OPTIONAL("expected-downtime", schema_int),
	SCHEMA_OPTIONAL("downtime", schema_int), SCHEMA_OPTIONAL("error-desc", schema_str),
	SCHEMA_OPTIONAL("blocked-reasons", string_list),
	SCHEMA_OPTIONAL("socket-address", schema_socket_address_list),
	SCHEMA_OPTIONAL("phase", phase), SCHEMA_OPTIONAL("incoming", schema_bool),
	SCHEMA_OPTIONAL("converging", schema_bool), SCHEMA_OPTIONAL("in-doubt", schema_bool),
	SCHEMA_OPTIONAL("last-progress-ms", schema_int),
	SCHEMA_OPTIONAL("expected-downtime-us", schema_int),
	SCHEMA_OPTIONAL("cpu-throttle-percentage", schema_int),
	SCHEMA_OPTIONAL("switchover-us", switchover),
	SCHEMA_OPTIONAL("guest-pause-us", schema_int));

static void set_int(json_t *object, const char *name, uint64_t value)
{
	json_object_set_new(object, name, json_integer((json_int_t)value));
}

static json_t *fill_ram(const struct migration_info *info)
{
	json_t *ram = json_object();

	set_int(ram, "transferred", info->ram_transferred);
	set_int(ram, "remaining", info->ram_remaining);
	set_int(ram, "total", info->ram_total);
	set_int(ram, "duplicate", info->zero_pages);
	set_int(ram, "normal", info->normal_pages);
	set_int(ram, "normal-bytes", info->normal_pages * RAM_PAGE_SIZE);
	set_int(ram, "dirty-pages-rate", info->dirty_pages_rate);
	json_object_set_new(ram, "mbps", json_real((double)info->bandwidth_bps * 8 / 1e6));
	set_int(ram, "dirty-sync-count", info->dirty_sync_count);
	set_int(ram, "postcopy-requests", 0);
	set_int(ram, "page-size", RAM_PAGE_SIZE);
	set_int(ram, "multifd-bytes", 0);
	set_int(ram, "pages-per-second", info->bandwidth_bps / RAM_PAGE_SIZE);
	set_int(ram, "precopy-bytes", info->precopy_bytes);
	set_int(ram, "downtime-bytes", info->downtime_bytes);
	set_int(ram, "postcopy-bytes", 0);
	set_int(ram, "dirty-sync-missed-zero-copy", 0);
	set_int(ram, "untouched", info->untouched_pages);
	return ram;
}

static json_t *fill_account(const struct switchover_account *account)
{
	json_t *object = json_object();

	set_int(object, "stop", account->stop);
	set_int(object, "harvest", account->harvest);
	set_int(object, "memory", account->memory);
	set_int(object, "state", account->state);
	set_int(object, "wire", account->wire);
	set_int(object, "load", account->load);
	set_int(object, "resume", account->resume);
	set_int(object, "total", account->total);
	return object;
}

const char *migrate_blocked_reason(enum machine_state state)
{
	switch (state) {
	case MACHINE_POSTMIGRATE:
		return "the guest runs elsewhere since its last move";
	case MACHINE_INMIGRATE:
		return "the guest has not arrived here yet";
	case MACHINE_INTERNAL_ERROR:
		return "the guest has stopped at an internal error";
	default:
		return NULL;
	}
}

static void fill_progress(json_t *answer, const struct migration_info *info)
{
	uint64_t now = clock_us();
	uint64_t age = now > info->last_progress_us ? now - info->last_progress_us : 0;
	bool ended = info->status == MIGRATION_COMPLETED || info->status == MIGRATION_FAILED ||
		     info->status == MIGRATION_CANCELLED;

	set_int(answer, "total-time", info->total_time_us / 1000);
	set_int(answer, "setup-time", info->setup_time_us / 1000);
	json_object_set_new(answer, "phase", json_string(migration_phase_name(info->phase)));
	json_object_set_new(answer, "incoming", json_boolean(info->incoming));
	if (info->last_progress_us)
		set_int(answer, "last-progress-ms", age / 1000);
	if (info->status == MIGRATION_COMPLETED)
		set_int(answer, "downtime", (info->downtime_us + 500) / 1000);
	if (ended)
		return;
	if (info->throttle_percent)
		set_int(answer, "cpu-throttle-percentage", info->throttle_percent);
	json_object_set_new(answer, "converging", json_boolean(info->converging));
	set_int(answer, "expected-downtime", (info->expected_downtime_us + 500) / 1000);
	set_int(answer, "expected-downtime-us", info->expected_downtime_us);
}

void run_query_migrate(struct request *request)
{
	json_t *answer = json_object();
	struct machine_status status;
	struct migration_info info;
	json_t *address;
	const char *reason;

	migration_query(machine_migration(request->server->machine), &info);
	machine_query(request->server->machine, &status);
	info.error[sizeof(info.error) - 1] = '\0';
	info.socket_address[sizeof(info.socket_address) - 1] = '\0';
	if (info.status != MIGRATION_NONE) {
		json_object_set_new(answer, "status",
				    json_string(migration_status_name(info.status)));
		json_object_set_new(answer, "ram", fill_ram(&info));
		fill_progress(answer, &info);
		json_object_set_new(answer, "in-doubt", json_boolean(info.in_doubt));
	}
	if (info.status == MIGRATION_COMPLETED && (!info.incoming || info.account.load))
		json_object_set_new(answer, "switchover-us", fill_account(&info.account));
	if (status.guest_pause_us)
		set_int(answer, "guest-pause-us", status.guest_pause_us);
	if (*info.error)
		json_object_set_new(answer, "error-desc", json_text(info.error));
	reason = migrate_blocked_reason(status.state);
	if (reason)
		json_object_set_new(answer, "blocked-reasons", json_pack("[s]", reason));
	address = *info.socket_address ? migrate_socket_address(info.socket_address) : NULL;
	if (address)
		json_object_set_new(answer, "socket-address", json_pack("[o]", address));
	request_return(request, answer);
}
