/* SPDX-License-Identifier: Apache-2.0 */
/* How fast the guest writes memory, and limits to that. */
#include <string.h>
#include "control/internal.h"
#include "machine/dirty_rate.h"
#include "machine/throttle.h"

static SCHEMA_ENUM_TYPE(time_unit, "TimeUnit", "second", "millisecond");
/* In the order of enum dirty_rate_mode and enum dirty_rate_status. */
static SCHEMA_ENUM_TYPE(measure_mode, "DirtyRateMeasureMode", "page-sampling", "dirty-ring",
			"dirty-bitmap");
static SCHEMA_ENUM_TYPE(measure_status, "DirtyRateStatus", "unstarted", "measuring", "measured");
static SCHEMA_OBJECT_TYPE(calc_arg, "q_obj_calc-dirty-rate-arg",
			  SCHEMA_REQUIRED("calc-time", schema_int),
			  SCHEMA_OPTIONAL("calc-time-unit", time_unit),
			  SCHEMA_OPTIONAL("sample-pages", schema_int),
			  SCHEMA_OPTIONAL("mode", measure_mode));
static SCHEMA_OBJECT_TYPE(query_arg, "q_obj_query-dirty-rate-arg",
			  SCHEMA_OPTIONAL("calc-time-unit", time_unit));
static SCHEMA_OBJECT_TYPE(vcpu_rate, "DirtyRateVcpu", SCHEMA_REQUIRED("id", schema_int),
			  SCHEMA_REQUIRED("dirty-rate", schema_int));
static SCHEMA_ARRAY_TYPE(vcpu_rate_list, "DirtyRateVcpu", vcpu_rate);
static SCHEMA_OBJECT_TYPE(rate_info, "DirtyRateInfo", SCHEMA_OPTIONAL("dirty-rate", schema_int),
			  SCHEMA_REQUIRED("status", measure_status),
			  SCHEMA_REQUIRED("start-time", schema_int),
			  SCHEMA_REQUIRED("calc-time", schema_int),
			  SCHEMA_REQUIRED("calc-time-unit", time_unit),
			  SCHEMA_REQUIRED("sample-pages", schema_size),
			  SCHEMA_REQUIRED("mode", measure_mode),
			  SCHEMA_OPTIONAL("vcpu-dirty-rate", vcpu_rate_list),
			  SCHEMA_OPTIONAL("error-desc", schema_str));
static SCHEMA_OBJECT_TYPE(set_limit_arg, "q_obj_set-vcpu-dirty-limit-arg",
			  SCHEMA_OPTIONAL("cpu-index", schema_int),
			  SCHEMA_REQUIRED("dirty-rate", schema_size));
static SCHEMA_OBJECT_TYPE(cancel_limit_arg, "q_obj_cancel-vcpu-dirty-limit-arg",
			  SCHEMA_OPTIONAL("cpu-index", schema_int));
static SCHEMA_OBJECT_TYPE(limit_info, "DirtyLimitInfo", SCHEMA_REQUIRED("cpu-index", schema_int),
			  SCHEMA_REQUIRED("limit-rate", schema_size),
			  SCHEMA_REQUIRED("current-rate", schema_size));
static SCHEMA_ARRAY_TYPE(limit_list, "DirtyLimitInfo", limit_info);

static uint64_t unit_us(const json_t *arguments)
{
	const char *unit = json_string_value(json_object_get(arguments, "calc-time-unit"));

	return unit && strcmp(unit, "millisecond") == 0 ? 1000 : 1000000;
}

static int calc_job(struct request *request, struct error **err)
{
	json_t *arguments = request->arguments, *sample;
	json_int_t time = json_integer_value(json_object_get(arguments, "calc-time"));
	const char *mode = json_string_value(json_object_get(arguments, "mode"));
	struct dirty_rate_request how = {.sample_pages = DIRTY_RATE_SAMPLE};

	how.mode = mode ? (enum dirty_rate_mode)schema_enum_index(&measure_mode, mode)
			: DIRTY_RATE_SAMPLING;
	/* 0 and what is far too long are refused as out of range. */
	how.time_us = time > 0 && time < INT32_MAX ? (uint64_t)time * unit_us(arguments) : 0;
	sample = json_object_get(arguments, "sample-pages");
	how.sample_given = sample;
	if (sample)
		how.sample_pages =
			json_integer_value(sample) > 0 ? (uint64_t)json_integer_value(sample) : 0;
	return machine_calc_dirty_rate(request->server->machine, &how, err);
}

