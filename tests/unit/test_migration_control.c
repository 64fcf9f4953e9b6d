/* SPDX-License-Identifier: Apache-2.0 */
/* What an operator does to a move, and what may go wrong on either side while the guest runs. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "migration/engine.h"
#include "migration_pair.h"

#define MIB UINT64_C(1048576)

static const struct fake_config small = {
	.size = 4 * MIB, .backing = RAM_BACKING_PRIVATE, .log = FAKE_LOG_MANUAL};

/* The destination's end has been told why, or has seen the end; it never ran. */
static void assert_destination_failed(struct pair *pair, const char *part)
{
	struct migration_info in;

	fake_wait(&pair->destination, 20, &in);
	if (in.status != MIGRATION_FAILED || !strstr(in.error, part))
		fail_msg("destination: %s (%s), not failed (%s)", migration_status_name(in.status),
			 in.error, part);
	assert_int_equal(fake_count(&pair->destination, FAKE_RUN), 0);
	assert_int_equal(fake_count(&pair->destination, FAKE_ARRIVED), 0);
}

static void test_paused_stays_paused(void **state)
{
	struct pair pair;

	pair_create(&pair, &small);
	fake_set_running(&pair.source, false);
	fake_fill(&pair.source, 0, 50, 1);
	pair_start(&pair);
	pair_assert_moved(&pair);
	assert_false(fake_is_running(&pair.destination));
	assert_int_equal(pair.board.running[1], 0);
	pair_destroy(&pair);
}

static void test_paused_and_failed_stays_paused(void **state)
{
	struct migration_info out;
	struct pair pair;

	pair_create(&pair, &small);
	fake_set_running(&pair.source, false);
	pair.destination.fail[FAKE_LOAD] = 2;
	pair_start(&pair);
	fake_wait(&pair.source, 20, &out);
	assert_int_equal(out.status, MIGRATION_FAILED);
	assert_int_equal(fake_count(&pair.source, FAKE_RESUME), 1);
	assert_false(fake_is_running(&pair.source));
	pair_destroy(&pair);
}

/* A device writes to a page after the vCPUs' log was read: the monitor's own log carries it. */
static void test_device_writes(void **state)
{
	struct fake_config config = small;
	struct migration_capabilities capabilities = {.pause_before_switchover = true,
						      .return_path = true};
	struct error *err = NULL;
	struct pair pair;
	uint64_t value = 0;

	pair_create(&pair, &config);
	fake_fill(&pair.source, 0, 100, 1);
	assert_ok(migration_set_capabilities(pair.source.migration, &capabilities, &err), err);
	pair_start(&pair);
	fake_wait_status(&pair.source, MIGRATION_PRE_SWITCHOVER, 20);
	fake_device_write(&pair.source, 0x5008, 0x1234567890abcdef);
	fake_device_write(&pair.source, 0x200000, 77); /* a page nobody touched before */
	assert_ok(migration_continue(pair.source.migration, &err), err);
	pair_assert_moved(&pair);
	assert_true(fake_saw(&pair.source, MIGRATION_PRE_SWITCHOVER));
	memcpy(&value, pair.destination.copy + 0x5008, sizeof(value));
	assert_int_equal(value, 0x1234567890abcdef);
	memcpy(&value, pair.destination.copy + 0x200000, sizeof(value));
	assert_int_equal(value, 77);
	pair_destroy(&pair);
}

static void test_continue_elsewhere_is_refused(void **state)
{
	struct error *err = NULL;
	struct pair pair;

	pair_create(&pair, &small);
	assert_refused(migration_continue(pair.source.migration, &err), err, -EINVAL,
		       "not in pre-switchover but none");
	assert_refused(migration_resolve(pair.source.migration, true, &err), err, -EINVAL,
		       "no migration is in doubt");
	pair_destroy(&pair);
}

