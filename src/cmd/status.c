/* SPDX-License-Identifier: Apache-2.0 */
/* godwit status: what a virtual machine is doing, for people or as JSON. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include "base/parse.h"
#include "cmd/tool.h"
#include "control/client.h"

static const char help[] =
	"Usage: godwit status CONTROL [--json]\n"
	"\n"
	"Says what a virtual machine is doing. CONTROL is the --control address of 'godwit run':\n"
	"unix:PATH, or the path alone.\n"
	"\n"
	"  --json    the answers of query-name, -status, -cpus-fast, -memory-size-summary and\n"
	"            -migrate in one JSON object\n"
	"  --help    this text\n"
	"\n"
	"Exit status: 0 it answered, 1 it did not, 2 usage.\n"
	"\n"
	"Examples:\n"
	"  $ godwit status unix:/run/g1.sock\n"
	"  guest: running, 2 vCPUs, 1 GiB\n"
	"  $ godwit status /run/g2.sock --json | jq -r .status.status\n"
	"  inmigrate\n";

static const struct {
	const char *key, *command;
} questions[] = {
	{"name", "query-name"},         {"status", "query-status"},
	{"cpus", "query-cpus-fast"},    {"memory", "query-memory-size-summary"},
	{"migration", "query-migrate"},
};

static json_t *status_ask(const char *address, struct error **err)
{
	cleanup_client struct control_client *client = NULL;
	json_t *all;

	if (control_client_connect(&client, address, CONTROL_CLIENT_TIMEOUT_US, err))
		return NULL;
	all = json_object();
	for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++) {
		json_t *answer = NULL;

		if (control_client_execute(client, questions[i].command, NULL, &answer,
					   CONTROL_CLIENT_TIMEOUT_US, err)) {
			json_decref(all);
			return NULL;
		}
		json_object_set_new(all, questions[i].key, answer);
	}
	return all;
}

/* A destination that nobody has connected to: there is nothing but where it listens. */
static void print_waiting(const json_t *migration)
{
	const json_t *address = json_array_get(json_object_get(migration, "socket-address"), 0);
	const char *type = json_path_text(address, "type");

	if (!strcmp(type, "unix"))
		printf("waits for a guest at unix:%s\n", json_path_text(address, "path"));
	else if (!strcmp(type, "inet"))
		printf("waits for a guest at tcp:%s:%s\n", json_path_text(address, "host"),
		       json_path_text(address, "port"));
	else
		puts("waits for a guest");
}

static void print_migration(const json_t *migration)
{
	const char *status = json_path_text(migration, "status");
	const char *error = json_path_text(migration, "error-desc");
	bool incoming = json_is_true(json_object_get(migration, "incoming"));
	char sent[32], total[32], time[32];

	if (!*status)
		return;
	if (incoming && !strcmp(status, "setup") && !json_path_number(migration, "ram.total")) {
		print_waiting(migration);
		return;
	}
	printf("%s migration: %s", incoming ? "incoming" : "outgoing", status);
	printf(" (phase %s), %s of %s sent, %llu rounds, %s\n", json_path_text(migration, "phase"),
	       format_size(sent, sizeof(sent), json_path_number(migration, "ram.transferred")),
	       format_size(total, sizeof(total), json_path_number(migration, "ram.total")),
	       (unsigned long long)json_path_number(migration, "ram.dirty-sync-count"),
	       format_duration(time, sizeof(time),
			       json_path_number(migration, "total-time") * 1000));
	if (!incoming && json_object_get(migration, "expected-downtime-us"))
		printf("  expected pause %s, last progress %llu ms ago%s\n",
		       format_duration(time, sizeof(time),
				       json_path_number(migration, "expected-downtime-us")),
		       (unsigned long long)json_path_number(migration, "last-progress-ms"),
		       json_is_true(json_object_get(migration, "converging")) ? ""
									      : ", not converging");
	if (json_path_number(migration, "switchover-us.total"))
		printf("  pause %s\n",
		       format_duration(time, sizeof(time),
				       json_path_number(migration, "switchover-us.total")));
	if (json_path_number(migration, "guest-pause-us"))
		printf("  pause %s as the guest saw it\n",
		       format_duration(time, sizeof(time),
				       json_path_number(migration, "guest-pause-us")));
	if (json_is_true(json_object_get(migration, "in-doubt")))
		puts("  IN DOUBT: find out whether the guest runs at the destination, then say\n"
		     "  'godwit qmp CONTROL x-migrate-resolve owner=here' (or owner=there)");
	if (*error)
		printf("  %s\n", error);
}

static void print_status(const json_t *all)
{
	const char *name = json_path_text(all, "name.name");
	size_t cpus = json_array_size(json_object_get(all, "cpus"));
	uint64_t memory = json_path_number(all, "memory.base-memory");
	char size[32];

	printf("%s: %s", *name ? name : "(no guest yet)", json_path_text(all, "status.status"));
	if (cpus)
		printf(", %zu vCPU%s", cpus, cpus == 1 ? "" : "s");
	if (memory)
		printf(", %s", format_size(size, sizeof(size), memory));
	putchar('\n');
	print_migration(json_object_get(all, "migration"));
}

int cmd_status(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{NULL},
	};
	cleanup_error struct error *error = NULL;
	bool json = false;
	json_t *all;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'h') {
			fputs(help, stdout);
			return EXIT_OK;
		}
		if (option != 'j')
			return tool_usage("status", NULL);
		json = true;
	}
	if (argc - optind != 1)
		return tool_usage("status", "one CONTROL address is needed");
	all = status_ask(argv[optind], &error);
	if (!all)
		return tool_fail(&error);
	if (json) {
		json_dumpf(all, stdout, JSON_INDENT(2));
		putchar('\n');
	} else {
		print_status(all);
	}
	json_decref(all);
	return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}
