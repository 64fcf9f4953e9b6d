/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/move.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/parse.h"
#include "cmd/tool.h"

#define POLL_US   100000
#define CHECK_US  60000000 /* for the answer to a check */
#define CANCEL_US 30000000 /* for a cancelled move to end */

int move_start(struct control_client *client, const struct move_options *options,
	       struct error **err)
{
	json_t *arguments = json_pack("{s:s}", "uri", options->uri);
	json_t *parameters = json_object();
	uint64_t timeout = CONTROL_CLIENT_TIMEOUT_US;

	if (options->has_downtime_limit)
		json_object_set_new(parameters, "downtime-limit",
				    json_integer((json_int_t)options->downtime_limit_ms));
	if (options->has_max_bandwidth)
		json_object_set_new(parameters, "max-bandwidth",
				    json_integer((json_int_t)options->max_bandwidth));
	if (json_object_size(parameters))
		json_object_set(arguments, "parameters", parameters);
	json_decref(parameters);
	if (options->insecure)
		json_object_set_new(arguments, "insecure", json_true());
	if (options->check) {
		json_object_set_new(arguments, "check", json_true());
		timeout = options->timeout_us ? options->timeout_us : CHECK_US;
	}
	return control_client_execute(client, "migrate", arguments, NULL, timeout, err);
}

static bool move_ended(const json_t *info)
{
	const char *status = json_path_text(info, "status");

	return !strcmp(status, "completed") || !strcmp(status, "failed") ||
	       !strcmp(status, "cancelled") || json_is_true(json_object_get(info, "in-doubt"));
}

static int move_result(const json_t *info, int why, struct error **err)
{
	const char *status = json_path_text(info, "status");
	const char *text = json_path_text(info, "error-desc");

	if (!strcmp(status, "completed"))
		return 0;
	if (json_is_true(json_object_get(info, "in-doubt")))
		return error_set(err, -EREMOTEIO,
				 "it is in doubt which side has the guest, so it is paused here: "
				 "look at the destination, then say x-migrate-resolve owner=here "
				 "or owner=there");
	if (!strcmp(status, "cancelled") && why == -ETIMEDOUT)
		return error_set(err, why,
				 "the time was up: the migration was cancelled, the "
				 "guest stays here");
	if (!strcmp(status, "cancelled") && why)
		return error_set(err, why,
				 "interrupted: the migration was cancelled, the guest "
				 "stays here");
	if (!strcmp(status, "cancelled"))
		return error_set(err, -EREMOTEIO,
				 "the migration was cancelled, the guest stays here");
	return error_set(err, -EREMOTEIO, "the migration failed: %s",
			 *text ? text : "no reason was given");
}

int move_wait(struct control_client *client, const struct move_options *options, json_t **info,
	      struct error **err)
{
	uint64_t deadline = options->timeout_us ? clock_us() + options->timeout_us : UINT64_MAX;
	int why = 0;

	*info = NULL;
	for (;;) {
		cleanup_error struct error *ignored = NULL;
		json_t *event = NULL;
		int result;

		json_decref(*info);
		*info = NULL;
		result = control_client_execute(client, "query-migrate", NULL, info,
						CONTROL_CLIENT_TIMEOUT_US, err);
		if (result)
			return error_prefix(err, "lost sight of the migration");
		if (move_ended(*info))
			return move_result(*info, why, err);
		if (options->progress)
			options->progress(options->opaque, *info);
		if (why && clock_us() > deadline)
			return error_set(err, why,
					 "the migration does not end although it was "
					 "cancelled; it is still under way");
		if (!why && (tool_interrupts || clock_us() > deadline)) {
			why = tool_interrupts ? -EINTR : -ETIMEDOUT;
			deadline = clock_us() + CANCEL_US;
			control_client_execute(client, "migrate_cancel", NULL, NULL,
					       CONTROL_CLIENT_TIMEOUT_US, &ignored);
			continue;
		}
		result = control_client_wait_event(client, "MIGRATION", &event, POLL_US, &ignored);
		json_decref(event);
		if (result == -ECONNRESET)
			return error_set(err, result,
					 "the virtual machine ended in the middle of "
					 "the migration");
	}
}

