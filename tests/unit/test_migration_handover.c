/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One owner: source and destination are processes of their own, and at each message of either
 * direction the wire is cut, falls silent, or one of the processes is killed. Afterwards at most
 * one of them runs the guest; it is lost only where its owner was killed; and where nobody runs it,
 * the source holds it paused and says so, and the operator's word brings it back.
 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "fake_guest.h"
#include "migration/engine.h"
#include "wire_proxy.h"

#define MIB UINT64_C(1048576)

enum act { CUT, CUT_HALF, MUTE, KILL_SOURCE, KILL_DESTINATION, DAMAGE };
enum when { BEFORE, AFTER };

static const char *const act_names[] = {"cut",           "cut in the middle",  "silence",
					"source killed", "destination killed", "damage"};

/* What a side tells the test, and the test a side. */
struct side {
	_Atomic(int) status, in_doubt, resolve, quit;
	char error[512];
};

struct shared {
	struct fake_board board;
	struct side sides[2];
};

struct trial {
	unsigned int type; /* the message at which it happens */
	bool last;         /* one that carries the flag LAST */
	enum when when;
	enum act act;
	bool record;
	unsigned int disk_failures; /* of the destination, one after the other */

	struct shared *shared;
	pid_t children[2];
	char path[64];
	bool happened, prepared, voted, committed, ran_when_killed, destination_ran;
};

static void side_main(struct trial *trial, int self, int fd)
{
	struct fake_config config = {.size = 2 * MIB,
				     .backing = RAM_BACKING_PRIVATE,
				     .log = FAKE_LOG_MANUAL,
				     .write_at_stop = true};
	struct migration_request request = {.uri = "fd:x", .fd = fd};
	struct side *side = &trial->shared->sides[self];
	struct migration_parameters parameters;
	struct fake_guest guest;

	/* A test that fails leaves nobody behind. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	log_set_level(LOG_LEVEL_ERROR - 1);
	fake_create(&guest, &config, self == 1);
	guest.board = &trial->shared->board;
	if (self == 1 && trial->disk_failures) {
		guest.fail[FAKE_LOCKS_ACQUIRE] = 1;
		guest.fail_more[FAKE_LOCKS_ACQUIRE] = trial->disk_failures - 1;
	}
	if (self == 0) {
		if (trial->record && owner_create(&guest.owner, trial->path, false, NULL) < 0)
			_exit(3);
		fake_fill(&guest, 0, 40, 7);
		fake_fill(&guest, 50, 1, 0);
		fake_set_running(&guest, true);
	}
	fake_create_engine(&guest);
	guest.migration->timeouts = (struct engine_timeouts){.connect = 500000,
							     .answer = 500000,
							     .keepalive = 50000,
							     .stall = 500000,
							     .takeover = 300000,
							     .farewell = 50000};
	migration_get_parameters(guest.migration, &parameters);
	parameters.switchover_timeout_ms = 250;
	migration_set_parameters(guest.migration, &parameters, NULL);
	if ((self == 0 ? migration_start : migration_incoming)(guest.migration, &request, NULL) < 0)
		_exit(4);
	while (!side->quit) {
		struct migration_info info;

		migration_query(guest.migration, &info);
		memcpy(side->error, info.error, sizeof(side->error));
		side->in_doubt = info.in_doubt;
		side->status = info.status;
		if (side->resolve >= 0) {
			migration_resolve(guest.migration, side->resolve == 1, NULL);
			side->resolve = -1;
		}
		usleep(500);
	}
	/* The record goes with whoever holds it. */
	fake_destroy(&guest);
	_exit(0);
}

static void kill_side(struct trial *trial, int side)
{
	trial->ran_when_killed = trial->shared->board.running[side];
	trial->shared->board.dead[side] = 1;
	kill(trial->children[side], SIGKILL);
	waitpid(trial->children[side], NULL, 0);
	trial->children[side] = 0;
	/* It may have begun to run in the last moment. */
	trial->ran_when_killed |= trial->shared->board.running[side];
	trial->shared->board.running[side] = 0;
}

static enum wire_verdict happen(struct trial *trial)
{
	trial->happened = true;
	switch (trial->act) {
	case CUT_HALF:
		return WIRE_FORWARD_HALF;
	case MUTE:
		return WIRE_MUTE;
	case KILL_SOURCE:
	case KILL_DESTINATION:
		kill_side(trial, trial->act == KILL_DESTINATION);
		return WIRE_END;
	default:
		return WIRE_END;
	}
}

static bool is_the_one(const struct trial *trial, const struct wire_message *message)
{
	return !trial->happened && message->type == trial->type &&
	       (!trial->last || (message->flags & WIRE_FLAG_LAST));
}

static enum wire_verdict on_message(void *opaque, struct wire_message *message)
{
	struct trial *trial = opaque;

	if (message->type == WIRE_VOTE_YES)
		trial->voted = true;
	if (is_the_one(trial, message) && trial->act == DAMAGE) {
		trial->happened = true;
		message->data[WIRE_HEADER_SIZE] ^= 1;
	} else if (is_the_one(trial, message) && trial->when == BEFORE) {
		return happen(trial);
	}
	return WIRE_FORWARD;
}