static void test_twice_is_busy(void **state)
{
	struct migration_capabilities capabilities = {.pause_before_switchover = true,
						      .return_path = true};
	struct migration_request request = {.uri = "unix:/nowhere", .fd = -1};
	struct error *err = NULL;
	struct pair pair;

	pair_create(&pair, &small);
	assert_false(migration_active(pair.source.migration));
	assert_ok(migration_set_capabilities(pair.source.migration, &capabilities, &err), err);
	pair_start(&pair);
	fake_wait_status(&pair.source, MIGRATION_PRE_SWITCHOVER, 20);
	assert_true(migration_active(pair.source.migration));
	assert_refused(migration_start(pair.source.migration, &request, &err), err, -EBUSY,
		       "under way already");
	assert_refused(migration_incoming(pair.source.migration, &request, &err), err, -EBUSY,
		       "under way already");
	assert_refused(migration_set_capabilities(pair.source.migration, &capabilities, &err), err,
		       -EBUSY, "while a migration is under way");
	assert_ok(migration_cancel(pair.source.migration), err);
	pair_assert_stayed(&pair, MIGRATION_CANCELLED, "");
	assert_true(fake_saw(&pair.source, MIGRATION_CANCELLING));
	assert_int_equal(pair.source.seen[atomic_load(&pair.source.seen_count) - 1],
			 MIGRATION_CANCELLED);
	assert_false(fake_saw(&pair.destination, MIGRATION_CANCELLING));
	assert_false(migration_active(pair.source.migration));
	pair_destroy(&pair);
}

/* Cancelled at once, then a moment later and so on, until a move wins the race: whatever the
 * moment, the guest is on exactly one side, and a cancelled move can be tried again. */
static void test_cancel_at_any_moment(void **state)
{
	struct fake_config config = {.size = 16 * MIB,
				     .backing = RAM_BACKING_PRIVATE,
				     .log = FAKE_LOG_INITIALLY_SET,
				     .hot_pages = 500};
	unsigned int cancelled = 0, moved = 0;

	for (unsigned int us = 0; us < 40000 && moved < 3; us += us < 4000 ? 200 : 1500) {
		struct migration_info out;
		struct pair pair;

		pair_create(&pair, &config);
		fake_fill(&pair.source, 0, 3000, us);
		pair_start(&pair);
		if (us)
			usleep(us);
		migration_cancel(pair.source.migration);
		fake_wait(&pair.source, 20, &out);
		if (out.status == MIGRATION_COMPLETED) {
			moved++;
			pair_assert_moved(&pair);
		} else {
			cancelled++;
			pair_assert_stayed(&pair, MIGRATION_CANCELLED, "");
			assert_destination_failed(&pair, "");
		}
		pair_destroy(&pair);
	}
	assert_true(cancelled > 0);
}

/* Each phase held open in turn by a slow operation of one of the machines, and cancelled there. */
static void cancel_while(enum fake_operation operation, bool at_destination)
{
	struct migration_info out;
	struct pair pair;
	uint64_t start;

	pair_create(&pair, &small);
	fake_fill(&pair.source, 0, 100, 1);
	(at_destination ? &pair.destination : &pair.source)->delay_us[operation] = 150000;
	pair_start(&pair);
	while (fake_count(at_destination ? &pair.destination : &pair.source, operation) == 0)
		usleep(1000);
	start = clock_us();
	migration_cancel(pair.source.migration);
	fake_wait(&pair.source, 20, &out);
	if (operation == FAKE_LOCKS_RELEASE || operation == FAKE_RUN) {
		/* COMMIT goes out: too late. */
		pair_assert_moved(&pair);
	} else {
		pair_assert_stayed(&pair, MIGRATION_CANCELLED, "");
		assert_destination_failed(&pair, "");
	}
	/* The rest of the operation, at most twice, and no long wait. */
	assert_true(clock_us() - start < 2000000);
	pair_destroy(&pair);
}

static void test_cancel_in_every_phase(void **state)
{
	static const enum fake_operation at_source[] = {
		FAKE_DESCRIBE,    FAKE_LOG_START, FAKE_LOG_CLEAR,    FAKE_SAVE_EARLY,
		FAKE_LOG_HARVEST, FAKE_STOP,      FAKE_LOCKS_RELEASE};
	static const enum fake_operation at_destination[] = {FAKE_BUILD, FAKE_LOAD, FAKE_RUN};

	for (size_t i = 0; i < sizeof(at_source) / sizeof(*at_source); i++)
		cancel_while(at_source[i], false);
	for (size_t i = 0; i < sizeof(at_destination) / sizeof(*at_destination); i++)
		cancel_while(at_destination[i], true);
}

static void test_cancel_incoming(void **state)
{
	struct migration_info in;
	struct pair pair;

	pair_create(&pair, &small);
	pair_incoming(&pair);
	usleep(10000);
	migration_cancel(pair.destination.migration);
	fake_wait(&pair.destination, 20, &in);
	assert_int_equal(in.status, MIGRATION_CANCELLED);
	assert_true(fake_saw(&pair.destination, MIGRATION_CANCELLING));
	pair_destroy(&pair);
}