static void run_calc(struct request *request)
{
	request_work(request, calc_job, NULL);
}

static void run_query_rate(struct request *request)
{
	uint64_t unit = unit_us(request->arguments);
	struct dirty_rate_info info;
	json_t *answer;

	machine_query_dirty_rate(request->server->machine, &info);
	info.error[sizeof(info.error) - 1] = '\0';
	answer = json_pack("{s:s, s:I, s:I, s:s, s:I, s:s}", "status",
			   measure_status.values[info.status], "start-time",
			   (json_int_t)info.start_time_s, "calc-time",
			   (json_int_t)(info.time_us / unit), "calc-time-unit",
			   time_unit.values[unit == 1000], "sample-pages",
			   (json_int_t)info.sample_pages, "mode", measure_mode.values[info.mode]);
	if (*info.error)
		json_object_set_new(answer, "error-desc", json_text(info.error));
	if (info.status == DIRTY_RATE_MEASURED) {
		json_t *list = json_array();

		json_object_set_new(answer, "dirty-rate", json_integer((json_int_t)info.rate));
		for (unsigned int i = 0; i < info.vcpu_count; i++)
			json_array_append_new(list,
					      json_pack("{s:i, s:I}", "id", (int)i, "dirty-rate",
							(json_int_t)info.vcpu_rate[i]));
		if (info.vcpu_count)
			json_object_set(answer, "vcpu-dirty-rate", list);
		json_decref(list);
	}
	request_return(request, answer);
}

static uint32_t which_vcpu(const struct request *request)
{
	json_t *index = json_object_get(request->arguments, "cpu-index");
	json_int_t value = json_integer_value(index);

	if (!index)
		return VCPU_ALL;
	return value >= 0 && value < VCPU_ALL ? (uint32_t)value : VCPU_ALL - 1;
}

static int set_limit_job(struct request *request, struct error **err)
{
	json_int_t rate = json_integer_value(json_object_get(request->arguments, "dirty-rate"));

	return machine_set_dirty_limit(request->server->machine, which_vcpu(request),
				       (uint64_t)rate, err);
}

static void run_set_limit(struct request *request)
{
	request_work(request, set_limit_job, NULL);
}

static int cancel_limit_job(struct request *request, struct error **err)
{
	return machine_set_dirty_limit(request->server->machine, which_vcpu(request), 0, err);
}

static void run_cancel_limit(struct request *request)
{
	request_work(request, cancel_limit_job, NULL);
}

static void run_query_limit(struct request *request)
{
	struct vcpu_limit limits[MACHINE_MAX_VCPUS];
	unsigned int count =
		machine_query_dirty_limit(request->server->machine, limits, MACHINE_MAX_VCPUS);
	json_t *list = json_array();

	for (unsigned int i = 0; i < count; i++)
		json_array_append_new(list, json_pack("{s:i, s:I, s:I}", "cpu-index",
						      (int)limits[i].index, "limit-rate",
						      (json_int_t)limits[i].limit, "current-rate",
						      (json_int_t)limits[i].rate));
	request_return(request, list);
}

const struct command commands_dirty[] = {
	{"calc-dirty-rate", &calc_arg, NULL, run_calc},
	{"query-dirty-rate", &query_arg, &rate_info, run_query_rate, .oob = true},
	{"set-vcpu-dirty-limit", &set_limit_arg, NULL, run_set_limit},
	{"cancel-vcpu-dirty-limit", &cancel_limit_arg, NULL, run_cancel_limit},
	{"query-vcpu-dirty-limit", NULL, &limit_list, run_query_limit, .oob = true},
	{NULL},
};
