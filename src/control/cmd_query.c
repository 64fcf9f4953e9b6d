/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about the machine, answered from its published status. */
#include "control/internal.h"

#if defined(__x86_64__)
#define TARGET "x86_64"
#elif defined(__aarch64__)
#define TARGET "aarch64"
#endif

SCHEMA_ENUM_TYPE(schema_run_state, "RunState", "prelaunch", "inmigrate", "running", "paused",
		 "finish-migrate", "postmigrate", "shutdown", "internal-error");

static SCHEMA_OBJECT_TYPE(status_result, "StatusInfo", SCHEMA_REQUIRED("running", schema_bool),
			  SCHEMA_REQUIRED("status", schema_run_state));
static SCHEMA_OBJECT_TYPE(name_result, "NameInfo", SCHEMA_OPTIONAL("name", schema_str));
static SCHEMA_OBJECT_TYPE(uuid_result, "UuidInfo", SCHEMA_REQUIRED("UUID", schema_str));
static SCHEMA_OBJECT_TYPE(kvm_result, "KvmInfo", SCHEMA_REQUIRED("enabled", schema_bool),
			  SCHEMA_REQUIRED("present", schema_bool));
static SCHEMA_OBJECT_TYPE(memory_result, "MemoryInfo", SCHEMA_REQUIRED("base-memory", schema_size),
			  SCHEMA_OPTIONAL("plugged-memory", schema_size));
static SCHEMA_ENUM_TYPE(sys_emu_target, "SysEmuTarget", TARGET);
static SCHEMA_OBJECT_TYPE(cpu_instance, "CpuInstanceProperties",
			  SCHEMA_OPTIONAL("core-id", schema_int));
static SCHEMA_OBJECT_TYPE(cpu_info, "CpuInfoFast", SCHEMA_REQUIRED("cpu-index", schema_int),
			  SCHEMA_REQUIRED("qom-path", schema_str),
			  SCHEMA_REQUIRED("thread-id", schema_int),
			  SCHEMA_OPTIONAL("props", cpu_instance),
			  SCHEMA_REQUIRED("target", sys_emu_target));
static SCHEMA_ARRAY_TYPE(cpu_list, "CpuInfoFast", cpu_info);

static void run_status(struct request *request)
{
	struct machine_status status;

	machine_query(request->server->machine, &status);
	request_return(request, json_pack("{s:s, s:b}", "status", machine_state_name(status.state),
					  "running", status.running));
}

static void run_name(struct request *request)
{
	const struct machine_config *config = machine_get_config(request->server->machine);
	json_t *answer = json_object();

	if (config->name)
		json_object_set_new(answer, "name", json_text(config->name));
	request_return(request, answer);
}

static void run_uuid(struct request *request)
{
	const struct machine_config *config = machine_get_config(request->server->machine);
	const char *uuid = config->uuid ? config->uuid : "00000000-0000-0000-0000-000000000000";

	request_return(request, json_pack("{s:o}", "UUID", json_text(uuid)));
}

static void run_kvm(struct request *request)
{
	request_return(request, json_pack("{s:b, s:b}", "enabled", 1, "present", 1));
}

static void run_memory(struct request *request)
{
	struct machine_status status;

	machine_query(request->server->machine, &status);
	request_return(request, json_pack("{s:I, s:i}", "base-memory", (json_int_t)status.memory,
					  "plugged-memory", 0));
}

static void run_cpus(struct request *request)
{
	struct machine_status status;
	json_t *list = json_array();

	machine_query(request->server->machine, &status);
	for (unsigned int i = 0; i < status.cpus && i < MACHINE_MAX_VCPUS; i++) {
		char path[32];

		snprintf(path, sizeof(path), "/machine/cpu[%u]", i);
		json_array_append_new(list, json_pack("{s:i, s:s, s:I, s:{s:i}, s:s}", "cpu-index",
						      (int)i, "qom-path", path, "thread-id",
						      (json_int_t)status.vcpu_tid[i], "props",
						      "core-id", (int)i, "target", TARGET));
	}
	request_return(request, list);
}

const struct command commands_query[] = {
	{"query-status", NULL, &status_result, run_status, .oob = true},
	{"query-name", NULL, &name_result, run_name, .oob = true},
	{"query-uuid", NULL, &uuid_result, run_uuid, .oob = true},
	{"query-kvm", NULL, &kvm_result, run_kvm, .oob = true},
	{"query-memory-size-summary", NULL, &memory_result, run_memory, .oob = true},
	{"query-cpus-fast", NULL, &cpu_list, run_cpus, .oob = true},
	{NULL},
};
