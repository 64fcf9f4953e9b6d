/* SPDX-License-Identifier: Apache-2.0 */
/* What the client commands share: messages, number formats, interruption by signals. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "cmd/command.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* "godwit: text" on stderr. */
void tool_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints the error, frees it, returns EXIT_FAILED. */
int tool_fail(struct error **err);
/* After getopt_long has said what is wrong, or with a message of its own: EXIT_USAGE. */
int tool_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* SIGINT, SIGTERM and SIGHUP are counted from here on, and end waits with EINTR; SIGPIPE is
 * ignored. */
void tool_catch_signals(void);
extern volatile sig_atomic_t tool_interrupts;

/* "460 us", "12.5 ms", "3.21 s". Returns buffer. */
char *format_duration(char *buffer, size_t length, uint64_t microseconds);
