/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/cleanup.h"
#include "control/internal.h"

static const struct command *const groups[] = {
	commands_introspect, commands_query,      commands_machine, commands_migrate,
	commands_parameters, commands_descriptor, commands_dirty,
};

#define GROUPS (sizeof(groups) / sizeof(groups[0]))

const struct command *command_next(const struct command *command)
{
	size_t group = 0;

	if (!command)
		return groups[0];
	if (command[1].name)
		return command + 1;
	/* The last row of a group: find which one it was. */
	for (group = 0; group < GROUPS; group++) {
		const struct command *row = groups[group];

		while (row->name && row != command)
			row++;
		if (row->name)
			break;
	}
	return group + 1 < GROUPS ? groups[group + 1] : NULL;
}

const struct command *command_find(const char *name)
{
	for (const struct command *c = command_next(NULL); c; c = command_next(c))
		if (!strcmp(c->name, name))
			return c;
	return NULL;
}

json_t *json_text(const char *text)
{
	json_t *value = json_string(text);
	cleanup_free char *copy = NULL;

	if (value)
		return value;
	copy = strdup(text);
	for (char *c = copy; c && *c; c++)
		if ((unsigned char)*c >= 0x80)
			*c = '?';
	return json_string(copy ? copy : "out of memory");
}

static struct request *request_new(struct session *session)
{
	struct request *request = calloc(1, sizeof(*request));

	if (!request)
		return NULL;
	request->server = session->server;
	request->session = session;
	request->fd = -1;
	return request;
}

void request_free(struct request *request)
{
	json_decref(request->input);
	error_free(&request->error);
	free(request->uri);
	if (request->fd >= 0)
		close(request->fd);
	free(request);
}

struct request *request_broken(struct session *session, const char *text)
{
	struct request *request = request_new(session);

	if (request)
		error_set(&request->error, -EINVAL, "%s", text);
	return request;
}

static int request_members(struct request *request, struct error **err)
{
	json_t *execute = json_object_get(request->input, "execute");
	json_t *oob = request->session->oob ? json_object_get(request->input, "exec-oob") : NULL;
	const char *key;
	json_t *value;

	request->id = json_object_get(request->input, "id");
	json_object_foreach(request->input, key, value)
	{
		if (!strcmp(key, "execute") || !strcmp(key, "id") || value == oob)
			continue;
		if (strcmp(key, "arguments") != 0)
			return error_set(err, -EINVAL, "QMP input member '%.64s' is unexpected",
					 key);
		if (!json_is_object(value))
			return error_set(err, -EINVAL,
					 "QMP input member 'arguments' must be an object");
		request->arguments = value;
	}
	if (execute && oob)
		return error_set(err, -EINVAL,
				 "QMP input member 'execute' clashes with 'exec-oob'");
	if (!execute && !oob)
		return error_set(err, -EINVAL, "QMP input lacks member 'execute'");
	request->oob = oob != NULL;
	request->name = json_string_value(oob ? oob : execute);
	if (!request->name)
		return error_set(err, -EINVAL, "QMP input member '%s' must be a string",
				 oob ? "exec-oob" : "execute");
	return 0;
}

struct request *request_parse(struct session *session, const char *text, size_t length)
{
	struct request *request = request_new(session);
	json_error_t problem;

	if (!request)
		return NULL;
	request->input =
		json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);
	if (!request->input)
		error_set(&request->error, -EINVAL, "JSON parse error, %s", problem.text);
	else if (!json_is_object(request->input))
		error_set(&request->error, -EINVAL, "QMP input must be a JSON object");
	else
		request_members(request, &request->error);
	return request;
}

/* Sends {"return"|"error": value}, and takes the request from its session. */
static void request_answer(struct request *request, const char *key, json_t *value)
{
	struct session *session = request->session;
	json_t *message = json_object();

	json_object_set_new(message, key, value);
	if (request->id)
		json_object_set(message, "id", request->id);
	if (session) {
		/* What led to this answer is told before it. */
		server_dispatch_events(request->server);
		session_send(session, message);
		if (session->running == request)
			session->running = NULL;
		if (session->overtaking == request)
			session->overtaking = NULL;
	}
	json_decref(message);
	request_free(request);
	if (session)
		session_process(session);
}

void request_return(struct request *request, json_t *value)
{
	request_answer(request, "return", value ? value : json_object());
}

static void request_error(struct request *request, const char *class, const char *text)
{
	request_answer(request, "error",
		       json_pack("{s:s, s:o}", "class", class, "desc", json_text(text)));
}

void request_refuse(struct request *request, const char *class, const char *format, ...)
{
	char text[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	request_error(request, class, text);
}

void request_fail(struct request *request, struct error **err)
{
	struct error *error = *err;

	*err = NULL; /* it may be the request's own, which goes with it */
	request_error(request, "GenericError", error_text(error));
	error_free(&error);
}

static void request_job(uv_work_t *work)
{
	struct request *request = work->data;

	if (request->job(request, &request->error) && !request->error)
		error_set(&request->error, -EIO, "the command failed");
}

static void request_job_done(uv_work_t *work, int status)
{
	struct request *request = work->data;

	request->server->busy--;
	if (request->done)
		request->done(request);
	else if (request->error)
		request_fail(request, &request->error);
	else
		request_return(request, NULL);
}

void request_work(struct request *request, int (*job)(struct request *request, struct error **err),
		  void (*done)(struct request *request))
{
	request->job = job;
	request->done = done;
	request->work.data = request;
	request->server->busy++;
	/* It fails for want of a job only. */
	uv_queue_work(request->server->loop, &request->work, request_job, request_job_done);
}

void request_run(struct request *request)
{
	struct session *session = request->session;
	const struct schema_type *type;
	const struct command *command;
	cleanup_error struct error *error = NULL;

	if (request->error) {
		request_fail(request, &request->error);
		return;
	}
	if (!session->negotiated && strcmp(request->name, "qmp_capabilities") != 0) {
		request_refuse(request, "CommandNotFound",
			       "Expecting capabilities negotiation with 'qmp_capabilities'");
		return;
	}
	command = command_find(request->name);
	if (!command) {
		request_refuse(request, "CommandNotFound", "The command %.100s has not been found",
			       request->name);
		return;
	}
	if (request->oob && !command->oob) {
		request_refuse(request, "GenericError", "The command %s does not support OOB",
			       command->name);
		return;
	}
	type = command->arguments ? command->arguments : &schema_empty;
	if (!request->arguments) {
		json_object_set_new(request->input, "arguments", json_object());
		request->arguments = json_object_get(request->input, "arguments");
	}
	if (schema_check(type, request->arguments, &error))
		request_fail(request, &error);
	else
		command->run(request);
}
