/* SPDX-License-Identifier: Apache-2.0 */
/*
 * godwit demo: runs the built-in guest, moves it live to a second process and back, and lets the
 * guest itself prove that nothing was lost.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/parse.h"
#include "cmd/child.h"
#include "cmd/move.h"
#include "cmd/tool.h"

static const char help[] =
	"Usage: godwit demo [options]\n"
	"\n"
	"Runs the built-in guest, which writes to its memory all the time, moves it live to a\n"
	"second process and back, and asks it at the end whether any word it wrote was lost.\n"
	"\n"
	"  --memory S           guest memory (default 1G)\n"
	"  --hot S              memory that is written in a loop (default 64M)\n"
	"  --fill S             memory that is written once and read back (default 512M)\n"
	"  --cpus N             vCPUs (default 2)\n"
	"  --rounds N           how often there and back (default 3)\n"
	"  --memory-backing B   private, shared or hugetlb (default private)\n"
	"  --guest OPTIONS      further options of the guest, as pace=100\n"
	"  --keep               leave the guest running at the end, and say where\n"
	"  --json               the result as JSON\n"
	"  --help               this text\n"
	"\n"
	"Exit status: 0 nothing was lost, 1 a word was wrong or a move failed, 2 usage.\n"
	"\n"
	"Example:\n"
	"  godwit demo --memory 4G --fill 2G --hot 128M --rounds 5\n";

#define READY_US 120000000
#define CHECK_US 120000000
#define PAUSE_US 3000000

struct demo {
	const char *memory, *hot, *fill, *cpus, *backing, *guest;
	uint64_t rounds;
	bool keep, json;

	char folder[64];
	struct child vm[2]; /* 0 starts with the guest */
	unsigned int here;  /* which one has it */
	unsigned int moves;
	json_t *rows;
	uint64_t wrong, words;
};

static int demo_start(struct demo *demo, struct error **err)
{
	char guest[256];
	char line[512];
	/* With --no-shutdown a guest that refuses its options can still be heard. */
	char *const argv[] = {
		(char *)"run",
		(char *)"--name",
		(char *)"demo",
		(char *)"--memory",
		(char *)demo->memory,
		(char *)"--cpus",
		(char *)demo->cpus,
		(char *)"--memory-backing",
		(char *)demo->backing,
		(char *)"--guest",
		guest,
		(char *)"--no-shutdown",
		NULL,
	};
	int n = snprintf(guest, sizeof(guest), "stress,hot=%s,fill=%s,cpus=%s%s%s", demo->hot,
			 demo->fill, demo->cpus, demo->guest ? "," : "",
			 demo->guest ? demo->guest : "");
	int result;

	if ((size_t)n >= sizeof(guest))
		return error_set(err, -E2BIG, "the guest's options are too long");
	result = child_start(&demo->vm[0], demo->folder, "vm0", argv, err);
	if (result)
		return result;
	/* "ready" may have been said before this end was connected. */
	for (;;) {
		result = child_wait_line(&demo->vm[0], "godwit-guest ", line, sizeof(line),
					 READY_US, err);
		if (result)
			return error_prefix(err, "the guest does not start");
		if (!strncmp(line, "godwit-guest ready", 18) ||
		    !strncmp(line, "godwit-guest interval=", 22))
			return 0;
		if (!strncmp(line, "godwit-guest error", 18) ||
		    !strncmp(line, "godwit-guest exception", 22))
			return error_set(err, -EINVAL, "the guest refuses: %s", line);
	}
}

/* The pause as the guest measured it; 0 when it says nothing in time. */
static uint64_t demo_guest_pause(struct child *vm)
{
	uint64_t deadline = clock_us() + PAUSE_US;
	char line[512];

	while (clock_us() < deadline && !tool_interrupts) {
		json_t *info = NULL;
		uint64_t pause = 0;
		bool found = false;

		if (!control_client_execute(vm->client, "query-migrate", NULL, &info, 1000000,
					    NULL))
			pause = json_path_number(info, "guest-pause-us");
		json_decref(info);
		if (!pause &&
		    !child_wait_line(vm, "godwit-guest move ", line, sizeof(line), 100000, NULL))
			pause = line_value(line, "pause-us", &found);
		if (pause)
			return pause;
	}
	return 0;
}

