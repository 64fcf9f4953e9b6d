/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/tool.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

volatile sig_atomic_t tool_interrupts;

void tool_complain(const char *format, ...)
{
	va_list arguments;

	fputs("godwit: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

int tool_fail(struct error **err)
{
	tool_complain("%s", error_text(*err));
	error_free(err);
	return EXIT_FAILED;
}

int tool_usage(const char *command, const char *format, ...)
{
	va_list arguments;

	if (format) {
		fprintf(stderr, "godwit %s: ", command);
		va_start(arguments, format);
		vfprintf(stderr, format, arguments);
		va_end(arguments);
		fputc('\n', stderr);
	}
	fprintf(stderr, "Try 'godwit %s --help'.\n", command);
	return EXIT_USAGE;
}

static void count_signal(int number)
{
	tool_interrupts++;
}

void tool_catch_signals(void)
{
	struct sigaction count = {.sa_handler = count_signal};
	struct sigaction ignore = {.sa_handler = SIG_IGN};

	sigaction(SIGINT, &count, NULL);
	sigaction(SIGTERM, &count, NULL);
	sigaction(SIGHUP, &count, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
}

char *format_duration(char *buffer, size_t length, uint64_t us)
{
	if (us < 1000)
		snprintf(buffer, length, "%llu us", (unsigned long long)us);
	else if (us < 1000000)
		snprintf(buffer, length, "%.*f ms",
			 us < 10000    ? 2
			 : us < 100000 ? 1
				       : 0,
			 (double)us / 1e3);
	else
		snprintf(buffer, length, "%.2f s", (double)us / 1e6);
	return buffer;
}
