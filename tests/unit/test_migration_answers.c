/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A destination whose answers are wrong, each byte of each of them in turn: the source runs on, or
 * the guest has moved, or it is in doubt; never two run it, and no wait is without a bound.
 */
#include "unit.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/bytes.h"
#include "base/log.h"
#include "migration/engine.h"
#include "migration_pair.h"
#include "wire_proxy.h"

enum damage { FLIP, HUGE_U32, HUGE_U64, DROP };

struct wrong {
	unsigned int type; /* of the answer */
	size_t at;
	enum damage damage;
	bool happened, past_end;
	struct wire_proxy proxy;
};

static enum wire_verdict on_message(void *opaque, struct wire_message *message)
{
	struct wrong *wrong = opaque;
	size_t width = wrong->damage == FLIP ? 1 : wrong->damage == HUGE_U32 ? 4 : 8;

	if (message->direction != 1 || message->type != wrong->type || wrong->happened)
		return WIRE_FORWARD;
	if (wrong->damage == DROP) {
		wrong->happened = true;
		return WIRE_MUTE;
	}
	if (wrong->at + width > message->size) {
		wrong->past_end = true;
		return WIRE_FORWARD;
	}
	wrong->happened = true;
	switch (wrong->damage) {
	case FLIP:
		message->data[wrong->at] ^= (uint8_t)(1u << wrong->at % 8);
		break;
	case HUGE_U32:
		bytes_put_u32(message->data + wrong->at, 0xfffffff0);
		wire_fix_crc(message->data, message->size);
		break;
	default:
		bytes_put_u64(message->data + wrong->at, UINT64_MAX - 5);
		wire_fix_crc(message->data, message->size);
		break;
	}
	return WIRE_FORWARD;
}

static void *proxy_thread(void *opaque)
{
	wire_proxy_run(opaque, 20);
	return NULL;
}

/* False when the byte lies past the message's end. */
static bool try_wrong(struct wrong *wrong)
{
	struct fake_config config = {.size = UINT64_C(2) << 20,
				     .backing = RAM_BACKING_PRIVATE,
				     .log = FAKE_LOG_MANUAL,
				     .write_at_stop = true};
	struct engine_timeouts timeouts = {.connect = 300000,
					   .answer = 300000,
					   .keepalive = 100000,
					   .stall = 300000,
					   .takeover = 100000,
					   .farewell = 20000};
	struct migration_info out, in;
	uint64_t start = clock_us();
	struct error *err = NULL;
	pthread_t thread;
	struct pair pair;
	int ends[2];

	pair_create(&pair, &config);
	pair.source.keep_copy = pair.destination.keep_copy = false;
	pair.source.migration->timeouts = pair.destination.migration->timeouts = timeouts;
	pair.source.migration->parameters.switchover_timeout_ms = 200;
	/* The proxy goes between: source, ends[0] ... fds[0], destination. */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	wrong->proxy = (struct wire_proxy){.fds = {ends[1], pair.fds[0]},
					   .mute_ms = 600,
					   .message = on_message,
					   .opaque = wrong};
	pair.fds[0] = ends[0];
	fake_fill(&pair.source, 0, 3, 1);
	assert_int_equal(pthread_create(&thread, NULL, proxy_thread, &wrong->proxy), 0);
	pair_start(&pair);
	fake_wait(&pair.source, 20, &out);
	if (out.in_doubt) {
		if (wrong->type != WIRE_RUNNING)
			fail_msg("in doubt after a wrong %s", wire_type_name(wrong->type));
		fake_wait(&pair.destination, 20, &in);
		assert_true(fake_is_running(&pair.destination));
		assert_ok(migration_resolve(pair.source.migration, false, &err), err);
		while (fake_count(&pair.source, FAKE_MOVED) == 0)
			usleep(200);
	} else {
		fake_wait(&pair.destination, 20, &in);
	}
	if (fake_is_running(&pair.source) == fake_is_running(&pair.destination))
		fail_msg("%s byte %zu: %d run; source: %s; destination: %s",
			 wire_type_name(wrong->type), wrong->at, 2 * fake_is_running(&pair.source),
			 out.error, in.error);
	/* A flipped bit is always seen; what follows a decision can change it no more. */
	if (wrong->happened && wrong->damage == FLIP && wrong->type != WIRE_RUNNING) {
		assert_true(fake_is_running(&pair.source));
		assert_int_equal(out.status, MIGRATION_FAILED);
		assert_true(*out.error);
	}
	assert_true(clock_us() - start < 5000000);
	pair_destroy(&pair);
	pthread_join(thread, NULL);
	return !wrong->past_end;
}

static const unsigned int answers[] = {WIRE_HELLO_OK,   WIRE_MACHINE_OK, WIRE_SCHEMA_OK,
				       WIRE_ROUND_DONE, WIRE_READY,      WIRE_QUIET,
				       WIRE_VOTE_YES,   WIRE_RUNNING};

static void each_byte(enum damage damage)
{
	unsigned int cases = 0;

	for (size_t i = 0; i < sizeof(answers) / sizeof(*answers); i++)
		for (size_t at = damage == FLIP ? 0 : 4;; at++, cases++) {
			struct wrong wrong = {.type = answers[i], .at = at, .damage = damage};

			if (!try_wrong(&wrong))
				break;
		}
	print_message("%u cases\n", cases);
}

static void test_flipped_bits(void **state)
{
	each_byte(FLIP);
}

static void test_huge_values(void **state)
{
	each_byte(HUGE_U32);
	each_byte(HUGE_U64);
}

/* Swallowed, and then silence. */
static void test_no_answer(void **state)
{
	for (size_t i = 0; i < sizeof(answers) / sizeof(*answers); i++) {
		struct wrong wrong = {.type = answers[i], .damage = DROP};

		try_wrong(&wrong);
		assert_true(wrong.happened);
	}
}

static int setup(void **state)
{
	log_set_level(LOG_LEVEL_ERROR - 1);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_flipped_bits),
		cmocka_unit_test(test_huge_values),
		cmocka_unit_test(test_no_answer),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