/* Every operation that can fail does so once: the guest runs on, and is told why. */
static void fail_once(enum fake_operation operation, unsigned int call, bool at_destination,
		      const char *part)
{
	struct pair pair;

	pair_create(&pair, &small);
	fake_fill(&pair.source, 0, 100, 1);
	(at_destination ? &pair.destination : &pair.source)->fail[operation] = call;
	pair_start(&pair);
	pair_assert_stayed(&pair, MIGRATION_FAILED, part);
	assert_destination_failed(&pair, part);
	pair_destroy(&pair);
}

static void test_failing_operations(void **state)
{
	fail_once(FAKE_DESCRIBE, 1, false, "describe was told to fail");
	fail_once(FAKE_LOG_START, 1, false, "log_start was told to fail");
	fail_once(FAKE_LOG_CLEAR, 1, false, "cannot re-arm the dirty log");
	fail_once(FAKE_LOG_HARVEST, 1, false, "cannot read the dirty log");
	fail_once(FAKE_SAVE_EARLY, 1, false, "save_early was told to fail");
	fail_once(FAKE_STOP, 1, false, "stop was told to fail");
	fail_once(FAKE_BUILD, 1, true, "build was told to fail");
	fail_once(FAKE_LOAD, 1, true, "early state: load was told to fail");
	fail_once(FAKE_LOAD, 2, true, "load was told to fail");
	fail_once(FAKE_LOCKS_ACQUIRE, 1, true, "locks_acquire was told to fail");
}

static void test_refused_by_name(void **state)
{
	struct migration_info out;
	struct pair pair;

	pair_create(&pair, &small);
	pair.source.model = "real";
	pair_start(&pair);
	pair_assert_stayed(&pair, MIGRATION_FAILED,
			   "machine.model: the source is a real, this is a fake");
	assert_destination_failed(&pair, "machine.model");
	/* The source prepared meanwhile; that is undone, and no memory has flowed. */
	assert_int_equal(fake_count(&pair.source, FAKE_LOG_STOP), 1);
	migration_query(pair.source.migration, &out);
	assert_int_equal(out.normal_pages, 0);
	pair_destroy(&pair);
}

/* A second try from the same source succeeds at once: nothing of the first is in the way. */
static void test_again_after_failure(void **state)
{
	for (int i = 0; i < 20; i++) {
		struct fake_guest other;
		struct migration_info out;
		struct pair pair;
		int fds[2];
		struct error *err = NULL;

		pair_create(&pair, &small);
		fake_fill(&pair.source, 0, 100, 1);
		pair.destination.fail[FAKE_LOAD] = 2;
		pair_start(&pair);
		pair_assert_stayed(&pair, MIGRATION_FAILED, "load was told to fail");
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
		fake_create(&other, &small, true);
		fake_create_engine(&other);
		assert_ok(migration_incoming(
				  other.migration,
				  &(struct migration_request){.uri = "fd:x", .fd = fds[1]}, &err),
			  err);
		assert_ok(migration_start(pair.source.migration,
					  &(struct migration_request){.uri = "fd:x", .fd = fds[0]},
					  &err),
			  err);
		fake_wait(&pair.source, 20, &out);
		assert_int_equal(out.status, MIGRATION_COMPLETED);
		assert_string_equal(out.error, "");
		fake_wait(&other, 20, &out);
		assert_int_equal(out.status, MIGRATION_COMPLETED);
		assert_int_equal(fake_count(&other, FAKE_RUN), 1);
		assert_int_equal(fake_count(&pair.source, FAKE_MOVED), 1);
		fake_destroy(&other);
		pair_destroy(&pair);
	}
}

static void test_check_only(void **state)
{
	struct pair pair;
	struct migration_info out;

	pair_create(&pair, &small);
	pair_incoming(&pair);
	pair_outgoing(&pair, true);
	fake_wait(&pair.source, 20, &out);
	assert_int_equal(out.status, MIGRATION_COMPLETED);
	assert_int_equal(fake_count(&pair.source, FAKE_MOVED), 0);
	assert_int_equal(fake_count(&pair.source, FAKE_STOP), 0);
	/* What was switched on while the destination made up its mind is off again. */
	assert_int_equal(fake_count(&pair.source, FAKE_LOG_STOP),
			 fake_count(&pair.source, FAKE_LOG_START));
	assert_true(fake_is_running(&pair.source));
	assert_destination_failed(&pair, "pre-check");
	assert_null(pair.destination.ram);
	pair_destroy(&pair);

	pair_create(&pair, &small);
	pair.source.model = "other";
	pair_incoming(&pair);
	pair_outgoing(&pair, true);
	pair_assert_stayed(&pair, MIGRATION_FAILED, "machine.model");
	pair_destroy(&pair);
}

