/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_proxy.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/bytes.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "migration/wire.h"

struct stream {
	uint8_t *data;
	size_t size, capacity;
};

void wire_fix_crc(uint8_t *message, size_t size)
{
	uint32_t length = bytes_get_u32(message + 8);

	if (length > size - WIRE_HEADER_SIZE)
		length = (uint32_t)(size - WIRE_HEADER_SIZE);
	bytes_put_u32(message + 28, 0);
	bytes_put_u32(message + 28, crc32c(0, message, WIRE_HEADER_SIZE + length));
}

/* 1: some came; 0: end; -EAGAIN. */
static int fill(struct stream *stream, int fd)
{
	ssize_t n;

	if (stream->capacity - stream->size < 65536) {
		stream->capacity += 1 << 20;
		stream->data = realloc(stream->data, stream->capacity);
		if (!stream->data)
			abort();
	}
	n = recv(fd, stream->data + stream->size, 65536, MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? -EAGAIN : 0;
	stream->size += (size_t)n;
	return n > 0;
}

static void send_all(int fd, const uint8_t *data, size_t size)
{
	while (size) {
		ssize_t n = send(fd, data, size, MSG_NOSIGNAL);

		if (n < 0 && errno != EINTR)
			return;
		if (n > 0) {
			data += n;
			size -= (size_t)n;
		}
	}
}

static bool whole(const struct stream *stream, int direction, struct wire_message *message)
{
	if (stream->size < WIRE_HEADER_SIZE)
		return false;
	*message = (struct wire_message){
		.direction = direction,
		.type = bytes_get_u16(stream->data + 4),
		.flags = bytes_get_u16(stream->data + 6),
		.sequence = bytes_get_u32(stream->data + 12),
		.data = stream->data,
		.body = bytes_get_u32(stream->data + 8),
	};
	message->size = WIRE_HEADER_SIZE + message->body + bytes_get_u64(stream->data + 16);
	return stream->size >= message->size;
}

/* Whole messages of one direction; false: the wire ends. */
static bool forward(struct wire_proxy *proxy, struct stream *stream, int direction, uint64_t *until)
{
	struct wire_message message;

	while (whole(stream, direction, &message)) {
		enum wire_verdict verdict = proxy->message(proxy->opaque, &message);

		if (verdict == WIRE_END)
			return false;
		if (verdict == WIRE_MUTE) {
			*until = clock_us() + proxy->mute_ms * UINT64_C(1000);
			return true;
		}
		send_all(proxy->fds[!direction], message.data,
			 verdict == WIRE_FORWARD_HALF ? message.size / 2 : message.size);
		if (verdict == WIRE_FORWARD_HALF ||
		    (proxy->forwarded && proxy->forwarded(proxy->opaque, &message)))
			return false;
		stream->size -= message.size;
		memmove(stream->data, stream->data + message.size, stream->size);
	}
	return true;
}

int wire_proxy_run(struct wire_proxy *proxy, unsigned int seconds)
{
	uint64_t deadline = clock_us() + seconds * UINT64_C(1000000), mute = 0;
	struct stream streams[2] = {0};
	bool open = true;
	int status = 0;

	while (open) {
		struct pollfd fds[2] = {{.fd = proxy->fds[0], .events = POLLIN},
					{.fd = proxy->fds[1], .events = POLLIN}};

		if (clock_us() > deadline)
			status = -ETIMEDOUT;
		if (status < 0 || (mute && clock_us() > mute))
			break;
		if (mute) {
			poll(NULL, 0, 5);
			continue;
		}
		poll(fds, 2, 100);
		for (int direction = 0; direction < 2 && open && !mute; direction++) {
			if (!fds[direction].revents)
				continue;
			open = fill(&streams[direction], proxy->fds[direction]) != 0 &&
			       forward(proxy, &streams[direction], direction, &mute);
		}
	}
	for (int i = 0; i < 2; i++) {
		free(streams[i].data);
		close(proxy->fds[i]);
	}
	return status;
}
