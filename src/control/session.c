/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client. Requests are read only while few wait and the client takes its answers, so what a
 * client can make this process hold is bounded; a client that lets events pile up is dropped.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "control/internal.h"

json_t *version_info(void)
{
	/* The release of QEMU whose protocol is spoken; `package` says who speaks it. */
	return json_pack("{s:{s:i, s:i, s:i}, s:s}", "qemu", "major", 10, "minor", 0, "micro", 0,
			 "package", "godwit-" GODWIT_VERSION);
}

static size_t session_unsent(const struct session *session)
{
	return session->output_end - session->output_start;
}

static void session_closed(uv_handle_t *handle)
{
	struct session *session = handle->data;

	close(session->fd);
	session->server->busy--;
	free(session);
}

void session_close(struct session *session)
{
	if (session->closing)
		return;
	session->closing = true;
	while (session->queue) {
		struct request *request = session->queue;

		session->queue = request->next;
		request_free(request);
	}
	if (session->running)
		session->running->session = NULL;
	if (session->overtaking)
		session->overtaking->session = NULL;
	while (session->fd_count)
		close(session->fds[--session->fd_count]);
	framer_free(&session->framer);
	free(session->output);
	session->output = NULL;
	session->output_start = session->output_end = session->output_capacity = 0;
	*session->link = session->next;
	if (session->next)
		session->next->link = session->link;
	session->server->session_count--;
	uv_close((uv_handle_t *)&session->poll, session_closed);
}

static void session_flush(struct session *session)
{
	while (!session->closing && session_unsent(session)) {
		ssize_t n = send(session->fd, session->output + session->output_start,
				 session_unsent(session), MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			if (errno != EAGAIN)
				session_close(session);
			return;
		}
		session->output_start += (size_t)n;
	}
	session->output_start = session->output_end = 0;
	if (session->output_capacity > SESSION_HIGH_WATER) {
		free(session->output);
		session->output = NULL;
		session->output_capacity = 0;
	}
}

void session_drain(struct session *session, uint64_t deadline_us)
{
	for (;;) {
		struct pollfd room = {.fd = session->fd, .events = POLLOUT};
		uint64_t now = clock_us();

		session_flush(session);
		if (session->closing || !session_unsent(session) || now >= deadline_us)
			return;
		poll(&room, 1, (int)((deadline_us - now) / 1000 + 1));
	}
}

static int session_reserve(struct session *session, size_t length)
{
	size_t capacity = session->output_capacity ? session->output_capacity : 4096;
	char *output;

	if (session->output_start) {
		memmove(session->output, session->output + session->output_start,
			session_unsent(session));
		session->output_end -= session->output_start;
		session->output_start = 0;
	}
	while (capacity < session->output_end + length)
		capacity *= 2;
	if (capacity == session->output_capacity)
		return 0;
	output = realloc(session->output, capacity);
	if (!output)
		return -ENOMEM;
	session->output = output;
	session->output_capacity = capacity;
	return 0;
}

void session_send(struct session *session, json_t *message)
{
	cleanup_free char *text = NULL;
	size_t length;

	if (session->closing)
		return;
	text = json_dumps(message, JSON_PRESERVE_ORDER);
	length = text ? strlen(text) : 0;
	if (!text || session_reserve(session, length + 2)) {
		session_close(session);
		return;
	}
	memcpy(session->output + session->output_end, text, length);
	memcpy(session->output + session->output_end + length, "\r\n", 2);
	session->output_end += length + 2;
	if (session_unsent(session) > SESSION_MAX_OUTPUT)
		session_flush(session);
	if (!session->closing && session_unsent(session) > SESSION_MAX_OUTPUT) {
		log_warning("a control client does not read its answers and was dropped");
		session_close(session);
	}
}

int session_take_fd(struct session *session)
{
	int fd;

	if (!session->fd_count)
		return -1;
	fd = session->fds[0];
	session->fd_count--;
	memmove(session->fds, session->fds + 1, session->fd_count * sizeof(session->fds[0]));
	return fd;
}

/* Keeps the newest; what no getfd asked for in time is closed. */
static void session_keep_fds(struct session *session, struct msghdr *message)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (session->fd_count == SESSION_MAX_FDS)
				close(session_take_fd(session));
			session->fds[session->fd_count++] = fd;
		}
	}
}

