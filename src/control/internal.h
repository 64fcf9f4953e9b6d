/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the server share. Everything here belongs to the loop thread, but the events.
 */
#pragma once

#include <pthread.h>
#include <uv.h>
#include "control/command.h"
#include "control/framer.h"
#include "control/server.h"

#define SERVER_MAX_LISTENERS 16
#define SERVER_MAX_SESSIONS  64
#define SERVER_MAX_FDS       64 /* named descriptors */

#define SESSION_INPUT      8192           /* bytes read at a time; keeps one client's turn short */
#define SESSION_TURN       32             /* requests of one client before others have a turn */
#define SESSION_MAX_QUEUE  8              /* requests that wait, as in QEMU */
#define SESSION_MAX_FDS    8              /* received and not yet named */
#define SESSION_HIGH_WATER (256u * 1024)  /* unread answers: no further request is read */
#define SESSION_MAX_OUTPUT (1024u * 1024) /* unread events on top: the client is dropped */

struct listener {
	struct control_server *server;
	uv_poll_t poll;
	int fd;
	char *path;
	uint64_t device, inode; /* of our socket file: only that one is removed */
};

struct named_fd {
	char *name;
	int fd;
};

struct queued_event {
	struct queued_event *next;
	struct machine_event event;
};

struct control_server {
	uv_loop_t *loop;
	struct machine *machine;
	struct listener listeners[SERVER_MAX_LISTENERS];
	unsigned int listener_count;
	struct session *sessions;
	unsigned int session_count;
	struct named_fd fds[SERVER_MAX_FDS];
	unsigned int fd_count;
	int spare_fd; /* given up for a moment to turn a client away when descriptors run out */

	bool starting;         /* a migration is being started, or checked */
	struct request *check; /* a pre-check whose end is awaited */
	uv_timer_t check_timer;

	uv_async_t wake;
	pthread_mutex_t event_lock; /* held for a list operation */
	struct queued_event *events, **events_tail;

	unsigned int busy; /* handles and jobs whose callback is still to come */
	bool closing;
};

struct session {
	struct control_server *server;
	struct session *next, **link;
	uv_poll_t poll;
	int fd, polled;
	struct framer framer;
	char input[SESSION_INPUT];
	size_t input_start, input_end;
	char *output;
	size_t output_start, output_end, output_capacity;
	struct request *queue, **queue_tail;
	unsigned int queued;
	struct request *running;    /* in-band and not answered yet */
	struct request *overtaking; /* out of band and not answered yet */
	int fds[SESSION_MAX_FDS];
	unsigned int fd_count;
	bool negotiated, oob, eof, closing, processing;
};

/* server.c */
void server_dispatch_events(struct control_server *server);

/* session.c; fd is owned by the session from here on. */
void session_open(struct control_server *server, int fd);
/* Gives the client until the deadline (a clock_us() time) to take what was said to it. */
void session_drain(struct session *session, uint64_t deadline_us);
void session_close(struct session *session);
void session_send(struct session *session, json_t *message);
/* Takes up reading, running and writing again after a request was answered or an event sent. */
void session_process(struct session *session);
/* Writes only; for events. */
void session_push(struct session *session);
int session_take_fd(struct session *session);
json_t *version_info(void);

/* request.c */
struct request *request_parse(struct session *session, const char *text, size_t length);
struct request *request_broken(struct session *session, const char *text);
void request_run(struct request *request);
void request_free(struct request *request);

/* cmd_descriptor.c */
int fds_take(struct control_server *server, const char *name);
void fds_close_all(struct control_server *server);

/* cmd_migrate.c */
void migrate_check_poll(struct control_server *server);
