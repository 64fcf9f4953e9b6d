/* SPDX-License-Identifier: Apache-2.0 */
#include "control/client.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "control/address.h"
#include "control/framer.h"

#define CLIENT_MAX_EVENTS 1024 /* kept for wait_event; the oldest goes first */

struct control_client {
	int fd;
	struct framer framer;
	char input[65536];
	size_t start, end;
	json_t *events;
	uint64_t serial;
};

/* Reads what is there, once. */
static int client_fill(struct control_client *client, uint64_t deadline, struct error **err)
{
	struct pollfd poll_fd = {.fd = client->fd, .events = POLLIN};
	uint64_t now = clock_us();
	ssize_t n;
	int ready;

	if (now >= deadline)
		return error_set(err, -ETIMEDOUT, "no answer in time on the control socket");
	ready = poll(&poll_fd, 1, (int)((deadline - now + 999) / 1000));
	if (ready < 0)
		return error_set_errno(err, -errno, "cannot wait for the control socket");
	if (!ready)
		return 0;
	n = recv(client->fd, client->input, sizeof(client->input), MSG_DONTWAIT);
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n < 0)
		return error_set_errno(err, -errno, "cannot read from the control socket");
	if (n == 0)
		return error_set(err, -ECONNRESET, "the other side closed the control connection");
	client->start = 0;
	client->end = (size_t)n;
	return 0;
}

/* One JSON object from the wire. */
static int client_read(struct control_client *client, uint64_t deadline, json_t **message,
		       struct error **err)
{
	struct framer *framer = &client->framer;

	for (;;) {
		enum framer_result result;
		json_error_t problem;
		size_t used;
		int status;

		result = framer_feed(framer, client->input + client->start,
				     client->end - client->start, &used);
		client->start += used;
		if (result == FRAMER_MESSAGE) {
			*message = json_loadb(framer->buffer, framer->length, 0, &problem);
			if (json_is_object(*message))
				return 0;
			json_decref(*message);
		}
		if (result != FRAMER_MORE)
			return error_set(err, -EPROTO,
					 "the control socket does not speak QMP: is it one?");
		status = client_fill(client, deadline, err);
		if (status)
			return status;
	}
}

static void client_keep_event(struct control_client *client, json_t *event)
{
	if (json_array_size(client->events) == CLIENT_MAX_EVENTS)
		json_array_remove(client->events, 0);
	json_array_append_new(client->events, event);
}

/* Takes the message when it answers `serial`. */
static int client_answer(json_t *message, uint64_t serial, json_t **result, struct error **err)
{
	json_t *error = json_object_get(message, "error");
	json_t *id = json_object_get(message, "id");

	if (id && json_integer_value(id) != (json_int_t)serial)
		return -EAGAIN;
	if (error)
		return error_set(err, -EREMOTEIO, "%s", json_path_text(error, "desc"));
	if (result)
		*result = json_incref(json_object_get(message, "return"));
	return 0;
}

int control_client_execute(struct control_client *client, const char *command, json_t *arguments,
			   json_t **result, uint64_t timeout_us, struct error **err)
{
	uint64_t deadline = clock_us() + timeout_us;
	uint64_t serial = ++client->serial;
	cleanup_free char *line = NULL;
	cleanup_free char *text = NULL;
	json_t *request = json_pack("{s:s, s:I}", "execute", command, "id", (json_int_t)serial);
	int status;

	if (arguments)
		json_object_set_new(request, "arguments", arguments);
	line = json_dumps(request, 0);
	json_decref(request);
	/* In one piece: the answer to "quit" may be the last sign of life. */
	if (!line || asprintf(&text, "%s\n", line) < 0)
		return error_set(err, -ENOMEM, "cannot write the command %s", command);
	status = io_write_full(client->fd, text, strlen(text), deadline, err);
	if (status)
		return error_prefix(err, "cannot send %s", command);
	for (;;) {
		cleanup_error struct error *error = NULL;
		json_t *message = NULL;

		status = client_read(client, deadline, &message, &error);
		if (status == -EINTR)
			continue;
		if (status)
			return error_set(err, status, "%s: %s", command, error_text(error));
		if (json_object_get(message, "event")) {
			client_keep_event(client, message);
			continue;
		}
		status = client_answer(message, serial, result, err);
		json_decref(message);
		if (status != -EAGAIN)
			return status;
	}
}

int control_client_wait_event(struct control_client *client, const char *name, json_t **event,
			      uint64_t timeout_us, struct error **err)
{
	uint64_t deadline = clock_us() + timeout_us;

	for (;;) {
		json_t *message = NULL;
		int status;

		while (json_array_size(client->events)) {
			json_t *first = json_incref(json_array_get(client->events, 0));

			json_array_remove(client->events, 0);
			if (!name || !strcmp(json_path_text(first, "event"), name)) {
				*event = first;
				return 0;
			}
			json_decref(first);
		}
		status = client_read(client, deadline, &message, err);
		if (status)
			return status;
		if (json_object_get(message, "event"))
			client_keep_event(client, message);
		else
			json_decref(message);
	}
}

int control_client_connect(struct control_client **out, const char *address, uint64_t timeout_us,
			   struct error **err)
{
	uint64_t deadline = clock_us() + timeout_us;
	cleanup_client struct control_client *client = calloc(1, sizeof(*client));
	json_t *greeting = NULL;
	bool qmp;
	int status;

	if (!client)
		return error_set_errno(err, -ENOMEM, "cannot connect to '%s'", address);
	client->fd = -1;
	client->events = json_array();
	framer_init(&client->framer);
	status = address_connect(address, timeout_us, &client->fd, err);
	if (status == -ECONNREFUSED || status == -ENOENT)
		return error_prefix(err, "no virtual machine answers there");
	if (status)
		return status;
	do {
		error_free(err);
		status = client_read(client, deadline, &greeting, err);
	} while (status == -EINTR);
	if (status)
		return error_prefix(err, "no greeting from '%s'", address);
	qmp = json_object_get(greeting, "QMP") != NULL;
	status = error_set(qmp ? NULL : err, -EPROTO, "'%s' is no control socket: %s", address,
			   json_path_text(greeting, "error.desc"));
	json_decref(greeting);
	if (!qmp)
		return status;
	status = control_client_execute(client, "qmp_capabilities", NULL, NULL, timeout_us, err);
	if (status)
		return status;
	*out = steal_pointer(&client);
	return 0;
}

void control_client_close(struct control_client *client)
{
	if (!client)
		return;
	if (client->fd >= 0)
		close(client->fd);
	framer_free(&client->framer);
	json_decref(client->events);
	free(client);
}

void control_client_cleanup_(struct control_client **client)
{
	control_client_close(*client);
}

static const json_t *json_path(const json_t *object, const char *path)
{
	while (object && *path) {
		size_t length = strcspn(path, ".");
		char key[64];

		if (length >= sizeof(key))
			return NULL;
		memcpy(key, path, length);
		key[length] = '\0';
		object = json_object_get(object, key);
		path += length + (path[length] == '.');
	}
	return object;
}

uint64_t json_path_number(const json_t *object, const char *path)
{
	const json_t *value = json_path(object, path);

	return json_is_real(value) ? (uint64_t)json_real_value(value)
				   : (uint64_t)json_integer_value(value);
}

const char *json_path_text(const json_t *object, const char *path)
{
	const char *text = json_string_value(json_path(object, path));

	return text ? text : "";
}
