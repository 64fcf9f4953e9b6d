/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors that clients send (SCM_RIGHTS) and name. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include "control/internal.h"

static SCHEMA_OBJECT_TYPE(fdname_arg, "q_obj_getfd-arg", SCHEMA_REQUIRED("fdname", schema_str));

static struct named_fd *fds_find(struct control_server *server, const char *name)
{
	for (unsigned int i = 0; i < server->fd_count; i++)
		if (!strcmp(server->fds[i].name, name))
			return &server->fds[i];
	return NULL;
}

/* The caller owns the descriptor from here on. -ENOENT when there is none of this name. */
int fds_take(struct control_server *server, const char *name)
{
	struct named_fd *entry = fds_find(server, name);
	int fd;

	if (!entry)
		return -ENOENT;
	fd = entry->fd;
	free(entry->name);
	*entry = server->fds[--server->fd_count];
	return fd;
}

void fds_close_all(struct control_server *server)
{
	while (server->fd_count) {
		struct named_fd *entry = &server->fds[--server->fd_count];

		close(entry->fd);
		free(entry->name);
	}
}

static void run_getfd(struct request *request)
{
	struct control_server *server = request->server;
	const char *name = json_string_value(json_object_get(request->arguments, "fdname"));
	int fd = session_take_fd(request->session);
	struct named_fd *entry;
	char *copy;

	if (fd < 0) {
		request_refuse(request, "GenericError",
			       "No file descriptor supplied via SCM_RIGHTS");
		return;
	}
	if (!*name || isdigit((unsigned char)*name) || strlen(name) > 255) {
		close(fd);
		request_refuse(request, "GenericError",
			       "Parameter 'fdname' expects a name not starting with a digit, of 1 "
			       "to 255 bytes");
		return;
	}
	entry = fds_find(server, name);
	if (entry) {
		close(entry->fd);
		entry->fd = fd;
		request_return(request, NULL);
		return;
	}
	copy = server->fd_count < SERVER_MAX_FDS ? strdup(name) : NULL;
	if (!copy) {
		close(fd);
		request_refuse(request, "GenericError",
			       "%d descriptors have a name already: free one with closefd",
			       SERVER_MAX_FDS);
		return;
	}
	server->fds[server->fd_count++] = (struct named_fd){copy, fd};
	request_return(request, NULL);
}

static void run_closefd(struct request *request)
{
	const char *name = json_string_value(json_object_get(request->arguments, "fdname"));
	int fd = fds_take(request->server, name);

	if (fd < 0) {
		request_refuse(request, "GenericError", "File descriptor named '%.100s' not found",
			       name);
		return;
	}
	close(fd);
	request_return(request, NULL);
}

const struct command commands_descriptor[] = {
	{"getfd", &fdname_arg, NULL, run_getfd},
	{"closefd", &fdname_arg, NULL, run_closefd},
	{NULL},
};
