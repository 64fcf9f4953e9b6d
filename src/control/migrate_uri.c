/* SPDX-License-Identifier: Apache-2.0 */
#include "control/migrate_uri.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/cleanup.h"

static SCHEMA_ENUM_TYPE(socket_type, "SocketAddressType", "inet", "unix", "fd");
static SCHEMA_OBJECT_TYPE(inet_address, "InetSocketAddress", SCHEMA_REQUIRED("host", schema_str),
			  SCHEMA_REQUIRED("port", schema_str));
static SCHEMA_OBJECT_TYPE(unix_address, "UnixSocketAddress", SCHEMA_REQUIRED("path", schema_str));
static SCHEMA_OBJECT_TYPE(fd_address, "FdSocketAddress", SCHEMA_REQUIRED("str", schema_str));
static const struct schema_type socket_address = {
	.name = "SocketAddress",
	.meta = SCHEMA_OBJECT,
	.members = (const struct schema_member[]){SCHEMA_REQUIRED("type", socket_type), {NULL}},
	.tag = "type",
	.variants =
		(const struct schema_variant[]){
			{"inet", &inet_address},
			{"unix", &unix_address},
			{"fd", &fd_address},
			{NULL},
		},
};
SCHEMA_ARRAY_TYPE(schema_socket_address_list, "SocketAddress", socket_address);

static SCHEMA_ARRAY_TYPE(string_list, "str", schema_str);
static SCHEMA_OBJECT_TYPE(exec_command, "MigrationExecCommand",
			  SCHEMA_REQUIRED("args", string_list));
static SCHEMA_ENUM_TYPE(address_transport, "MigrationAddressType", "socket", "exec");
static const struct schema_type migration_address = {
	.name = "MigrationAddress",
	.meta = SCHEMA_OBJECT,
	.members = (const struct schema_member[]){SCHEMA_REQUIRED("transport", address_transport),
						  {NULL}},
	.tag = "transport",
	.variants =
		(const struct schema_variant[]){
			{"socket", &socket_address},
			{"exec", &exec_command},
			{NULL},
		},
};
static SCHEMA_ENUM_TYPE(channel_type, "MigrationChannelType", "main");
static SCHEMA_OBJECT_TYPE(migration_channel, "MigrationChannel",
			  SCHEMA_REQUIRED("channel-type", channel_type),
			  SCHEMA_REQUIRED("addr", migration_address));
SCHEMA_ARRAY_TYPE(schema_channel_list, "MigrationChannel", migration_channel);

/* The words as one shell command: ["/bin/sh", "-c", X] is X, else each word stands in quotes. */
static char *exec_line(json_t *args)
{
	const char *first = json_string_value(json_array_get(args, 0));
	const char *second = json_string_value(json_array_get(args, 1));
	char *line = NULL;
	size_t length, index;
	FILE *stream;
	json_t *word;

	if (json_array_size(args) == 3 && strlen(first) >= 2 &&
	    !strcmp(first + strlen(first) - 2, "sh") && !strcmp(second, "-c"))
		return strdup(json_string_value(json_array_get(args, 2)));
	stream = open_memstream(&line, &length);
	if (!stream)
		return NULL;
	json_array_foreach(args, index, word)
	{
		fputs(index ? " '" : "'", stream);
		for (const char *c = json_string_value(word); *c; c++)
			if (*c == '\'')
				fputs("'\\''", stream);
			else
				fputc(*c, stream);
		fputc('\'', stream);
	}
	if (fclose(stream)) {
		free(line);
		return NULL;
	}
	return line;
}

static char *address_uri(json_t *address)
{
	const char *transport = json_string_value(json_object_get(address, "transport"));
	const char *type = json_string_value(json_object_get(address, "type"));
	const char *host = json_string_value(json_object_get(address, "host"));
	cleanup_free char *line = NULL;
	char *uri = NULL;
	int n;

	if (!strcmp(transport, "exec")) {
		line = exec_line(json_object_get(address, "args"));
		n = line ? asprintf(&uri, "exec:%s", line) : -1;
	} else if (!strcmp(type, "unix")) {
		n = asprintf(&uri, "unix:%s", json_string_value(json_object_get(address, "path")));
	} else if (!strcmp(type, "fd")) {
		n = asprintf(&uri, "fd:%s", json_string_value(json_object_get(address, "str")));
	} else {
		n = asprintf(&uri, strchr(host, ':') ? "tcp:[%s]:%s" : "tcp:%s:%s", host,
			     json_string_value(json_object_get(address, "port")));
	}
	return n < 0 ? NULL : uri;
}

int migrate_uri_parse(json_t *arguments, const char *command, char **uri, struct error **err)
{
	const char *text = json_string_value(json_object_get(arguments, "uri"));
	json_t *channels = json_object_get(arguments, "channels");
	json_t *address;

	if (text && channels)
		return error_set(err, -EINVAL,
				 "'uri' and 'channels' arguments are mutually exclusive; exactly "
				 "one of the two should be present in '%s' qmp command",
				 command);
	if (!text && !channels)
		return error_set(err, -EINVAL, "need either 'uri' or 'channels' argument");
	if (channels && json_array_size(channels) != 1)
		return error_set(err, -EINVAL, "'channels' must hold one channel, of type 'main'");
	address = json_object_get(json_array_get(channels, 0), "addr");
	if (address && json_object_get(address, "args") &&
	    !json_array_size(json_object_get(address, "args")))
		return error_set(err, -EINVAL, "'channels[0].addr.args' holds no command");
	*uri = text ? strdup(text) : address_uri(address);
	return *uri ? 0 : error_set_errno(err, -ENOMEM, "cannot read the address");
}

json_t *migrate_socket_address(const char *uri)
{
	const char *colon = strrchr(uri, ':');
	const char *host = uri + 4;
	size_t length;

	if (!strncmp(uri, "unix:", 5))
		return json_pack("{s:s, s:o}", "type", "unix", "path", json_text(uri + 5));
	if (!strncmp(uri, "fd:", 3))
		return json_pack("{s:s, s:o}", "type", "fd", "str", json_text(uri + 3));
	if (strncmp(uri, "tcp:", 4) != 0 || colon < host)
		return NULL;
	length = (size_t)(colon - host);
	if (length >= 2 && host[0] == '[' && host[length - 1] == ']') {
		host++;
		length -= 2;
	}
	return json_pack("{s:s, s:s%, s:s}", "type", "inet", "host", host, length, "port",
			 colon + 1);
}
