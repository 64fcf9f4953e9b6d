/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Atomic(int) log_level = LOG_LEVEL_WARNING;

static const char *const log_level_names[] = {
	[LOG_LEVEL_ERROR] = "error",
	[LOG_LEVEL_WARNING] = "warning",
	[LOG_LEVEL_INFO] = "info",
	[LOG_LEVEL_DEBUG] = "debug",
};

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

__attribute__((format(printf, 2, 0))) static void log_write(enum log_level level,
							    const char *format, va_list arguments)
{
	/* At most PIPE_BUF, so that a pipe on stderr takes the line in one piece as well. */
	char line[4096];
	int saved_errno = errno, head, body;
	size_t length;

	if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
		return;
	head = snprintf(line, sizeof(line), "godwit: %s: ", log_level_names[level]);
	body = vsnprintf(line + head, sizeof(line) - (size_t)head, format, arguments);
	length = (size_t)head + (body > 0 ? (size_t)body : 0);
	if (length > sizeof(line) - 1) {
		length = sizeof(line) - 1;
		memcpy(line + length - 3, "...", 3);
	}
	/* Texts may come from a peer or a guest: a line stays a line, and no terminal is steered.
	 */
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			line[i] = ' ';
	line[length++] = '\n';
	while (write(STDERR_FILENO, line, length) < 0 && errno == EINTR)
		;
	errno = saved_errno;
}

#define LOG_FUNCTION(name_, level_)                                                                \
	void log_##name_(const char *format, ...)                                                  \
	{                                                                                          \
		va_list arguments;                                                                 \
                                                                                                   \
		va_start(arguments, format);                                                       \
		log_write(level_, format, arguments);                                              \
		va_end(arguments);                                                                 \
	}

LOG_FUNCTION(error, LOG_LEVEL_ERROR)
LOG_FUNCTION(warning, LOG_LEVEL_WARNING)
LOG_FUNCTION(info, LOG_LEVEL_INFO)
LOG_FUNCTION(debug, LOG_LEVEL_DEBUG)
