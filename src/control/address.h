/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of control sockets: "unix:PATH", or the path alone. */
#pragma once

#include <stdint.h>
#include "base/error.h"

/*
 * `address` must be "unix:PATH" here (-EINVAL else). Makes a non-blocking listening socket with
 * mode 0600. A socket file that nobody listens on is replaced; -EADDRINUSE when a process does, or
 * when something else lies there. *path (to be freed) is the file.
 */
int address_listen(const char *address, char **path, int *fd, struct error **err);

/* Connects, blocking for at most timeout_us; the socket is non-blocking. */
int address_connect(const char *address, uint64_t timeout_us, int *fd, struct error **err);

/* Device and inode of the file at path; zero when there is none. */
void address_identity(const char *path, uint64_t *device, uint64_t *inode);
