/* SPDX-License-Identifier: Apache-2.0 */
/* What the source, the destination and the public face of the engine share. Internal. */
#pragma once

#include <pthread.h>
#include <stdio.h>
#include <stdatomic.h>
#include "base/buffer.h"
#include "base/publish.h"
#include "migration/channel.h"
#include "migration/migration.h"
#include "migration/wire.h"

/* The bound of every wait, in microseconds. ENGINE_TIMEOUTS has what holds; tests shorten it. */
struct engine_timeouts {
	uint64_t connect;
	/* For an answer before the window, when the other side does nothing else. */
	uint64_t answer;
	/* A side that works long says so this often. */
	uint64_t keepalive;
	/* No byte moved for so long while the guest runs: the other side is gone. */
	uint64_t stall;
	/* The destination, alone after its vote: for the lock of a source that was killed, which
	 * the kernel frees when it has taken the process down. */
	uint64_t takeover;
	/* For sending a last word, and for one from a peer that hung up. */
	uint64_t farewell;
};

#define ENGINE_TIMEOUTS                                                                            \
	((struct engine_timeouts){.connect = 10000000,                                             \
				  .answer = 10000000,                                              \
				  .keepalive = 1000000,                                            \
				  .stall = 30000000,                                               \
				  .takeover = 2000000,                                             \
				  .farewell = 1000000})

/* A busy wait for the other side inside the hand-over, before sleeping. */
#define ENGINE_SPIN_US 150u

#define ENGINE_NONCE_SIZE 16

enum engine_job { JOB_NONE, JOB_OUTGOING, JOB_INCOMING, JOB_QUIT };

struct migration {
	const struct migration_ops *ops;
	void *opaque; /* of ops */
	struct migration_callbacks callbacks;
	void *callbacks_opaque;

	/* The engine's thread waits here for a job. */
	pthread_t thread;
	pthread_mutex_t lock; /* held briefly by any thread: job, parameters, info, decisions */
	pthread_cond_t wake;
	enum engine_job job; /* waits for the thread */
	bool busy;           /* a job waits or runs; false from its final status on */
	bool continue_asked;
	int resolve_asked; /* -1: not; 0: owner is there; 1: here */
	int cancel_fd;
	_Atomic(bool) cancelled;

	struct engine_timeouts timeouts;
	struct migration_parameters parameters;
	struct migration_capabilities capabilities;
	struct migration_info info; /* under lock; published from here */
	struct published published;

	char *uri; /* of the job */
	int uri_fd;
	bool check_only, insecure, allow_exec;
	struct listener listener;

	/* The stream in hand; engine thread only. */
	struct channel channel;
	struct wire wire;
	uint8_t *body; /* received bodies, WIRE_MAX_BODY bytes */
};

/* source.c, destination.c: run a job to its end; the outcome is in info. Engine thread. */
void source_run(struct migration *m);
void destination_run(struct migration *m);

/* Progress, from the engine's thread and out of the window only. */
void engine_set_status(struct migration *m, enum migration_status status);
/* A cancel has taken effect: tells so, on this thread, since migration_cancel() may not. */
void engine_tell_cancelling(struct migration *m);
void engine_set_phase(struct migration *m, enum migration_phase phase);
/*
 * Ends a job; from then on the next one may be asked for (and waits until the thread is free). So
 * the listener is closed before, and a failed source's dirty log is off.
 */
void engine_finish(struct migration *m, enum migration_status status);
/* The same as failed or cancelled, with err's text. Consumes *err. */
void engine_fail(struct migration *m, struct error **err);
/* Changes info under the lock and publishes it. */
#define engine_update(m, ...)                                                                      \
	do {                                                                                       \
		pthread_mutex_lock(&(m)->lock);                                                    \
		struct migration_info *info = &(m)->info;                                          \
		__VA_ARGS__;                                                                       \
		info->last_progress_us = clock_us();                                               \
		published_put(&(m)->published, info);                                              \
		pthread_mutex_unlock(&(m)->lock);                                                  \
	} while (0)

/* Waits for the operator's word while a move is in doubt: 1: the guest is to run here; 0: it runs
 * there; -ETIMEDOUT: nothing was said so far; -ECANCELED: the program ends. */
int engine_wait_resolve(struct migration *m, uint64_t timeout_us);
void engine_get_parameters(struct migration *m, struct migration_parameters *parameters);

/*
 * Receives the next message into m->body, skipping KEEPALIVE. silence_us is for silence: each
 * keep-alive starts it anew. A REFUSE from the other side becomes an error with its reason
 * (-EREMOTEIO).
 */
int engine_receive(struct migration *m, struct wire_header *header, uint64_t silence_us,
		   struct error **err);
/* The same with one deadline for all: keep-alives gain nothing. [window] */
int engine_receive_until(struct migration *m, struct wire_header *header, uint64_t deadline_us,
			 struct error **err);
/* The reason in a REFUSE or ABORT just received, made printable: -EREMOTEIO. */
int engine_refused(struct migration *m, const struct wire_header *header, struct error **err);
/* engine_receive() and engine_receive_until(), and it must be of that type. */
int engine_expect_until(struct migration *m, enum wire_type type, struct wire_header *header,
			uint64_t deadline_us, struct error **err);
int engine_expect(struct migration *m, enum wire_type type, struct wire_header *header,
		  uint64_t silence_us, struct error **err);
/* Sends a message without payload, bounded by timeouts.answer. */
int engine_send(struct migration *m, enum wire_type type, uint16_t flags, const void *body,
		uint32_t length, struct error **err);
/* Best effort: tells the other side why, if the channel still works. */
void engine_send_reason(struct migration *m, enum wire_type type, const char *reason);
