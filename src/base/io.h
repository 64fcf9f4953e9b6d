/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole reads and writes with a deadline, on sockets, pipes and files, whether the descriptor
 * blocks or not: no peer can hold the caller for longer than it said. Any thread; several may use
 * one descriptor in different directions. Neither allocates unless it fails: both may be called in
 * the switchover window. A write to a pipe without a reader raises SIGPIPE, so the program ignores
 * that signal; sockets never raise it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

#define IO_NO_DEADLINE UINT64_MAX

/*
 * deadline_us is a clock_us() time. What is there at once is taken even past the deadline.
 *
 * -ETIMEDOUT: the deadline passed; -ENODATA: the peer closed before the first byte; -ECONNRESET:
 * it closed in the middle; else the errno of the system call. Bytes moved by then are lost.
 */
int io_read_full(int fd, void *data, size_t length, uint64_t deadline_us, struct error **err);
int io_write_full(int fd, const void *data, size_t length, uint64_t deadline_us,
		  struct error **err);

/*
 * A copy (CLOEXEC) of descriptor NUMBER that this process was started with; those it opened itself
 * are CLOEXEC, and are refused with -EBADF. The number is the user's text.
 */
int io_inherited_fd(const char *number, struct error **err);
