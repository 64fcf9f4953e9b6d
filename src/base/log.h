/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: one line a call on stderr, "godwit: LEVEL: text", written with a single write(2) so
 * that lines of several threads never mix. Never called in the switchover window.
 */
#pragma once

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Default: LOG_LEVEL_WARNING. Any thread. */
void log_set_level(enum log_level level);

void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
