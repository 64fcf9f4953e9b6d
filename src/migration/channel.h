/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The byte channel of a migration: connect or listen by URI, then gathered sends and scattered
 * receives that are bounded by a deadline and ended by a cancel.
 *
 * URIs: unix:PATH, tcp:HOST:PORT ([ADDRESS]:PORT for IPv6), fd:NAME (a connected socket handed over
 * beforehand), exec:COMMAND (a child whose standard input and output are the channel).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include "base/error.h"

struct migration_request;

struct channel {
	int fd;                  /* non-blocking socket; -1: closed */
	int cancel_fd;           /* eventfd, readable: give up with -ECANCELED; -1: not now */
	pid_t child;             /* exec: the command; else 0 */
	uint64_t spin_us;        /* poll by spinning for so long before sleeping */
	uint64_t stall_us;       /* without a deadline: fail after so long with no byte moved */
	uint64_t sent, received; /* bytes */
	uint64_t max_bandwidth;  /* bytes a second; 0: unlimited */
	uint64_t bandwidth_credit_us; /* the time up to which the budget is spent */
	uint64_t throttled_us;        /* slept for max_bandwidth, in all */
};

struct listener {
	int fd;            /* -1 for fd: and exec:, which are "accepted" at once */
	int given_fd;      /* fd: */
	char *command;     /* exec: */
	char path[108];    /* unix: the file to remove at the end */
	char address[128]; /* as query-migrate shows it */
};

/* Deadlines are CLOCK_MONOTONIC microseconds; 0: none but the stall limit. */

int channel_connect(struct channel *channel, const struct migration_request *request, int cancel_fd,
		    uint64_t deadline_us, struct error **err);
/* Closes; ends and reaps an exec: child (SIGTERM, then SIGKILL, bounded). */
void channel_close(struct channel *channel);

int listener_open(struct listener *listener, const struct migration_request *request,
		  struct error **err);
int listener_accept(struct listener *listener, struct channel *channel, int cancel_fd,
		    struct error **err);
void listener_close(struct listener *listener);

/*
 * Sends or receives all of iov (which is consumed). Return 0, -ECANCELED, -ETIMEDOUT, -EPIPE
 * (the other side closed), or the socket's error. Do not allocate unless they fail. [window]
 */
int channel_send(struct channel *channel, struct iovec *iov, unsigned int count,
		 uint64_t deadline_us, struct error **err);
int channel_receive(struct channel *channel, struct iovec *iov, unsigned int count,
		    uint64_t deadline_us, struct error **err);

/* True when a receive would find something (bytes or an end). */
bool channel_readable(struct channel *channel);
/* Waits until readable: 0, -ETIMEDOUT, -ECANCELED. Spins first. No error text. */
int channel_wait_readable(struct channel *channel, uint64_t deadline_us);

/* Checks a URI without acting on it. */
int channel_check_uri(const struct migration_request *request, bool listening, struct error **err);
