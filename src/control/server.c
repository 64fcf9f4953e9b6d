/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include "base/clock.h"
#include "base/log.h"
#include "control/address.h"
#include "control/internal.h"

#define SERVER_OWN_HANDLES 2      /* the wake-up and the timer */
#define FAREWELL_US        300000 /* for all clients together to take their last answers */

static void server_handle_closed(uv_handle_t *handle)
{
	struct control_server *server = handle->data;

	server->busy--;
}

static void server_close_handle(struct control_server *server, void *handle)
{
	((uv_handle_t *)handle)->data = server;
	uv_close(handle, server_handle_closed);
}

static void send_event(struct control_server *server, const struct machine_event *event)
{
	const struct event_type *type;
	struct session *next;
	json_t *message;

	if ((unsigned int)event->type >= event_types_count || !event_types[event->type].name)
		return;
	type = &event_types[event->type];
	message = json_pack("{s:{s:I, s:I}, s:s}", "timestamp", "seconds",
			    (json_int_t)(event->realtime_us / 1000000), "microseconds",
			    (json_int_t)(event->realtime_us % 1000000), "event", type->name);
	if (type->fill)
		json_object_set_new(message, "data", type->fill(event));
	for (struct session *s = server->sessions; s; s = next) {
		next = s->next;
		if (!s->negotiated)
			continue;
		session_send(s, message);
		session_push(s);
	}
	json_decref(message);
}

void server_dispatch_events(struct control_server *server)
{
	struct queued_event *list;

	pthread_mutex_lock(&server->event_lock);
	list = server->events;
	server->events = NULL;
	server->events_tail = &server->events;
	pthread_mutex_unlock(&server->event_lock);
	while (list) {
		struct queued_event *next = list->next;

		send_event(server, &list->event);
		free(list);
		list = next;
	}
}

static void server_woken(uv_async_t *wake)
{
	struct control_server *server = wake->data;

	server_dispatch_events(server);
	migrate_check_poll(server);
}

void control_machine_event(void *opaque, const struct machine_event *event)
{
	struct control_server *server = opaque;
	struct queued_event *queued = server ? calloc(1, sizeof(*queued)) : NULL;

	if (!queued)
		return;
	queued->event = *event;
	pthread_mutex_lock(&server->event_lock);
	*server->events_tail = queued;
	server->events_tail = &queued->next;
	pthread_mutex_unlock(&server->event_lock);
	uv_async_send(&server->wake);
}

static void turn_away(int fd, const char *why)
{
	char text[160];
	int length =
		snprintf(text, sizeof(text),
			 "{\"error\": {\"class\": \"GenericError\", \"desc\": \"%s\"}}\r\n", why);

	send(fd, text, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
	close(fd);
}

/* Without descriptors accept() would fail and the listener stay readable for ever. */
static void accept_without_descriptors(struct control_server *server, int listener)
{
	int fd;

	if (server->spare_fd < 0)
		return;
	close(server->spare_fd);
	fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd >= 0)
		turn_away(fd, "this process has no file descriptor left");
	server->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void listener_polled(uv_poll_t *poll, int status, int events)
{
	struct listener *listener = poll->data;
	struct control_server *server = listener->server;
	int fd;

	if (status < 0)
		return;
	fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0 && (errno == EMFILE || errno == ENFILE))
		accept_without_descriptors(server, listener->fd);
	if (fd < 0)
		return;
	if (server->session_count == SERVER_MAX_SESSIONS)
		turn_away(fd, "64 control clients are connected already, which is the most");
	else
		session_open(server, fd);
}

int control_listen(struct control_server *server, const char *address, struct error **err)
{
	struct listener *listener = &server->listeners[server->listener_count];
	int result;

	if (server->listener_count == SERVER_MAX_LISTENERS)
		return error_set(err, -ENOSPC, "at most %d control sockets can be had",
				 SERVER_MAX_LISTENERS);
	result = address_listen(address, &listener->path, &listener->fd, err);
	if (result)
		return error_prefix(err, "cannot open the control socket");
	address_identity(listener->path, &listener->device, &listener->inode);
	listener->server = server;
	listener->poll.data = listener;
	result = uv_poll_init(server->loop, &listener->poll, listener->fd);
	if (!result) {
		server->busy++;
		server->listener_count++;
		result = uv_poll_start(&listener->poll, UV_READABLE, listener_polled);
	} else {
		unlink(listener->path);
		free(listener->path);
		close(listener->fd);
	}
	if (result)
		return error_set(err, result, "cannot watch the control socket: %s",
				 uv_strerror(result));
	return 0;
}

static void warm_job(uv_work_t *work)
{
}

static void warm_done(uv_work_t *work, int status)
{
	struct control_server *server = work->data;

	server->busy--;
	free(work);
}

/* libuv makes its worker threads at the first job: now, and not in the middle of a migration. */
static void server_warm_workers(struct control_server *server)
{
	uv_work_t *work = calloc(1, sizeof(*work));

	if (!work)
		return;
	work->data = server;
	if (uv_queue_work(server->loop, work, warm_job, warm_done))
		free(work);
	else
		server->busy++;
}

int control_create(struct control_server **out, uv_loop_t *loop, struct machine *machine,
		   struct error **err)
{
	struct control_server *server = calloc(1, sizeof(*server));
	int result;

	if (!server)
		return error_set_errno(err, -ENOMEM, "cannot start the control server");
	server->loop = loop;
	server->machine = machine;
	server->events_tail = &server->events;
	pthread_mutex_init(&server->event_lock, NULL);
	result = uv_async_init(loop, &server->wake, server_woken);
	if (result) {
		pthread_mutex_destroy(&server->event_lock);
		free(server);
		return error_set(err, result, "cannot start the control server: %s",
				 uv_strerror(result));
	}
	server->wake.data = server;
	uv_timer_init(loop, &server->check_timer);
	server->check_timer.data = server;
	server->busy += SERVER_OWN_HANDLES;
	server->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	server_warm_workers(server);
	*out = server;
	return 0;
}

static void listener_close(struct control_server *server, struct listener *listener)
{
	uint64_t device = 0, inode = 0;

	server_close_handle(server, &listener->poll);
	address_identity(listener->path, &device, &inode);
	if (inode && device == listener->device && inode == listener->inode)
		unlink(listener->path);
	free(listener->path);
}

void control_destroy(struct control_server *server)
{
	uint64_t deadline = clock_us() + FAREWELL_US;

	if (!server)
		return;
	server->closing = true;
	server_dispatch_events(server);
	for (unsigned int i = 0; i < server->listener_count; i++)
		listener_close(server, &server->listeners[i]);
	/* The answer to `quit` may stand behind many events. */
	while (server->sessions) {
		struct session *session = server->sessions;

		session_drain(session, deadline);
		session_close(session);
	}
	if (server->check) {
		request_free(server->check);
		server->check = NULL;
	}
	/* Jobs under way may still tell of events, so the wake-up handle goes last. */
	while (server->busy > SERVER_OWN_HANDLES)
		uv_run(server->loop, UV_RUN_ONCE);
	server_close_handle(server, &server->wake);
	server_close_handle(server, &server->check_timer);
	while (server->busy)
		uv_run(server->loop, UV_RUN_ONCE);
	for (unsigned int i = 0; i < server->listener_count; i++)
		close(server->listeners[i].fd);
	fds_close_all(server);
	if (server->spare_fd >= 0)
		close(server->spare_fd);
	server_dispatch_events(server); /* frees what came meanwhile: nobody listens */
	pthread_mutex_destroy(&server->event_lock);
	free(server);
}