static bool on_forwarded(void *opaque, const struct wire_message *message)
{
	struct trial *trial = opaque;

	if (message->type == WIRE_PREPARE)
		trial->prepared = true;
	if (message->type == WIRE_COMMIT)
		trial->committed = true;
	if (!is_the_one(trial, message) || trial->when != AFTER)
		return false;
	/* The receiver gets time to act on it, sometimes. */
	usleep(message->sequence % 2 ? 3000 : 0);
	return happen(trial) != WIRE_FORWARD;
}

static bool settled(struct trial *trial, int side)
{
	int status = trial->shared->sides[side].status;

	return !trial->children[side] || trial->shared->sides[side].in_doubt ||
	       status == MIGRATION_COMPLETED || status == MIGRATION_FAILED;
}

static void wait_settled(struct trial *trial)
{
	uint64_t deadline = clock_us() + 20000000;

	while (!settled(trial, 0) || !settled(trial, 1)) {
		if (clock_us() > deadline)
			fail_msg("not settled: source %d, destination %d",
				 trial->shared->sides[0].status, trial->shared->sides[1].status);
		usleep(500);
	}
}

static int running(struct trial *trial, int side)
{
	return trial->shared->board.running[side] && trial->children[side];
}

static const char *describe(const struct trial *trial)
{
	static char text[1200];

	snprintf(text, sizeof(text), "%s %s %s%s, %s record; source: %s; destination: %s",
		 act_names[trial->act], trial->when == BEFORE ? "before" : "after",
		 trial->last ? "the last " : "", wire_type_name(trial->type),
		 trial->record ? "with a" : "no", trial->shared->sides[0].error,
		 trial->shared->sides[1].error);
	return text;
}

/* In doubt: the operator looks who runs the guest, and says so. */
static void resolve(struct trial *trial)
{
	uint64_t deadline = clock_us() + 5000000;
	struct side *source = &trial->shared->sides[0];

	source->resolve = !running(trial, 1);
	while (source->in_doubt) {
		if (clock_us() > deadline)
			fail_msg("the operator's word does not help: %s", describe(trial));
		usleep(500);
	}
}

static void check(struct trial *trial)
{
	struct side *source = &trial->shared->sides[0];
	bool doubted = false;

	wait_settled(trial);
	if (running(trial, 0) + running(trial, 1) > 1 || trial->shared->board.violations)
		fail_msg("two run: %s", describe(trial));
	if (trial->children[0] && source->in_doubt) {
		doubted = true;
		if (trial->record && !(trial->act == KILL_DESTINATION && trial->committed))
			fail_msg("in doubt in spite of the record: %s", describe(trial));
		if (running(trial, 0))
			fail_msg("in doubt, and runs: %s", describe(trial));
	}
	if (trial->act == KILL_DESTINATION && trial->happened && trial->ran_when_killed) {
		/* Its owner was killed, so it is lost; the source must not run an old copy alone.
		 */
		if (running(trial, 0))
			fail_msg("the source runs what had run elsewhere: %s", describe(trial));
		return;
	}
	if (trial->act == KILL_SOURCE && trial->happened) {
		bool expected = trial->record ? trial->voted : trial->committed;

		/* It may have voted without the test having seen it. */
		if (trial->record && trial->prepared && !trial->voted)
			expected = running(trial, 1);
		if (trial->disk_failures)
			expected = trial->record && trial->disk_failures == 1;
		if (trial->record && trial->shared->sides[1].status != MIGRATION_COMPLETED &&
		    trial->disk_failures)
			fail_msg("the guest is lost: %s", describe(trial));
		if (running(trial, 1) != expected)
			fail_msg("destination %s: %s", expected ? "does not run" : "runs",
				 describe(trial));
		return;
	}
	if (doubted)
		resolve(trial);
	usleep(1000);
	if (running(trial, 0) + running(trial, 1) != 1 || trial->shared->board.violations)
		fail_msg("%d and %d run: %s", running(trial, 0), running(trial, 1),
			 describe(trial));
	if (running(trial, 1) && trial->children[0] &&
	    trial->shared->sides[0].status != MIGRATION_COMPLETED)
		fail_msg("moved, but the source says otherwise: %s", describe(trial));
}

static pid_t start_side(struct trial *trial, int self, int pairs[2][2])
{
	pid_t child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		/* An end that is left open here would hide that the other process is gone. */
		close(pairs[0][0]);
		close(pairs[1][0]);
		close(pairs[!self][1]);
		side_main(trial, self, pairs[self][1]);
	}
	return child;
}

static char outcome[1200]; /* of the last trial, in words */

