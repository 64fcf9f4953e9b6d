/* SPDX-License-Identifier: Apache-2.0 */
/* The command table, nothing else. */
#include <stdio.h>
#include <string.h>
#include "cmd/command.h"

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary;
} commands[] = {
	{"run", cmd_run, "run a virtual machine"},
	{"migrate", cmd_migrate, "move a running guest to another process or host"},
	{"status", cmd_status, "say how a guest and its migration are doing"},
	{"qmp", cmd_qmp, "send one command to a control socket"},
	{"demo", cmd_demo, "run a guest, move it there and back, prove that nothing was lost"},
	{"guest", cmd_guest, "write the built-in guest as an ELF file"},
	{"bench", cmd_bench, "measure, and compare with QEMU"},
};

static void usage(FILE *stream)
{
	fputs("Usage: godwit COMMAND [--option value]...\n\n", stream);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		fprintf(stream, "  %-10s %s\n", commands[i].name, commands[i].summary);
	fputs("\n\"godwit COMMAND --help\" says more; \"godwit --version\" prints the version.\n",
	      stream);
}

int main(int argc, char **argv)
{
	static char name[32];

	if (argc < 2) {
		usage(stderr);
		return 2;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) {
		usage(stdout);
		return 0;
	}
	if (!strcmp(argv[1], "--version")) {
		puts("godwit " GODWIT_VERSION);
		return 0;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (!strcmp(argv[1], commands[i].name)) {
			snprintf(name, sizeof(name), "godwit %s", argv[1]);
			argv[1] = name; /* what getopt_long() puts before its messages */
			return commands[i].run(argc - 1, argv + 1);
		}
	}
	fprintf(stderr, "godwit: no command is called '%s'; try \"godwit --help\"\n", argv[1]);
	return 2;
}
