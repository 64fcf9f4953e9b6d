/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The QMP server on its libuv loop: the control thread. It only ever parses, answers from published
 * snapshots, and hands long work to workers whose completion comes back to the loop.
 */
#pragma once

#include <uv.h>
#include "base/error.h"
#include "machine/machine.h"

struct control_server;

/* Listens on "unix:PATH" (replaces a stale socket nobody listens on; refuses a live one). May be
 * called several times on one server through control_listen(). */
int control_create(struct control_server **server, uv_loop_t *loop, struct machine *machine,
		   struct error **err);
int control_listen(struct control_server *server, const char *address, struct error **err);

/* The machine's listener: any thread. opaque is the server. */
void control_machine_event(void *opaque, const struct machine_event *event);

/* Flushes what can be written, closes all clients, removes the sockets. Loop thread. */
void control_destroy(struct control_server *server);
