/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "machine/runstate.h"

static void test_transitions(void **state)
{
	/* Who has given the guest away never runs it again. */
	for (int to = MACHINE_PRELAUNCH; to <= MACHINE_INTERNAL_ERROR; to++)
		assert_false(runstate_may_follow(MACHINE_POSTMIGRATE, (enum machine_state)to));
	/* A guest that has not arrived leaves only by arriving. */
	for (int to = MACHINE_PRELAUNCH; to <= MACHINE_INTERNAL_ERROR; to++)
		assert_int_equal(runstate_may_follow(MACHINE_INMIGRATE, (enum machine_state)to),
				 to == MACHINE_RUNNING || to == MACHINE_PAUSED);
	/* Only a stop leads to the end of a move. */
	for (int from = MACHINE_PRELAUNCH; from <= MACHINE_INTERNAL_ERROR; from++)
		assert_int_equal(runstate_may_follow((enum machine_state)from, MACHINE_POSTMIGRATE),
				 from == MACHINE_FINISH_MIGRATE || from == MACHINE_PAUSED);
	assert_true(runstate_may_follow(MACHINE_PRELAUNCH, MACHINE_RUNNING));
	assert_true(runstate_may_follow(MACHINE_RUNNING, MACHINE_PAUSED));
	assert_true(runstate_may_follow(MACHINE_PAUSED, MACHINE_RUNNING));
	assert_true(runstate_may_follow(MACHINE_RUNNING, MACHINE_FINISH_MIGRATE));
	assert_true(runstate_may_follow(MACHINE_FINISH_MIGRATE, MACHINE_RUNNING));
	assert_true(runstate_may_follow(MACHINE_FINISH_MIGRATE, MACHINE_PAUSED));
	assert_false(runstate_may_follow(MACHINE_SHUTDOWN, MACHINE_RUNNING));
	assert_true(runstate_may_follow(MACHINE_SHUTDOWN, MACHINE_PRELAUNCH));
	assert_false(runstate_may_follow(MACHINE_INTERNAL_ERROR, MACHINE_RUNNING));
}

static void test_refusals(void **state)
{
	assert_null(runstate_refuse_cont(MACHINE_PAUSED));
	assert_null(runstate_refuse_cont(MACHINE_INMIGRATE));
	assert_non_null(strstr(runstate_refuse_cont(MACHINE_POSTMIGRATE), "moved away"));
	assert_non_null(strstr(runstate_refuse_cont(MACHINE_SHUTDOWN), "system_reset"));
	assert_non_null(strstr(runstate_refuse_cont(MACHINE_INTERNAL_ERROR), "system_reset"));
	assert_non_null(strstr(runstate_refuse_stop(MACHINE_FINISH_MIGRATE), "handed over"));
	assert_null(runstate_refuse_stop(MACHINE_RUNNING));
	assert_null(runstate_refuse_reset(MACHINE_SHUTDOWN));
	assert_non_null(strstr(runstate_refuse_reset(MACHINE_INMIGRATE), "not arrived"));
	assert_non_null(strstr(runstate_refuse_reset(MACHINE_POSTMIGRATE), "moved away"));
}

static void test_names(void **state)
{
	assert_string_equal(machine_state_name(MACHINE_FINISH_MIGRATE), "finish-migrate");
	assert_string_equal(machine_state_name(MACHINE_INTERNAL_ERROR), "internal-error");
	assert_string_equal(machine_state_name(MACHINE_INMIGRATE), "inmigrate");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transitions),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