static void session_read(struct session *session)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(SESSION_MAX_FDS * sizeof(int))];
	} control;
	struct iovec vector = {session->input, sizeof(session->input)};
	struct msghdr message = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n;

	if (session->input_start < session->input_end)
		return;
	n = recvmsg(session->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0) {
		if (errno != EAGAIN && errno != EINTR)
			session_close(session);
		return;
	}
	session_keep_fds(session, &message);
	session->input_start = 0;
	session->input_end = (size_t)n;
	if (n == 0)
		session->eof = true;
}

static bool session_blocked(const struct session *session)
{
	return session->queued == SESSION_MAX_QUEUE || session_unsent(session) > SESSION_HIGH_WATER;
}

static void session_enqueue(struct session *session, struct request *request)
{
	if (!request) {
		session_close(session);
		return;
	}
	if (request->oob && !session->overtaking) {
		session->overtaking = request;
		request_run(request);
		return;
	}
	*session->queue_tail = request;
	session->queue_tail = &request->next;
	session->queued++;
}

static struct request *session_dequeue(struct session *session)
{
	struct request *request = session->queue;

	session->queue = request->next;
	if (!session->queue)
		session->queue_tail = &session->queue;
	session->queued--;
	return request;
}

/* One step of reading; false when there is nothing to be done now. */
static bool session_step(struct session *session)
{
	struct framer *framer = &session->framer;
	enum framer_result result;
	size_t used = 0;

	if (session->queue && !session->running) {
		session->running = session_dequeue(session);
		request_run(session->running);
		return true;
	}
	if (session_blocked(session))
		return false;
	if (session->input_start < session->input_end)
		result = framer_feed(framer, session->input + session->input_start,
				     session->input_end - session->input_start, &used);
	else if (session->eof)
		result = framer_end(framer);
	else
		return false;
	session->input_start += used;
	if (result == FRAMER_MESSAGE)
		session_enqueue(session, request_parse(session, framer->buffer, framer->length));
	else if (result == FRAMER_ERROR)
		session_enqueue(session, request_broken(session, framer->error));
	else if (session->eof && session->input_start == session->input_end)
		return false;
	return true;
}

static void session_polled(uv_poll_t *poll, int status, int events)
{
	struct session *session = poll->data;

	if (status < 0) {
		session_close(session);
		return;
	}
	if (events & UV_READABLE)
		session_read(session);
	session_process(session);
}

/* More to do, and nothing from outside to wait for: this client's turn was cut short. */
static bool session_has_work(const struct session *session)
{
	if (session->queue && !session->running)
		return true;
	return session->input_start < session->input_end && !session_blocked(session);
}

static void session_update_poll(struct session *session)
{
	int wanted = 0;

	if (!session->eof && !session_blocked(session))
		wanted |= UV_READABLE;
	if (session_unsent(session) || session_has_work(session))
		wanted |= UV_WRITABLE;
	if (wanted == session->polled)
		return;
	session->polled = wanted;
	if (!wanted)
		uv_poll_stop(&session->poll);
	else if (uv_poll_start(&session->poll, wanted, session_polled))
		session_close(session);
}

void session_push(struct session *session)
{
	session_flush(session);
	if (session->closing)
		return;
	if (session->eof && !session->running && !session->overtaking && !session->queue &&
	    !session_unsent(session) && !session_has_work(session))
		session_close(session);
	else
		session_update_poll(session);
}

void session_process(struct session *session)
{
	if (session->closing || session->processing)
		return;
	session->processing = true;
	for (int i = 0; i < SESSION_TURN && !session->closing; i++)
		if (!session_step(session))
			break;
	session->processing = false;
	session_push(session);
}

void session_open(struct control_server *server, int fd)
{
	struct session *session = calloc(1, sizeof(*session));
	json_t *greeting;

	if (!session || uv_poll_init(server->loop, &session->poll, fd)) {
		free(session);
		close(fd);
		return;
	}
	session->server = server;
	session->fd = fd;
	session->poll.data = session;
	session->queue_tail = &session->queue;
	framer_init(&session->framer);
	session->next = server->sessions;
	session->link = &server->sessions;
	if (session->next)
		session->next->link = &session->next;
	server->sessions = session;
	server->session_count++;
	server->busy++;
	greeting = json_pack("{s:{s:o, s:[s]}}", "QMP", "version", version_info(), "capabilities",
			     "oob");
	session_send(session, greeting);
	json_decref(greeting);
	session_process(session);
}
