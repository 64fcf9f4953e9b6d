/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "migration/engine.h"
#include "migration/owner.h"
#include "migration_pair.h"

static char path[64];

static int setup(void **state)
{
	log_set_level(LOG_LEVEL_ERROR - 1);
	snprintf(path, sizeof(path), "/tmp/godwit-test-record-%d", (int)getpid());
	unlink(path);
	return 0;
}

static int teardown(void **state)
{
	unlink(path);
	return 0;
}

static void test_create_and_busy(void **state)
{
	struct owner_record one, two;
	struct error *err = NULL;

	assert_ok(owner_create(&one, path, false, &err), err);
	assert_true(one.locked);
	assert_int_equal(one.epoch, 1);
	assert_refused(owner_create(&two, path, false, &err), err, -EBUSY,
		       "another process runs this guest");
	assert_int_equal(two.fd, -1);
	owner_close(&one);
	assert_int_equal(access(path, F_OK), -1);
	owner_close(&one); /* harmless */
}

/* The lock goes with the process, the epoch stays: the next owner fences whoever knew the last. */
static void test_taken_over_after_kill(void **state)
{
	struct owner_record record;
	struct error *err = NULL;
	int ready[2];
	char byte;
	pid_t child;

	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		if (owner_create(&record, path, false, NULL) < 0)
			_exit(1);
		assert_int_equal(write(ready[1], "x", 1), 1);
		pause();
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_refused(owner_create(&record, path, false, &err), err, -EBUSY, path);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	assert_ok(owner_create(&record, path, false, &err), err);
	assert_int_equal(record.epoch, 2);
	owner_close(&record);
	close(ready[0]);
	close(ready[1]);
}

static void test_hand_over(void **state)
{
	struct owner_record a, b;
	struct error *err = NULL;
	uint64_t found = 0;

	assert_ok(owner_create(&a, path, true, &err), err);
	assert_ok(owner_open(&b, path, true, a.self, a.epoch, &err), err);
	assert_false(b.locked);
	assert_int_equal(owner_lock(&b, &found), -EAGAIN);
	owner_unlock(&a);
	assert_false(owner_taken_by_other(&a, 1));
	assert_int_equal(owner_lock(&b, &found), 0);
	assert_int_equal(found, 1);
	assert_int_equal(owner_lock(&a, &found), -EAGAIN);
	assert_false(owner_taken_by_other(&a, 1)); /* locked, not marked */
	assert_int_equal(owner_advance(&b), 0);
	assert_int_equal(b.epoch, 2);
	assert_true(owner_taken_by_other(&a, 1));
	assert_false(owner_taken_by_other(&b, 1)); /* it is its own mark */
	owner_close(&a);                           /* not locked: the file stays */
	assert_int_equal(access(path, F_OK), 0);
	owner_close(&b);
	assert_int_equal(access(path, F_OK), -1);
}

static void test_stale(void **state)
{
	struct owner_record a, b;
	struct error *err = NULL;
	uint8_t other[16] = {1};

	assert_ok(owner_create(&a, path, false, &err), err);
	assert_refused(owner_open(&b, path, false, a.self, a.epoch + 1, &err), err, -EBUSY,
		       "another process than the source runs this guest already");
	assert_refused(owner_open(&b, path, false, other, a.epoch, &err), err, -EBUSY, path);
	assert_int_equal(owner_advance(&a), 0);
	assert_refused(owner_open(&b, path, false, a.self, 1, &err), err, -EBUSY, path);
	/* What nobody holds was left behind, and says nothing. */
	owner_unlock(&a);
	assert_refused(owner_open(&b, path, false, other, a.epoch, &err), err, -ESTALE,
		       "not the record the source holds");
	assert_refused(owner_open(&b, path, false, a.self, 1, &err), err, -ESTALE, path);
	unlink(path);
	assert_refused(owner_open(&b, "/tmp/godwit-no-such-record", false, a.self, 1, &err), err,
		       -ENOENT, "cannot open the owner record");
	owner_close(&a);
}

