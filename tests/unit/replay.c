/* SPDX-License-Identifier: Apache-2.0 */
#include "replay.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/bytes.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "fake_guest.h"
#include "migration/engine.h"
#include "wire_proxy.h"

/* How long the player waits for READY, then for room in the socket. */
#define READY_MS 40
#define ROOM_MS  200

static const struct fake_config tiny = {.size = UINT64_C(2) << 20,
					.backing = RAM_BACKING_PRIVATE,
					.log = FAKE_LOG_MANUAL,
					.write_at_stop = true};

static void pair_or_abort(int fds[2])
{
	int size = 4 << 20;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		abort();
	if (setsockopt(fds[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
		setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

static enum wire_verdict record_message(void *opaque, struct wire_message *message)
{
	struct recording *recording = opaque;

	if (message->direction || recording->count == RECORDING_MESSAGES)
		return WIRE_FORWARD;
	recording->data = realloc(recording->data, recording->size + message->size);
	if (!recording->data)
		abort();
	memcpy(recording->data + recording->size, message->data, message->size);
	recording->messages[recording->count].offset = recording->size;
	recording->messages[recording->count].body = message->body;
	recording->messages[recording->count].size = message->size;
	recording->messages[recording->count++].type = message->type;
	recording->size += message->size;
	return WIRE_FORWARD;
}

static void *record_thread(void *opaque)
{
	wire_proxy_run(opaque, 20);
	return NULL;
}

void recording_make(struct recording *recording, unsigned int hot)
{
	struct fake_config config = tiny;
	struct fake_guest source, destination;
	struct wire_proxy proxy = {.message = record_message, .opaque = recording};
	struct migration_info info;
	int out[2], in[2];
	pthread_t thread;

	memset(recording, 0, sizeof(*recording));
	config.hot_pages = hot;
	config.pace_us = 100;
	pair_or_abort(out);
	pair_or_abort(in);
	proxy.fds[0] = out[1];
	proxy.fds[1] = in[0];
	fake_create(&source, &config, false);
	fake_create(&destination, &config, true);
	fake_fill(&source, 0, 5, 1);
	fake_fill(&source, 300, 2, 1);
	fake_fill(&source, 20, 3, 0);
	for (uint64_t page = 20; page < 23; page++)
		memset(source.ram->regions[0].hva + page * RAM_PAGE_SIZE, 0, RAM_PAGE_SIZE);
	fake_create_engine(&source);
	fake_create_engine(&destination);
	fake_set_running(&source, true);
	if (pthread_create(&thread, NULL, record_thread, &proxy) != 0 ||
	    migration_incoming(destination.migration,
			       &(struct migration_request){.uri = "fd:x", .fd = in[1]}, NULL) < 0 ||
	    migration_start(source.migration,
			    &(struct migration_request){.uri = "fd:x", .fd = out[0]}, NULL) < 0)
		abort();
	fake_wait(&source, 20, &info);
	fake_wait(&destination, 20, &info);
	pthread_join(thread, NULL);
	if (info.status != MIGRATION_COMPLETED || recording->count == RECORDING_MESSAGES)
		abort();
	fake_destroy(&source);
	fake_destroy(&destination);
}

void recording_free(struct recording *recording)
{
	free(recording->data);
	memset(recording, 0, sizeof(*recording));
}

/* False: the other side has closed, or takes nothing more. */
static bool send_bytes(int fd, const uint8_t *data, size_t size)
{
	while (size) {
		ssize_t n = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
		struct pollfd room = {.fd = fd, .events = POLLOUT};

		if (n > 0) {
			data += n;
			size -= (size_t)n;
		} else if (errno == EAGAIN) {
			if (poll(&room, 1, ROOM_MS) <= 0)
				return false;
		} else if (errno != EINTR) {
			return false;
		}
	}
	return true;
}

/* Reads answers until READY, the end, or a bound. */
static void wait_ready(int fd)
{
	uint64_t deadline = clock_us() + READY_MS * 1000;
	uint8_t data[4096];
	size_t have = 0;

	while (clock_us() < deadline) {
		struct pollfd some = {.fd = fd, .events = POLLIN};
		ssize_t n;

		if (poll(&some, 1, 5) <= 0)
			continue;
		n = recv(fd, data + have, sizeof(data) - have, MSG_DONTWAIT);
		if (n <= 0)
			return;
		have += (size_t)n;
		for (size_t at = 0; at + WIRE_HEADER_SIZE <= have;
		     at += WIRE_HEADER_SIZE + bytes_get_u32(data + at + 8))
			if (bytes_get_u16(data + at + 4) == WIRE_READY)
				return;
		if (have == sizeof(data))
			return;
	}
}

size_t replay_find_intent(const uint8_t *data, size_t size)
{
	size_t at = 0;

	while (size - at >= WIRE_HEADER_SIZE) {
		uint64_t skip = (uint64_t)bytes_get_u32(data + at + 8) +
				(bytes_get_u64(data + at + 16) & 0xfffffff);

		if (bytes_get_u16(data + at + 4) == WIRE_INTENT)
			return at;
		if (skip > size - at - WIRE_HEADER_SIZE)
			break;
		at += WIRE_HEADER_SIZE + skip;
	}
	return size;
}

static uint32_t digest(struct fake_guest *guest)
{
	uint32_t crc = crc32c(0, guest->copy, guest->ram->size);

	crc = crc32c(crc, guest->vcpus, guest->config.vcpus * sizeof(*guest->vcpus));
	return crc32c(crc, &guest->clock, sizeof(guest->clock));
}

void replay_play(const uint8_t *data, size_t size, size_t intent_at, struct replay_result *result)
{
	struct fake_guest guest;
	struct migration_info info;
	uint64_t start = clock_us();
	int fds[2];

	pair_or_abort(fds);
	fake_create(&guest, &tiny, true);
	guest.keep_copy = true;
	fake_create_engine(&guest);
	guest.migration->timeouts = (struct engine_timeouts){.connect = 300000,
							     .answer = 300000,
							     .keepalive = 1000000,
							     .stall = 300000,
							     .takeover = 100000,
							     .farewell = 50000};
	if (migration_incoming(guest.migration,
			       &(struct migration_request){.uri = "fd:x", .fd = fds[1]}, NULL) < 0)
		abort();
	if (intent_at > size)
		intent_at = size;
	if (send_bytes(fds[0], data, intent_at) && intent_at < size) {
		wait_ready(fds[0]);
		send_bytes(fds[0], data + intent_at, size - intent_at);
	}
	shutdown(fds[0], SHUT_WR);
	fake_wait(&guest, 20, &info);
	close(fds[0]);
	memset(result, 0, sizeof(*result));
	result->status = info.status;
	memcpy(result->error, info.error, sizeof(result->error));
	result->ran = fake_count(&guest, FAKE_RUN) > 0;
	result->crc = result->ran ? digest(&guest) : 0;
	fake_destroy(&guest);
	result->us = clock_us() - start;
}