static bool run_trial(struct trial *trial)
{
	int pairs[2][2];
	struct wire_proxy proxy = {
		.mute_ms = 1200, .message = on_message, .forwarded = on_forwarded, .opaque = trial};

	trial->shared = mmap(NULL, sizeof(*trial->shared), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(trial->shared, MAP_FAILED);
	trial->shared->sides[0].resolve = trial->shared->sides[1].resolve = -1;
	snprintf(trial->path, sizeof(trial->path), "/tmp/godwit-test-owner-%d", (int)getpid());
	for (int i = 0; i < 2; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pairs[i]), 0);
		proxy.fds[i] = pairs[i][0];
	}
	for (int i = 0; i < 2; i++)
		trial->children[i] = start_side(trial, i, pairs);
	close(pairs[0][1]);
	close(pairs[1][1]);
	assert_int_equal(wire_proxy_run(&proxy, 20), 0);
	check(trial);
	snprintf(outcome, sizeof(outcome), "%s", describe(trial));
	trial->destination_ran = running(trial, 1);
	for (int i = 0; i < 2; i++) {
		int status = 0;

		if (!trial->children[i])
			continue;
		trial->shared->sides[i].quit = 1;
		waitpid(trial->children[i], &status, 0);
		if (status)
			fail_msg("side %d ended with 0x%x: %s", i, status, describe(trial));
	}
	unlink(trial->path);
	munmap(trial->shared, sizeof(*trial->shared));
	return trial->happened;
}

static const struct {
	unsigned int type;
	bool last;
} messages[] = {
	{WIRE_HELLO, false},      {WIRE_HELLO_OK, false},    {WIRE_MACHINE, false},
	{WIRE_MACHINE_OK, false}, {WIRE_SCHEMA, false},      {WIRE_SCHEMA_OK, false},
	{WIRE_RANGES, false},     {WIRE_STATE_EARLY, false}, {WIRE_RAM, false},
	{WIRE_ZERO, false},       {WIRE_ROUND_END, false},   {WIRE_ROUND_DONE, false},
	{WIRE_READY, false},      {WIRE_INTENT, false},      {WIRE_QUIET, false},
	{WIRE_RAM, true},         {WIRE_STATE_DELTA, false}, {WIRE_PREPARE, false},
	{WIRE_VOTE_YES, false},   {WIRE_COMMIT, false},      {WIRE_RUNNING, false},
};

#define MESSAGES (sizeof(messages) / sizeof(*messages))

/* Where the machine is busy, these short waits may run out before the move has come so far. */
static bool try_trial(struct trial *trial)
{
	const struct trial wanted = *trial;

	for (int i = 0; i < 4; i++) {
		*trial = wanted;
		if (run_trial(trial))
			return true;
	}
	return false;
}

static void at_every_message(enum act act, enum when when, unsigned int from)
{
	for (unsigned int record = 0; record < 2; record++)
		for (unsigned int i = from; i < MESSAGES; i++) {
			struct trial trial = {.type = messages[i].type,
					      .last = messages[i].last,
					      .when = when,
					      .act = act,
					      .record = record};

			if (!try_trial(&trial))
				fail_msg("no %s came: %s", wire_type_name(trial.type), outcome);
		}
}

static void test_cut(void **state)
{
	at_every_message(CUT, BEFORE, 0);
	at_every_message(CUT, AFTER, 0);
}

static void test_cut_in_the_middle(void **state)
{
	at_every_message(CUT_HALF, BEFORE, 0);
}

static void test_source_killed(void **state)
{
	at_every_message(KILL_SOURCE, BEFORE, 0);
	at_every_message(KILL_SOURCE, AFTER, 0);
}

static void test_destination_killed(void **state)
{
	at_every_message(KILL_DESTINATION, BEFORE, 0);
	at_every_message(KILL_DESTINATION, AFTER, 0);
}

/*
 * The destination has the guest but not its disks, and nobody hears its REFUSE: with a record the
 * guest is not lost. It runs there when the disks can be had after all, or stays there, stopped.
 */
static void test_refused_and_not_heard(void **state)
{
	static const enum act acts[] = {KILL_SOURCE, CUT, MUTE, KILL_DESTINATION};

	for (unsigned int failures = 1; failures < 3; failures++)
		for (size_t i = 0; i < (failures == 1 ? sizeof(acts) / sizeof(*acts) : 1); i++)
			for (unsigned int record = 0; record < 2; record++) {
				struct trial trial = {.type = WIRE_REFUSE,
						      .when = BEFORE,
						      .act = acts[i],
						      .record = record,
						      .disk_failures = failures};

				assert_true(try_trial(&trial));
			}
}

/* COMMIT arrives damaged: the record says that the source has let go of the guest. */
static void test_damaged_commit(void **state)
{
	for (unsigned int record = 0; record < 2; record++) {
		struct trial trial = {
			.type = WIRE_COMMIT, .when = BEFORE, .act = DAMAGE, .record = record};

		assert_true(try_trial(&trial));
		if (record)
			assert_true(trial.destination_ran);
	}
}

/* The wire falls silent; waits are bounded. From ROUND-DONE on, since it takes long. */
static void test_silence(void **state)
{
	at_every_message(MUTE, BEFORE, 11);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_cut_in_the_middle),
		cmocka_unit_test(test_source_killed),
		cmocka_unit_test(test_destination_killed),
		cmocka_unit_test(test_refused_and_not_heard),
		cmocka_unit_test(test_damaged_commit),
		cmocka_unit_test(test_silence),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
