/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A move in doubt that settles by itself: a late word of the destination, or the owner record. And
 * a record that cannot be written: the guest goes on only when the destination has gone.
 */
#include "unit.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/log.h"
#include "migration/engine.h"
#include "migration_pair.h"

#define LATE_US 700000 /* more than two waits of the hand-over */

static char path[64];

static void start(struct pair *pair, bool record)
{
	struct fake_config config = {.size = UINT64_C(2) << 20,
				     .backing = RAM_BACKING_PRIVATE,
				     .log = FAKE_LOG_MANUAL,
				     .write_at_stop = true};
	struct migration_parameters parameters;
	struct error *err = NULL;

	pair_create(pair, &config);
	if (record)
		assert_ok(owner_create(&pair->source.owner, path, false, &err), err);
	fake_fill(&pair->source, 0, 20, 1);
	migration_get_parameters(pair->source.migration, &parameters);
	parameters.switchover_timeout_ms = 250;
	parameters.downtime_limit_ms = 10000; /* a slow load is no reason not to stop */
	assert_ok(migration_set_parameters(pair->source.migration, &parameters, &err), err);
	pair->destination.migration->timeouts.takeover = 100000;
	pair->source.migration->timeouts.takeover = 100000;
}

/* It was in doubt, with its guest stopped. */
static void assert_doubted(struct pair *pair)
{
	struct migration_info out;

	fake_wait(&pair->source, 20, &out);
	if (!out.in_doubt)
		fail_msg("source: %s (%s)", migration_status_name(out.status), out.error);
	assert_int_equal(out.phase, MIGRATION_PHASE_IN_DOUBT);
	assert_true(fake_count(&pair->source, FAKE_IN_DOUBT) >= 1);
	assert_false(fake_is_running(&pair->source));
}

static void assert_settled(struct pair *pair, enum migration_status status)
{
	struct error *err = NULL;
	struct migration_info out;

	fake_wait_status(&pair->source, status, 20);
	/* The mark in the record comes before the guest runs. */
	fake_wait(&pair->destination, 20, &out);
	migration_query(pair->source.migration, &out);
	assert_false(out.in_doubt);
	assert_int_equal(fake_is_running(&pair->source), status != MIGRATION_COMPLETED);
	assert_int_equal(fake_is_running(&pair->destination), status == MIGRATION_COMPLETED);
	assert_int_equal(fake_count(&pair->source, FAKE_MOVED), status == MIGRATION_COMPLETED);
	assert_refused(migration_resolve(pair->source.migration, true, &err), err, -EINVAL,
		       "no migration is in doubt");
}

/* fake_wait_status() takes a doubt for an end. */
static void wait_settled(struct pair *pair, enum migration_status status)
{
	uint64_t deadline = clock_us() + 10000000;
	struct migration_info out;

	do {
		usleep(2000);
		migration_query(pair->source.migration, &out);
		assert_true(clock_us() < deadline);
	} while (out.in_doubt || out.status == MIGRATION_DEVICE);
	assert_settled(pair, status);
}

/* The guest runs over there, and the word that says so takes its time. */
static void test_late_running(void **state)
{
	struct pair pair;

	start(&pair, false);
	pair.destination.delay_us[FAKE_RUN] = LATE_US;
	pair_start(&pair);
	assert_doubted(&pair);
	wait_settled(&pair, MIGRATION_COMPLETED);
	pair_destroy(&pair);
}

/* Without a record REFUSE is a proof, also when it is late. */
static void test_late_refuse(void **state)
{
	struct pair pair;

	start(&pair, false);
	pair.destination.delay_us[FAKE_LOCKS_ACQUIRE] = LATE_US;
	pair.destination.fail[FAKE_LOCKS_ACQUIRE] = 1;
	pair_start(&pair);
	assert_doubted(&pair);
	wait_settled(&pair, MIGRATION_FAILED);
	pair_destroy(&pair);
}

/* The destination holds the record's lock for long: then it marks it, or lets go of it. */
static void test_late_record(void **state)
{
	for (int fails = 0; fails < 2; fails++) {
		struct pair pair;

		start(&pair, true);
		pair.destination.delay_us[FAKE_LOCKS_ACQUIRE] = LATE_US;
		pair.destination.fail[FAKE_LOCKS_ACQUIRE] = (unsigned int)fails;
		pair_start(&pair);
		assert_doubted(&pair);
		wait_settled(&pair, fails ? MIGRATION_FAILED : MIGRATION_COMPLETED);
		pair_destroy(&pair);
		unlink(path);
	}
}

static void set_writable(bool writable)
{
	struct rlimit limit;

	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = writable ? limit.rlim_max : 0;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The destination says yes too late, and the record cannot be written: the guest goes on when the
 * destination has read ABORT and gone, not before. */
static void test_unwritable_record(void **state)
{
	struct migration_info out, in;
	struct pair pair;

	start(&pair, true);
	pair.destination.delay_us[FAKE_LOAD] = 400000;
	set_writable(false);
	pair_start(&pair);
	fake_wait(&pair.source, 20, &out);
	set_writable(true);
	assert_int_equal(out.status, MIGRATION_FAILED);
	migration_query(pair.destination.migration, &in);
	assert_int_equal(in.status, MIGRATION_FAILED);
	assert_non_null(strstr(in.error, "the source gave up: the source keeps the guest"));
	assert_int_equal(fake_count(&pair.source, FAKE_RESUME), 1);
	assert_int_equal(fake_count(&pair.source, FAKE_IN_DOUBT), 0);
	assert_true(fake_is_running(&pair.source));
	pair_destroy(&pair);
	unlink(path);
}

/* The destination does not even go: the guest stays stopped, until the record can be written. */
static void test_unwritable_record_and_no_word(void **state)
{
	struct pair pair;

	start(&pair, true);
	pair.destination.delay_us[FAKE_LOAD] = 1500000;
	set_writable(false);
	pair_start(&pair);
	assert_doubted(&pair);
	assert_int_equal(fake_count(&pair.source, FAKE_RESUME), 0);
	set_writable(true);
	wait_settled(&pair, MIGRATION_FAILED);
	assert_int_equal(fake_count(&pair.source, FAKE_LOCKS_ACQUIRE), 0);
	pair_destroy(&pair);
	unlink(path);
}

/* A destination that says no claims nothing: no wait. */
static void test_unwritable_record_and_refused(void **state)
{
	struct pair pair;

	start(&pair, true);
	pair.destination.fail[FAKE_LOAD] = 2;
	set_writable(false);
	pair_start(&pair);
	pair_assert_stayed(&pair, MIGRATION_FAILED, "load was told to fail");
	set_writable(true);
	assert_int_equal(fake_count(&pair.source, FAKE_IN_DOUBT), 0);
	pair_destroy(&pair);
	unlink(path);
}

static int setup(void **state)
{
	log_set_level(LOG_LEVEL_ERROR - 1);
	signal(SIGXFSZ, SIG_IGN);
	snprintf(path, sizeof(path), "/tmp/godwit-test-doubt-%d", (int)getpid());
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_late_running),
		cmocka_unit_test(test_late_refuse),
		cmocka_unit_test(test_late_record),
		cmocka_unit_test(test_unwritable_record),
		cmocka_unit_test(test_unwritable_record_and_no_word),
		cmocka_unit_test(test_unwritable_record_and_refused),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