/* Each byte of the file in turn, then each length: never taken for a record. */
static void test_damaged(void **state)
{
	struct owner_record a, b;
	struct error *err = NULL;
	uint8_t raw[64];
	ssize_t size;
	uint64_t found;

	assert_ok(owner_create(&a, path, false, &err), err);
	size = pread(a.fd, raw, sizeof(raw), 0);
	assert_int_equal(size, 48);
	for (ssize_t i = 0; i < size; i++) {
		uint8_t wrong = raw[i] ^ 0x10;

		assert_int_equal(pwrite(a.fd, &wrong, 1, i), 1);
		assert_refused(owner_open(&b, path, false, a.self, a.epoch, &err), err, -ESTALE,
			       path);
		assert_false(owner_taken_by_other(&a, 0));
		assert_int_equal(pwrite(a.fd, &raw[i], 1, i), 1);
	}
	assert_ok(owner_open(&b, path, false, a.self, a.epoch, &err), err);
	assert_int_equal(ftruncate(a.fd, 47), 0);
	owner_unlock(&a);
	assert_int_equal(owner_lock(&b, &found), -EBADMSG);
	assert_false(b.locked);
	owner_close(&b);
	owner_close(&a);
	/* A damaged file that nobody holds is started anew; one that is something else stays. */
	assert_ok(owner_create(&a, path, false, &err), err);
	assert_int_equal(a.epoch, 1);
	assert_int_equal(pwrite(a.fd, "a letter", 8, 0), 8);
	a.locked = false; /* so that the file stays */
	owner_close(&a);
	assert_refused(owner_create(&a, path, false, &err), err, -EEXIST,
		       "something else than an owner record");
	assert_int_equal(access(path, F_OK), 0);
	unlink(path);
}

static void test_no_regular_file(void **state)
{
	struct owner_record record;
	struct error *err = NULL;
	uint8_t self[16] = {0};

	assert_refused(owner_open(&record, "/dev/null", false, self, 1, &err), err, -EINVAL,
		       "no regular file");
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_refused(owner_open(&record, path, false, self, 1, &err), err, -EINVAL,
		       "no regular file");
	unlink(path);
	assert_int_equal(symlink("/etc/hostname", path), 0);
	assert_refused(owner_create(&record, path, false, &err), err, -EINVAL, "no regular file");
	unlink(path);
}

static const struct fake_config small = {
	.size = UINT64_C(4) << 20, .backing = RAM_BACKING_PRIVATE, .log = FAKE_LOG_MANUAL};

static void with_record(struct pair *pair)
{
	struct error *err = NULL;

	pair_create(pair, &small);
	assert_ok(owner_create(&pair->source.owner, path, false, &err), err);
	pair->source.migration->parameters.switchover_timeout_ms = 300;
}

static void test_move_with_record(void **state)
{
	struct pair pair;

	with_record(&pair);
	pair_start(&pair);
	pair_assert_moved(&pair);
	assert_int_equal(pair.source.owner.fd, -1);
	assert_true(pair.destination.owner.locked);
	assert_int_equal(pair.destination.owner.epoch, 2);
	pair_destroy(&pair);
	assert_int_equal(access(path, F_OK), -1);
}

/* The destination cannot have the disks: it says so, and the source takes all back. */
static void test_disks_refused(void **state)
{
	struct pair pair;

	with_record(&pair);
	pair.destination.fail[FAKE_LOCKS_ACQUIRE] = 1;
	pair_start(&pair);
	pair_assert_stayed(&pair, MIGRATION_FAILED,
			   "locks_acquire was told to fail; the guest runs on here");
	assert_true(pair.source.owner.locked);
	assert_int_equal(pair.source.owner.epoch, 2);
	assert_int_equal(fake_count(&pair.source, FAKE_LOCKS_ACQUIRE), 1);
	pair_destroy(&pair);
}

/* Nor can the source have them back: the guest is paused, on nobody's account, and that is said. */
static void test_disks_refused_on_both_sides(void **state)
{
	struct migration_info out;
	struct pair pair;

	with_record(&pair);
	pair.destination.fail[FAKE_LOCKS_ACQUIRE] = 1;
	pair.source.fail[FAKE_LOCKS_ACQUIRE] = 1;
	pair_start(&pair);
	fake_wait(&pair.source, 20, &out);
	assert_non_null(strstr(out.error, "it stays paused"));
	assert_false(fake_is_running(&pair.source));
	assert_true(pair.source.owner.locked);
	assert_int_equal(fake_count(&pair.destination, FAKE_RUN), 0);
	pair_destroy(&pair);
}

/* After a move that failed before COMMIT the epoch has moved on: a stale yes is worth nothing. */
static void test_failed_move_fences(void **state)
{
	struct pair pair;

	with_record(&pair);
	pair.destination.fail[FAKE_LOAD] = 2;
	pair_start(&pair);
	pair_assert_stayed(&pair, MIGRATION_FAILED, "load was told to fail");
	assert_true(pair.source.owner.locked);
	assert_int_equal(pair.source.owner.epoch, 2);
	pair_destroy(&pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create_and_busy),
		cmocka_unit_test(test_taken_over_after_kill),
		cmocka_unit_test(test_hand_over),
		cmocka_unit_test(test_stale),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_no_regular_file),
		cmocka_unit_test(test_move_with_record),
		cmocka_unit_test(test_disks_refused),
		cmocka_unit_test(test_disks_refused_on_both_sides),
		cmocka_unit_test(test_failed_move_fences),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