static void demo_print_move(const struct demo *demo, const json_t *row)
{
	char total[32], pause[32], guest[32], sent[32];
	uint64_t guest_us = json_path_number(row, "guest-pause-us");

	if (demo->json)
		return;
	printf("  %2u  %-5s  %10s  %10s  %10s  %6llu  %s\n", demo->moves,
	       demo->moves % 2 ? "there" : "back",
	       format_duration(total, sizeof(total), json_path_number(row, "total-us")),
	       format_duration(pause, sizeof(pause), json_path_number(row, "pause-us")),
	       guest_us ? format_duration(guest, sizeof(guest), guest_us) : "-",
	       (unsigned long long)json_path_number(row, "rounds"),
	       format_size(sent, sizeof(sent), json_path_number(row, "bytes")));
	fflush(stdout);
}

static void demo_record(struct demo *demo, const json_t *info, uint64_t guest_pause)
{
	json_t *row =
		json_pack("{s:i, s:I, s:I, s:I, s:I, s:I}", "move", (int)++demo->moves, "total-us",
			  (json_int_t)json_path_number(info, "total-time") * 1000, "pause-us",
			  (json_int_t)json_path_number(info, "switchover-us.total"),
			  "guest-pause-us", (json_int_t)guest_pause, "rounds",
			  (json_int_t)json_path_number(info, "ram.dirty-sync-count"), "bytes",
			  (json_int_t)json_path_number(info, "ram.transferred"));

	json_object_set(row, "switchover-us", json_object_get(info, "switchover-us"));
	json_array_append(demo->rows, row);
	demo_print_move(demo, row);
	json_decref(row);
}

/* Moves the guest to a new process; the old one ends. */
static int demo_move(struct demo *demo, struct error **err)
{
	struct child *source = &demo->vm[demo->here];
	struct child *destination = &demo->vm[1 - demo->here];
	char uri[128], name[16], words[400];
	char *const argv[] = {
		(char *)"run",
		(char *)"--name",
		(char *)"demo",
		(char *)"--memory-backing",
		(char *)demo->backing,
		(char *)"--incoming",
		uri,
		NULL,
	};
	struct move_options options = {.uri = uri, .timeout_us = 120000000};
	json_t *info = NULL;
	int result;

	snprintf(uri, sizeof(uri), "unix:%s/move%u", demo->folder, demo->moves + 1);
	snprintf(name, sizeof(name), "vm%u", demo->moves + 1);
	result = child_start(destination, demo->folder, name, argv, err);
	if (!result)
		result = move_start(source->client, &options, err);
	if (!result)
		result = move_wait(source->client, &options, &info, err);
	if (result) {
		json_decref(info);
		if (*child_last_words(destination, words, sizeof(words)))
			error_prefix(err, "the destination said '%s'", words);
		return error_prefix(err, "move %u", demo->moves + 1);
	}
	demo->here = 1 - demo->here;
	demo_record(demo, info, demo_guest_pause(destination));
	json_decref(info);
	child_stop(source);
	unlink(uri + strlen("unix:"));
	return 0;
}

/* The guest reads every word it has written and counts those that are wrong. */
static int demo_check(struct demo *demo, struct error **err)
{
	struct child *vm = &demo->vm[demo->here];
	bool wrong_found, words_found;
	char line[512];
	int result = child_type(vm, "c", err);

	if (!result)
		result = child_wait_line(vm, "godwit-guest check ", line, sizeof(line), CHECK_US,
					 err);
	if (result)
		return error_prefix(err, "the guest's check");
	demo->wrong = line_value(line, "wrong", &wrong_found);
	demo->words = line_value(line, "words", &words_found);
	if (!wrong_found || !words_found || !demo->words)
		return error_set(err, -EPROTO, "the guest's check is not understood: %s", line);
	return 0;
}

static int demo_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t demo_median(const struct demo *demo, const char *name)
{
	size_t count = json_array_size(demo->rows);
	uint64_t *values = calloc(count + 1, sizeof(*values));
	uint64_t median;

	if (!values)
		return 0;
	for (size_t i = 0; i < count; i++)
		values[i] = json_path_number(json_array_get(demo->rows, i), name);
	qsort(values, count, sizeof(*values), demo_compare);
	median = values[count / 2];
	free(values);
	return median;
}

static int demo_verdict(struct demo *demo)
{
	char total[32], pause[32], guest[32];

	if (demo->json) {
		json_t *all = json_pack("{s:O, s:I, s:I, s:s}", "moves", demo->rows, "words",
					(json_int_t)demo->words, "wrong", (json_int_t)demo->wrong,
					"verdict", demo->wrong ? "failed" : "passed");

		json_dumpf(all, stdout, JSON_INDENT(2));
		putchar('\n');
		json_decref(all);
	} else {
		printf("median       %10s  %10s  %10s\n",
		       format_duration(total, sizeof(total), demo_median(demo, "total-us")),
		       format_duration(pause, sizeof(pause), demo_median(demo, "pause-us")),
		       format_duration(guest, sizeof(guest), demo_median(demo, "guest-pause-us")));
		if (demo->wrong)
			printf("FAILED: the guest found %llu wrong words of %llu\n",
			       (unsigned long long)demo->wrong, (unsigned long long)demo->words);
		else
			printf("passed: the guest checked %llu words after %u moves, none is "
			       "wrong\n",
			       (unsigned long long)demo->words, demo->moves);
	}
	return fflush(stdout) || demo->wrong ? EXIT_FAILED : EXIT_OK;
}

