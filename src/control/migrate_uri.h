/* SPDX-License-Identifier: Apache-2.0 */
/* QEMU's structured migration addresses, and the URI each stands for. */
#pragma once

#include "control/command.h"

extern const struct schema_type schema_channel_list, schema_socket_address_list;

/*
 * The URI (to be freed) of `uri` or of `channels` in checked arguments, one of which there must be;
 * `command` names the command for the message.
 */
int migrate_uri_parse(json_t *arguments, const char *command, char **uri, struct error **err);

/* "unix:PATH", "tcp:HOST:PORT" or "fd:NAME" as QEMU's SocketAddress; NULL for anything else. */
json_t *migrate_socket_address(const char *uri);