static uint64_t rate(const json_t *info)
{
	json_t *mbps = json_object_get(json_object_get(info, "ram"), "mbps");

	return (uint64_t)(json_number_value(mbps) * 1e6 / 8);
}

char *move_progress_line(char *buffer, size_t length, const json_t *info)
{
	uint64_t total = json_path_number(info, "ram.total");
	uint64_t remaining = json_path_number(info, "ram.remaining");
	uint64_t bandwidth = rate(info);
	uint64_t dirty = json_path_number(info, "ram.dirty-pages-rate") * 4096;
	uint64_t expected = json_path_number(info, "expected-downtime-us");
	char speed[32] = "?", dirtied[32] = "?", pause[32] = "?", left[32] = "?";
	bool converging = json_is_true(json_object_get(info, "converging"));

	if (bandwidth > dirty)
		format_duration(left, sizeof(left),
				(uint64_t)((double)remaining / (double)(bandwidth - dirty) * 1e6));
	/* Nothing is known of the rates and the pause before the first round is over. */
	if (bandwidth) {
		format_size(speed, sizeof(speed), bandwidth);
		format_size(dirtied, sizeof(dirtied), dirty);
	}
	if (expected)
		format_duration(pause, sizeof(pause), expected);
	snprintf(buffer, length,
		 "%-10s %3llu%%  round %llu  sent %s/s, written %s/s, pause %s expected, %s left%s",
		 json_path_text(info, "phase"),
		 total ? (unsigned long long)((total - (remaining < total ? remaining : total)) *
					      100 / total)
		       : 0,
		 (unsigned long long)json_path_number(info, "ram.dirty-sync-count"), speed, dirtied,
		 pause, left, converging ? "" : "  NOT CONVERGING");
	return buffer;
}

void move_print_account(const json_t *info)
{
	static const struct {
		const char *path, *meaning;
	} parts[] = {
		{"stop", "the vCPUs and devices stop"},
		{"harvest", "the last dirty pages are found"},
		{"memory", "and sent"},
		{"state", "vCPU and device state is collected"},
		{"wire", "the messages of the hand-over travel"},
		{"load", "state is loaded and checked there"},
		{"resume", "until the first vCPU runs there"},
	};
	uint64_t page = json_path_number(info, "ram.page-size");
	uint64_t pause = json_path_number(info, "switchover-us.total");
	uint64_t guest = json_path_number(info, "guest-pause-us");
	char a[32], b[32];

	printf("total time   %s\n",
	       format_duration(a, sizeof(a), json_path_number(info, "total-time") * 1000));
	printf("rounds       %llu\n",
	       (unsigned long long)json_path_number(info, "ram.dirty-sync-count"));
	printf("sent         %s, %s/s\n",
	       format_size(a, sizeof(a), json_path_number(info, "ram.transferred")),
	       format_size(b, sizeof(b), rate(info)));
	printf("not sent     %s never touched, %s zero\n",
	       format_size(a, sizeof(a), json_path_number(info, "ram.untouched") * page),
	       format_size(b, sizeof(b), json_path_number(info, "ram.duplicate") * page));
	printf("pause        %s", format_duration(a, sizeof(a), pause));
	if (guest)
		printf(", %s as the guest saw it", format_duration(b, sizeof(b), guest));
	printf(", %s sent in it\n",
	       format_size(b, sizeof(b), json_path_number(info, "ram.downtime-bytes")));
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		char path[32];

		snprintf(path, sizeof(path), "switchover-us.%s", parts[i].path);
		printf("  %-10s %-10s %s\n", parts[i].path,
		       format_duration(a, sizeof(a), json_path_number(info, path)),
		       parts[i].meaning);
	}
}