static int demo_play(struct demo *demo, struct error **err)
{
	int result;

	if (!demo->json)
		printf("A guest with %s of memory and %s vCPUs writes %s in a loop (%s filled).\n",
		       demo->memory, demo->cpus, demo->hot, demo->fill);
	fflush(stdout); /* before what may go wrong is said on stderr */
	result = demo_start(demo, err);
	if (result)
		return result;
	if (!demo->json)
		printf("move           total time       pause   guest saw  rounds  sent\n");
	fflush(stdout);
	while (demo->moves < 2 * demo->rounds) {
		result = demo_move(demo, err);
		if (result)
			return result;
	}
	return demo_check(demo, err);
}

static int demo_run(struct demo *demo)
{
	cleanup_error struct error *error = NULL;
	const char *parent = getenv("TMPDIR");
	int status;

	demo->vm[0].serial = demo->vm[1].serial = -1;
	if (!parent || !*parent || strlen(parent) > 40)
		parent = "/tmp";
	snprintf(demo->folder, sizeof(demo->folder), "%s/godwit-demo.XXXXXX", parent);
	if (!mkdtemp(demo->folder)) {
		tool_complain("cannot make a temporary folder in %s: %s", parent, strerror(errno));
		return EXIT_FAILED;
	}
	demo->rows = json_array();
	tool_catch_signals();
	status = demo_play(demo, &error) ? tool_fail(&error) : demo_verdict(demo);
	json_decref(demo->rows);
	if (demo->keep && demo->vm[demo->here].pid) {
		fprintf(stderr,
			"The guest runs on: try 'godwit status unix:%s'; end it with "
			"'godwit qmp unix:%s quit'.\n",
			demo->vm[demo->here].control_path, demo->vm[demo->here].control_path);
		child_leave(&demo->vm[demo->here]);
		child_stop(&demo->vm[1 - demo->here]);
		return status;
	}
	child_stop(&demo->vm[0]);
	child_stop(&demo->vm[1]);
	rmdir(demo->folder);
	return status;
}

int cmd_demo(int argc, char **argv)
{
	static const struct option table[] = {
		{"memory", required_argument, NULL, 'm'},
		{"hot", required_argument, NULL, 'w'},
		{"fill", required_argument, NULL, 'f'},
		{"cpus", required_argument, NULL, 'c'},
		{"rounds", required_argument, NULL, 'r'},
		{"memory-backing", required_argument, NULL, 'b'},
		{"guest", required_argument, NULL, 'g'},
		{"keep", no_argument, NULL, 'k'},
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{NULL},
	};
	struct demo demo = {
		.memory = "1G",
		.hot = "64M",
		.fill = "512M",
		.cpus = "2",
		.backing = "private",
		.rounds = 3,
	};
	cleanup_error struct error *error = NULL;
	uint64_t ignored;
	int option, result = 0;

	while (!result && (option = getopt_long(argc, argv, "", table, NULL)) != -1) {
		switch (option) {
		case 'm':
			result = parse_size(demo.memory = optarg, &ignored, &error);
			break;
		case 'w':
			result = parse_size(demo.hot = optarg, &ignored, &error);
			break;
		case 'f':
			result = parse_size(demo.fill = optarg, &ignored, &error);
			break;
		case 'c':
			result = parse_number(demo.cpus = optarg, 1, 64, &ignored, &error);
			break;
		case 'r':
			result = parse_number(optarg, 1, 10000, &demo.rounds, &error);
			break;
		case 'b':
			demo.backing = optarg;
			break;
		case 'g':
			demo.guest = optarg;
			break;
		case 'k':
			demo.keep = true;
			break;
		case 'j':
			demo.json = true;
			break;
		case 'h':
			fputs(help, stdout);
			return EXIT_OK;
		default:
			return tool_usage("demo", NULL);
		}
	}
	if (result)
		return tool_usage("demo", "%s", error_text(error));
	if (optind != argc)
		return tool_usage("demo", "'%s' is not expected", argv[optind]);
	return demo_run(&demo);
}