/* 24 MiB at 100 MB/s take a quarter of a second, and not much more. */
static void test_max_bandwidth(void **state)
{
	struct fake_config config = {
		.size = 32 * MIB, .backing = RAM_BACKING_PRIVATE, .log = FAKE_LOG_MANUAL};
	struct migration_parameters parameters;
	struct migration_info out;
	struct error *err = NULL;
	struct pair pair;

	pair_create(&pair, &config);
	fake_fill(&pair.source, 0, 6144, 1);
	migration_get_parameters(pair.source.migration, &parameters);
	assert_int_equal(parameters.max_bandwidth, 0);
	parameters.max_bandwidth = 100000000;
	assert_ok(migration_set_parameters(pair.source.migration, &parameters, &err), err);
	pair_start(&pair);
	pair_assert_moved(&pair);
	migration_query(pair.source.migration, &out);
	assert_true(out.total_time_us > 240000);
	assert_true(out.total_time_us < 1500000);
	pair_destroy(&pair);
}

/* A limit so low that a message takes longer than the stall limit. */
static void test_low_bandwidth_is_no_stall(void **state)
{
	struct migration_parameters parameters;
	struct error *err = NULL;
	struct pair pair;

	pair_create(&pair, &small);
	fake_fill(&pair.source, 0, 64, 1);
	migration_get_parameters(pair.source.migration, &parameters);
	parameters.max_bandwidth = 400000; /* 0.65 s for one message of 64 pages */
	assert_ok(migration_set_parameters(pair.source.migration, &parameters, &err), err);
	pair.destination.migration->timeouts.stall = 300000;
	pair_start(&pair);
	pair_assert_moved(&pair);
	pair_destroy(&pair);
}

/* In the middle of a message no ABORT can be sent; the destination is told all the same. */
static void test_cancel_within_a_message(void **state)
{
	struct migration_parameters parameters;
	struct migration_info out;
	struct error *err = NULL;
	struct pair pair;

	pair_create(&pair, &small);
	fake_fill(&pair.source, 0, 64, 1);
	migration_get_parameters(pair.source.migration, &parameters);
	parameters.max_bandwidth = 100000; /* 2.6 s for the one message */
	assert_ok(migration_set_parameters(pair.source.migration, &parameters, &err), err);
	pair_start(&pair);
	do {
		usleep(1000);
		migration_query(pair.source.migration, &out);
	} while (out.phase != MIGRATION_PHASE_ROUNDS);
	usleep(200000);
	assert_ok(migration_cancel(pair.source.migration), err);
	pair_assert_stayed(&pair, MIGRATION_CANCELLED, "");
	assert_destination_failed(&pair, "the source gave up");
	pair_destroy(&pair);
}

static void test_parameters_are_checked(void **state)
{
	struct migration_parameters parameters;
	struct error *err = NULL;
	struct pair pair;

	pair_create(&pair, &small);
	migration_get_parameters(pair.source.migration, &parameters);
	assert_int_equal(parameters.downtime_limit_ms, 300);
	parameters.max_bandwidth = 5;
	assert_refused(migration_set_parameters(pair.source.migration, &parameters, &err), err,
		       -EINVAL, "max-bandwidth is 0 (unlimited) or at least 4096");
	parameters.max_bandwidth = 0;
	parameters.switchover_timeout_ms = 50;
	assert_refused(migration_set_parameters(pair.source.migration, &parameters, &err), err,
		       -EINVAL, "x-switchover-timeout is 100 to 600000");
	migration_get_parameters(pair.source.migration, &parameters);
	assert_int_equal(parameters.switchover_timeout_ms, 5000);
	pair_destroy(&pair);
}

/* The other side takes the connection and never says a word, in either role. */
static void test_silent_peer(void **state)
{
	struct pair pair;
	uint64_t start = clock_us();

	pair_create(&pair, &small);
	pair.source.migration->timeouts.answer = 100000;
	pair_outgoing(&pair, false);
	pair_assert_stayed(&pair, MIGRATION_FAILED, "did not answer in time");
	assert_true(clock_us() - start < 3000000);
	pair_destroy(&pair);

	pair_create(&pair, &small);
	pair.destination.migration->timeouts.answer = 100000;
	pair_incoming(&pair);
	assert_destination_failed(&pair, "did not answer in time");
	pair_destroy(&pair);
}

