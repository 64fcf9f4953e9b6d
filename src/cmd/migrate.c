/* SPDX-License-Identifier: Apache-2.0 */
/* godwit migrate: moves a running guest, shows how it goes, and gives the account at the end. */
#include <getopt.h>
#include <stdio.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/parse.h"
#include "cmd/move.h"
#include "cmd/tool.h"

static const char help[] =
	"Usage: godwit migrate CONTROL URI [options]\n"
	"\n"
	"Moves the guest of a running virtual machine, live, to a process that waits for it.\n"
	"CONTROL is the --control address of the source: unix:PATH, or the path alone.\n"
	"URI is where the destination ('godwit run --incoming URI') listens: unix:PATH,\n"
	"tcp:HOST:PORT, fd:NAME or exec:COMMAND.\n"
	"\n"
	"  --check              only ask whether the destination would accept the guest\n"
	"  --downtime-limit T   longest pause to aim at (default 300ms)\n"
	"  --max-bandwidth S    bytes a second at most, as 100M (default and 0: no limit)\n"
	"  --insecure           allow tcp: to an address other than loopback, unencrypted\n"
	"  --timeout T          cancel when it is not done by then (default: no limit)\n"
	"  --detach             start it and return ('godwit status' shows how it goes)\n"
	"  --quiet              no progress lines\n"
	"  --json               print the answer of query-migrate instead of text\n"
	"  --help               this text\n"
	"\n"
	"Ctrl-C cancels the migration; the guest then stays where it is.\n"
	"Exit status: 0 moved (or accepted), 1 not moved, 2 usage.\n"
	"\n"
	"Examples, on one host and to another one:\n"
	"  godwit run --incoming unix:/tmp/move --control unix:/tmp/b &\n"
	"  godwit migrate unix:/tmp/a unix:/tmp/move\n"
	"\n"
	"  other$ godwit run --incoming tcp:0.0.0.0:4444 --insecure --control unix:/tmp/b\n"
	"  here$  godwit migrate --insecure --downtime-limit 20ms unix:/tmp/a tcp:192.0.2.7:4444\n";

struct display {
	bool tty, quiet;
	uint64_t printed_us; /* when the last plain line was */
};

static void show_progress(void *opaque, const json_t *info)
{
	struct display *display = opaque;
	uint64_t now = clock_us();
	char line[256];

	if (display->quiet)
		return;
	move_progress_line(line, sizeof(line), info);
	if (display->tty)
		fprintf(stderr, "\r\033[K%s", line);
	else if (now - display->printed_us >= 1000000)
		fprintf(stderr, "%s\n", line);
	else
		return;
	display->printed_us = now;
}

static int migrate_report(const struct display *display, int result, const json_t *info, bool json,
			  struct error **err)
{
	if (display->tty && display->printed_us)
		fputs("\r\033[K", stderr);
	if (json && info) {
		json_dumpf(info, stdout, JSON_INDENT(2));
		putchar('\n');
	}
	if (result)
		return tool_fail(err);
	if (!json)
		move_print_account(info);
	return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

static int migrate_run(const char *control, struct move_options *options, bool detach, bool quiet,
		       bool json)
{
	cleanup_client struct control_client *client = NULL;
	cleanup_error struct error *error = NULL;
	struct display display = {.tty = isatty(STDERR_FILENO), .quiet = quiet || json};
	json_t *info = NULL;
	int result;

	options->progress = show_progress;
	options->opaque = &display;
	tool_catch_signals();
	if (control_client_connect(&client, control, CONTROL_CLIENT_TIMEOUT_US, &error) ||
	    move_start(client, options, &error))
		return tool_fail(&error);
	if (options->check || detach) {
		puts(json             ? options->check ? "{\"accepted\": true}" : "{}"
		     : options->check ? "the destination would accept the guest"
				      : "the migration is under way");
		return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
	}
	result = move_wait(client, options, &info, &error);
	result = migrate_report(&display, result, info, json, &error);
	json_decref(info);
	return result;
}

int cmd_migrate(int argc, char **argv)
{
	static const struct option table[] = {
		{"check", no_argument, NULL, 'c'},
		{"downtime-limit", required_argument, NULL, 'l'},
		{"max-bandwidth", required_argument, NULL, 'b'},
		{"insecure", no_argument, NULL, 'i'},
		{"timeout", required_argument, NULL, 't'},
		{"detach", no_argument, NULL, 'd'},
		{"quiet", no_argument, NULL, 'q'},
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{NULL},
	};
	struct move_options options = {0};
	cleanup_error struct error *error = NULL;
	bool detach = false, quiet = false, json = false;
	uint64_t time = 0;
	int option, result = 0;

	while (!result && (option = getopt_long(argc, argv, "", table, NULL)) != -1) {
		switch (option) {
		case 'c':
			options.check = true;
			break;
		case 'l':
			result = parse_time_us(optarg, &time, &error);
			options.has_downtime_limit = true;
			options.downtime_limit_ms = (time + 999) / 1000;
			break;
		case 'b':
			result = parse_size(optarg, &options.max_bandwidth, &error);
			options.has_max_bandwidth = true;
			break;
		case 'i':
			options.insecure = true;
			break;
		case 't':
			result = parse_time_us(optarg, &options.timeout_us, &error);
			break;
		case 'd':
			detach = true;
			break;
		case 'q':
			quiet = true;
			break;
		case 'j':
			json = true;
			break;
		case 'h':
			fputs(help, stdout);
			return EXIT_OK;
		default:
			return tool_usage("migrate", NULL);
		}
	}
	if (result)
		return tool_usage("migrate", "%s", error_text(error));
	if (argc - optind != 2)
		return tool_usage("migrate", "CONTROL and URI are needed");
	options.uri = argv[optind + 1];
	return migrate_run(argv[optind], &options, detach, quiet, json);
}
