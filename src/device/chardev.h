/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's end of a serial line: stdio, a file, a unix socket that is listened on, or nothing.
 * A thread of its own does all I/O: the guest never waits for a reader. What is not read is kept up
 * to CHARDEV_BUFFER bytes, then the oldest is dropped.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

#define CHARDEV_BUFFER 65536

/* The device's end. Both are called on the chardev's thread. */
struct chardev_sink {
	size_t (*room)(void *opaque); /* how many bytes it would take now */
	void (*receive)(void *opaque, const uint8_t *data, size_t size);
	void *opaque;
};

struct chardev;

/* "stdio", "none", "unix:PATH" (listens; a stale socket is replaced), or a file's path (appended
 * to, so that both sides of a move may write to one file). The sink is copied. */
int chardev_open(struct chardev **chardev, const char *where, const struct chardev_sink *sink,
		 struct error **err);

/* Writes what is left as far as it can be written at once, closes. */
void chardev_close(struct chardev *chardev);

/* Any thread; never waits for the reader. */
void chardev_write(struct chardev *chardev, uint8_t byte);

/* The sink has room again. Any thread. */
void chardev_room(struct chardev *chardev);
