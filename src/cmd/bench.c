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
	"       godwit bench dirty [options]\n"
	"\n"
	"Measures. \"migrate\" compares with QEMU where that is installed, and needs Python 3.\n"
	"\n"
	"  migrate           moves of the built-in guest, idle, hot and mostly untouched, in turn\n"
	"                    under Godwit and QEMU, and a bare copy of the same bytes: pause that\n"
	"                    the guest saw, its speed after it, total time, bytes, answers of the\n"
	"                    control socket (a few minutes)\n"
	"\n"
	"  dirty             dirty tracking: a sync against the number of slots, memory and the\n"
	"                    share written, for each back end, and a table of 32764 slots walked\n"
	"                    linearly beside it (takes --json, --check and --part)\n"
	"\n"
	"  --runs N          runs of each; the table gives medians (5)\n"
	"  --case NAME       only idle, hot or untouched (may be given several times)\n"
	"  --cpus N          vCPUs of the guest (1)\n"
	"  --backings        compares --memory-backing private, shared and hugetlb instead\n"
	"  --without NAME    leaves out godwit, qemu or bare\n"
	"  --json            prints rows of JSON, not a table\n"
	"  --output FOLDER   where the JSON files go (default: the build folder)\n"
	"  --document FILE   puts the tables into that file too (docs/benchmarks.md)\n"
	"  --part NAME       dirty: only slots, memory, share or bitmaps\n"
	"  --check           exit status 1 when a limit is missed\n"
	"  --help            this text\n"
	"\n"
	"docs/benchmarks.md and docs/dirty-tracking.md say how it is measured.\n";

/* Below the folder above the program's own: build/godwit and bin/godwit. */
static const char *const scripts[] = {"bench/migrate.py", "share/godwit/bench/migrate.py", NULL};

/* Below that folder, or below the program's own, whatever the build folder is called. */
static const char *const programs[] = {"libexec/godwit/bench-dirty", NULL};
static const char *const built[] = {"bench/bench-dirty", NULL};

static bool find(char *path, size_t size, const char *program, const char *up,
		 const char *const *places, int mode)
{
	const char *end = strrchr(program, '/');

	for (size_t i = 0; end && places[i]; i++) {
		int length = snprintf(path, size, "%.*s%s/%s", (int)(end - program), program, up,
				      places[i]);

		if (length > 0 && (size_t)length < size && access(path, mode) == 0)
			return true;
	}
	return false;
}

static int become_dirty(int argc, char **argv, const char *program, char *path, size_t size)
{
	if (!find(path, size, program, "", built, X_OK) &&
	    !find(path, size, program, "/..", programs, X_OK)) {
		log_error("the benchmark's program bench-dirty is not there: neither in bench/ "
			  "beside "
			  "%s nor in libexec/godwit/ of the installation",
			  program);
		return 1;
	}
	argv[1] = path;
	execv(path, argv + 1);
	log_error("cannot run %s: %s", path, strerror(errno));
	return 1;
}

static int become_migrate(int argc, char **argv, int first, char *program, char *path, size_t size)
{
	static char python[] = "python3", option[] = "--godwit";
	char *arguments[MAX_ARGUMENTS + 5] = {python, path, option, program};

	if (argc - first > MAX_ARGUMENTS) {
		fputs("godwit bench: too many arguments\n", stderr);
		return 2;
	}
	if (!find(path, size, program, "/..", scripts, R_OK)) {
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

int cmd_bench(int argc, char **argv)
{
	char program[PATH_MAX], path[PATH_MAX + 64];
	bool named = argc > 1 && argv[1][0] != '-';
	ssize_t length;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--help") == 0) {
			fputs(help, stdout);
			return fflush(stdout) ? 1 : 0;
		}
	}
	if (named && strcmp(argv[1], "migrate") != 0 && strcmp(argv[1], "dirty") != 0) {
		fprintf(stderr,
			"godwit bench: there is no benchmark '%s'; there is: migrate, dirty\n",
			argv[1]);
		return 2;
	}
	length = readlink("/proc/self/exe", program, sizeof(program) - 1);
	if (length < 0) {
		log_error("cannot find this program's own path (/proc/self/exe): %s",
			  strerror(errno));
		return 1;
	}
	program[length] = '\0';
	if (named && strcmp(argv[1], "dirty") == 0)
		return become_dirty(argc, argv, program, path, sizeof(path));
	return become_migrate(argc, argv, named ? 2 : 1, program, path, sizeof(path));
}
