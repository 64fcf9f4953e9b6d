/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wire between two engines that knows where each message of the stream begins and ends, so that
 * something can happen to it, or to one of the sides, at a given message. One thread, no engine.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Direction 0: what the source sends. */
struct wire_message {
	int direction;
	unsigned int type, flags;
	uint32_t sequence;
	uint8_t *data;     /* header, body, payload */
	size_t size, body; /* bytes in all, and of the body */
};

enum wire_verdict {
	WIRE_FORWARD,
	WIRE_FORWARD_HALF, /* then end */
	WIRE_END,          /* both connections are closed */
	WIRE_MUTE, /* nothing moves any more, nothing is closed, until `mute_ms` have passed */
};

struct wire_proxy {
	int fds[2]; /* to the source, to the destination; closed by wire_proxy_run() */
	unsigned int mute_ms;
	/* Called with each whole message before it goes on; may change its bytes. */
	enum wire_verdict (*message)(void *opaque, struct wire_message *message);
	/* Called after it was forwarded; true ends the wire. May be NULL. */
	bool (*forwarded)(void *opaque, const struct wire_message *message);
	void *opaque;
};

/* Forwards until one side has closed, a verdict ends it, or `seconds` have passed (-ETIMEDOUT). */
int wire_proxy_run(struct wire_proxy *proxy, unsigned int seconds);

/* Makes the header's CRC right again after a change. */
void wire_fix_crc(uint8_t *message, size_t size);
