/* SPDX-License-Identifier: Apache-2.0 */
/* godwit bench: finds the benchmark's script, in the source tree or where it was installed, and
 * becomes it. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "cmd/command.h"

#define MAX_ARGUMENTS 64

static const char help[] =
	"Usage: godwit bench [migrate] [options]\n"
	"\n"
	"Measures, and compares with QEMU where that is installed. Needs Python 3.\n"
	"\n"
	"  migrate           moves of the built-in guest, idle, hot and mostly untouched, in turn\n"
	"                    under Godwit and QEMU, and a bare copy of the same bytes: pause that\n"
	"                    the guest saw, its speed after it, total time, bytes, answers of the\n"
	"                    control socket (a few minutes)\n"
	"\n"
	"  --runs N          runs of each; the table gives medians (5)\n"
	"  --case NAME       only idle, hot or untouched (may be given several times)\n"
	"  --cpus N          vCPUs of the guest (1)\n"
	"  --backings        compares --memory-backing private, shared and hugetlb instead\n"
	"  --without NAME    leaves out godwit, qemu or bare\n"
	"  --json            prints rows of JSON, not a table\n"
	"  --output FOLDER   where the JSON files go (default: the build folder)\n"
	"  --document FILE   puts the tables into that file too (docs/benchmarks.md)\n"
	"  --check           exit status 1 when a limit is missed\n"
	"  --help            this text\n"
	"\n"
	"docs/benchmarks.md says how it is measured.\n";

/* Below the folder above the program's own: build/godwit and bin/godwit. */
static const char *const places[] = {"bench", "share/godwit/bench"};

static bool find_script(char *path, size_t size, const char *program)
{
	const char *end = strrchr(program, '/');

	for (size_t i = 0; end && i < sizeof(places) / sizeof(places[0]); i++) {
		int length = snprintf(path, size, "%.*s/../%s/migrate.py", (int)(end - program),
				      program, places[i]);

		if (length > 0 && (size_t)length < size && access(path, R_OK) == 0)
			return true;
	}
	return false;
}

int cmd_bench(int argc, char **argv)
{
	static char python[] = "python3", option[] = "--godwit";
	char program[PATH_MAX], script[PATH_MAX + 64];
	char *arguments[MAX_ARGUMENTS + 5] = {python, script, option, program};
	ssize_t length;
	int first = 1;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--help") == 0) {
			fputs(help, stdout);
			return fflush(stdout) ? 1 : 0;
		}
	}
	if (argc > 1 && argv[1][0] != '-') {
		if (strcmp(argv[1], "migrate") != 0) {
			fprintf(stderr,
				"godwit bench: there is no benchmark '%s'; there is: migrate\n",
				argv[1]);
			return 2;
		}
		first = 2;
	}
	if (argc - first > MAX_ARGUMENTS) {
		fputs("godwit bench: too many arguments\n", stderr);
		return 2;
	}
	length = readlink("/proc/self/exe", program, sizeof(program) - 1);
	if (length < 0) {
		log_error("cannot find this program's own path (/proc/self/exe): %s",
			  strerror(errno));
		return 1;
	}
	program[length] = '\0';
	if (!find_script(script, sizeof(script), program)) {
		log_error(
			"the benchmark's script migrate.py is not there: neither in the source "
			"tree "
			"(bench/, beside the build folder of %s) nor in share/godwit/bench/ of the "
			"installation; run godwit from its build folder, or install it with its "
			"data",
			program);
		return 1;
	}
	for (int i = first; i < argc; i++)
		arguments[4 + i - first] = argv[i];
	execvp(python, arguments);
	log_error("cannot run python3, which the benchmark needs (Debian: apt-get install "
		  "python3): %s",
		  strerror(errno));
	return 1;
}
