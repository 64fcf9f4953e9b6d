/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel that takes much at once and delivers slowly, as a network with long queues does. The
 * expected pause is that of the channel, not of its queue, and no wait of the hand-over runs out.
 */
#include "unit.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include "migration/engine.h"
#include "migration_pair.h"

#define MIB        UINT64_C(1048576)
#define RATE       UINT64_C(4000000) /* bytes a second */
#define QUEUE_SIZE (64 * MIB)

/* From the source to the destination through the queue; answers go back at once. */
struct slow_wire {
	int source, destination;
	uint8_t *queue;
	size_t head, tail;
	uint64_t start_us, deepest; /* bytes that were queued at most */
};

static bool answers_back(struct slow_wire *wire)
{
	uint8_t data[4096];
	ssize_t n = recv(wire->destination, data, sizeof(data), MSG_DONTWAIT);

	if (n > 0)
		return send(wire->source, data, (size_t)n, MSG_NOSIGNAL) == n;
	return n < 0;
}

/* A chunk each millisecond; small, so that the destination's socket holds little on top. That the
 * destination has gone is noticed where its answers, the last ones too, are read. */
static void deliver(struct slow_wire *wire)
{
	size_t due = (size_t)((clock_us() - wire->start_us) * RATE / 1000000);
	ssize_t n;

	if (due > wire->head)
		due = wire->head;
	if (due <= wire->tail)
		return;
	n = send(wire->destination, wire->queue + wire->tail, due - wire->tail,
		 MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n > 0)
		wire->tail += (size_t)n;
}

static void *slow_thread(void *opaque)
{
	struct slow_wire *wire = opaque;
	bool open = true;

	wire->start_us = clock_us();
	while (open) {
		struct pollfd fds[2] = {{.fd = wire->source, .events = POLLIN},
					{.fd = wire->destination, .events = POLLIN}};
		ssize_t n;

		poll(fds, 2, 1);
		/* An idle time is not caught up with. */
		if (wire->tail == wire->head)
			wire->start_us = clock_us() - wire->tail * 1000000 / RATE;
		n = recv(wire->source, wire->queue + wire->head, QUEUE_SIZE - wire->head,
			 MSG_DONTWAIT);
		if (n > 0)
			wire->head += (size_t)n;
		if (wire->head - wire->tail > wire->deepest)
			wire->deepest = wire->head - wire->tail;
		deliver(wire);
		open = answers_back(wire) && (n != 0 || wire->tail < wire->head);
	}
	close(wire->source);
	close(wire->destination);
	return NULL;
}

static void test_slow_channel(void **state)
{
	/* 60 pages are written again and again: 60 ms over this channel. */
	struct fake_config config = {.size = 8 * MIB,
				     .backing = RAM_BACKING_PRIVATE,
				     .log = FAKE_LOG_MANUAL,
				     .hot_pages = 60,
				     .pace_us = 20};
	struct migration_parameters parameters;
	struct slow_wire wire = {.queue = malloc(QUEUE_SIZE)};
	struct migration_info out;
	struct error *err = NULL;
	pthread_t thread;
	struct pair pair;
	int ends[2];

	assert_non_null(wire.queue);
	pair_create(&pair, &config);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	wire.source = ends[1];
	wire.destination = pair.fds[0];
	pair.fds[0] = ends[0];
	/* 6 MiB take 1.5 s: longer than any wait in the hand-over may, and longer than silence. */
	fake_fill(&pair.source, 0, 1536, 1);
	migration_get_parameters(pair.source.migration, &parameters);
	parameters.switchover_timeout_ms = 800;
	assert_ok(migration_set_parameters(pair.source.migration, &parameters, &err), err);
	for (int i = 0; i < 2; i++) {
		struct fake_guest *guest = i ? &pair.destination : &pair.source;

		guest->migration->timeouts.answer = guest->migration->timeouts.stall = 600000;
		guest->migration->timeouts.keepalive = 100000;
	}
	assert_int_equal(pthread_create(&thread, NULL, slow_thread, &wire), 0);
	pair_start(&pair);
	pair_assert_moved(&pair);
	migration_query(pair.source.migration, &out);
	/* The queue did take far more than the channel delivers in the time the guest may pause. */
	assert_true(wire.deepest > 4 * MIB);
	assert_true(out.bandwidth_bps > RATE / 2 && out.bandwidth_bps < RATE * 5 / 4);
	assert_true(out.expected_downtime_us < 300000);
	/* Loose, since the machine may be busy; without the answers it is above a second. */
	assert_true(out.downtime_us < out.expected_downtime_us + 200000);
	pair_destroy(&pair);
	pthread_join(thread, NULL);
	free(wire.queue);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slow_channel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