/* Building a machine may take longer than an answer. */
static void test_slow_build(void **state)
{
	struct pair pair;

	pair_create(&pair, &small);
	pair.source.migration->timeouts.answer = 100000;
	pair.destination.delay_us[FAKE_BUILD] = 400000;
	pair_start(&pair);
	pair_assert_moved(&pair);
	pair_destroy(&pair);

	pair_create(&pair, &small);
	pair.source.migration->timeouts.stall = 100000;
	pair.destination.delay_us[FAKE_BUILD] = 400000;
	pair_start(&pair);
	pair_assert_stayed(&pair, MIGRATION_FAILED, "did not answer in time");
	pair_destroy(&pair);
}

static void test_connection_refused(void **state)
{
	struct migration_request request = {.uri = "unix:/nonexistent/godwit-test", .fd = -1};
	struct error *err = NULL;
	struct pair pair;

	pair_create(&pair, &small);
	assert_ok(migration_start(pair.source.migration, &request, &err), err);
	pair_assert_stayed(&pair, MIGRATION_FAILED,
			   "cannot connect to unix:/nonexistent/godwit-test: No such file");
	request.uri = "tcp:127.0.0.1:1";
	assert_ok(migration_start(pair.source.migration, &request, &err), err);
	pair_assert_stayed(&pair, MIGRATION_FAILED, "Connection refused");
	pair_destroy(&pair);
}

/* A move whose two ends are given by URIs; %s in `out` is where the destination listens. */
static void move_over(const char *in, const char *out)
{
	struct migration_request request = {.uri = in, .fd = -1};
	struct migration_info info;
	struct error *err = NULL;
	struct pair pair;
	char uri[512];

	pair_create(&pair, &small);
	fake_fill(&pair.source, 0, 500, 3);
	assert_ok(migration_incoming(pair.destination.migration, &request, &err), err);
	migration_query(pair.destination.migration, &info);
	/* "tcp:127.0.0.1:PORT": the text after the scheme, or the port alone. */
	if (strstr(out, "/dev/tcp"))
		snprintf(uri, sizeof(uri), out, strrchr(info.socket_address, ':') + 1);
	else
		snprintf(uri, sizeof(uri), out, info.socket_address);
	request = (struct migration_request){.uri = uri, .fd = -1, .allow_exec = true};
	assert_ok(migration_start(pair.source.migration, &request, &err), err);
	pair_assert_moved(&pair);
	pair_destroy(&pair);
}

static void test_transports(void **state)
{
	char path[64];

	snprintf(path, sizeof(path), "unix:/tmp/godwit-test-move-%d", (int)getpid());
	move_over(path, "%s");
	assert_int_equal(access(path + 5, F_OK), -1);
	move_over("tcp:127.0.0.1:0", "%s");
	move_over("tcp:127.0.0.1:0",
		  "exec:exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/%s; cat <&3 & exec cat >&3'");
}

static void test_exec_that_fails(void **state)
{
	struct migration_request request = {.uri = "exec:exit 3", .fd = -1, .allow_exec = true};
	struct error *err = NULL;
	struct pair pair;

	pair_create(&pair, &small);
	assert_ok(migration_start(pair.source.migration, &request, &err), err);
	pair_assert_stayed(&pair, MIGRATION_FAILED, "closed the connection");
	request.uri = "exec:sleep 100";
	pair.source.migration->timeouts.answer = 100000;
	assert_ok(migration_start(pair.source.migration, &request, &err), err);
	pair_assert_stayed(&pair, MIGRATION_FAILED, "did not answer in time");
	pair_destroy(&pair);
}

/* Strangers who connect, say nothing or nonsense, and leave do not spoil the real move; nor does a
 * pre-check, however often. */
static void test_strangers_first(void **state)
{
	static const char *const words[] = {"", "GET / HTTP/1.1\r\n\r\nxxxxxxxxxxxxxxxxxxx",
					    "GDWT\x01\x00\x00\x00\x00\x00\x00\x80"};
	struct migration_request request = {.fd = -1};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct migration_info info;
	struct error *err = NULL;
	struct pair pair;
	char uri[64];

	pair_create(&pair, &small);
	pair.destination.migration->timeouts.answer = 100000;
	snprintf(uri, sizeof(uri), "unix:/tmp/godwit-test-strangers-%d", (int)getpid());
	request.uri = uri;
	strcpy(address.sun_path, uri + 5);
	assert_ok(migration_incoming(pair.destination.migration, &request, &err), err);
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
		assert_true(send(fd, words[i], strlen(words[i]), MSG_NOSIGNAL) >= 0);
		usleep(i == 0 ? 150000 : 1000);
		close(fd);
	}
	request.check_only = true;
	for (int i = 0; i < 3; i++) {
		assert_ok(migration_start(pair.source.migration, &request, &err), err);
		fake_wait(&pair.source, 20, &info);
		assert_string_equal(info.error, "");
		assert_int_equal(info.status, MIGRATION_COMPLETED);
	}
	request.check_only = false;
	atomic_store(&pair.destination.counts[FAKE_BUILD], 0);
	assert_ok(migration_start(pair.source.migration, &request, &err), err);
	pair_assert_moved(&pair);
	pair_destroy(&pair);
}

/* The machine is destroyed in the middle of a move: bounded, and nothing is left running. */
static void test_quit_in_the_middle(void **state)
{
	struct fake_config config = {.size = 16 * MIB,
				     .backing = RAM_BACKING_PRIVATE,
				     .log = FAKE_LOG_INITIALLY_SET,
				     .hot_pages = 500};

	for (unsigned int us = 0; us < 12000; us += 1000) {
		struct pair pair;

		pair_create(&pair, &config);
		fake_fill(&pair.source, 0, 3000, us);
		pair_start(&pair);
		usleep(us + 1);
		pair_destroy(&pair);
	}
}

/* A guest that writes faster than the limit lets it: the expected pause stays above the limit, the
 * move is said not to converge, and ends when the limit is raised. */
static void test_not_converging(void **state)
{
	struct fake_config config = {.size = 16 * MIB,
				     .backing = RAM_BACKING_PRIVATE,
				     .log = FAKE_LOG_HARVEST_CLEARS,
				     .hot_pages = 4000};
	struct migration_parameters parameters;
	struct migration_info out;
	struct error *err = NULL;
	struct pair pair;
	uint64_t deadline = clock_us() + 20000000;

	pair_create(&pair, &config);
	fake_fill(&pair.source, 0, 4000, 1);
	migration_get_parameters(pair.source.migration, &parameters);
	parameters.downtime_limit_ms = 0;
	assert_ok(migration_set_parameters(pair.source.migration, &parameters, &err), err);
	pair_start(&pair);
	do {
		usleep(5000);
		migration_query(pair.source.migration, &out);
		assert_int_not_equal(out.status, MIGRATION_COMPLETED);
		assert_true(clock_us() < deadline);
	} while (out.converging);
	assert_true(out.expected_downtime_us > 0);
	assert_true(out.dirty_sync_count >= 4);
	assert_true(out.dirty_pages_rate > 0);
	assert_true(fake_is_running(&pair.source));
	parameters.downtime_limit_ms = 2000;
	assert_ok(migration_set_parameters(pair.source.migration, &parameters, &err), err);
	pair_assert_moved(&pair);
	pair_destroy(&pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_paused_stays_paused),
		cmocka_unit_test(test_paused_and_failed_stays_paused),
		cmocka_unit_test(test_device_writes),
		cmocka_unit_test(test_continue_elsewhere_is_refused),
		cmocka_unit_test(test_twice_is_busy),
		cmocka_unit_test(test_cancel_at_any_moment),
		cmocka_unit_test(test_cancel_in_every_phase),
		cmocka_unit_test(test_cancel_incoming),
		cmocka_unit_test(test_failing_operations),
		cmocka_unit_test(test_refused_by_name),
		cmocka_unit_test(test_again_after_failure),
		cmocka_unit_test(test_check_only),
		cmocka_unit_test(test_max_bandwidth),
		cmocka_unit_test(test_low_bandwidth_is_no_stall),
		cmocka_unit_test(test_cancel_within_a_message),
		cmocka_unit_test(test_parameters_are_checked),
		cmocka_unit_test(test_silent_peer),
		cmocka_unit_test(test_slow_build),
		cmocka_unit_test(test_connection_refused),
		cmocka_unit_test(test_transports),
		cmocka_unit_test(test_exec_that_fails),
		cmocka_unit_test(test_strangers_first),
		cmocka_unit_test(test_quit_in_the_middle),
		cmocka_unit_test(test_not_converging),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
