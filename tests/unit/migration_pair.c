/* SPDX-License-Identifier: Apache-2.0 */
#include "migration_pair.h"

#include <sys/socket.h>
#include <unistd.h>
#include "unit.h"

void pair_create(struct pair *pair, const struct fake_config *config)
{
	memset(pair, 0, sizeof(*pair));
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair->fds), 0);
	fake_create(&pair->source, config, false);
	fake_create(&pair->destination, config, true);
	pair->source.board = pair->destination.board = &pair->board;
	pair->source.keep_copy = pair->destination.keep_copy = true;
	fake_create_engine(&pair->source);
	fake_create_engine(&pair->destination);
	fake_set_running(&pair->source, true);
}

void pair_destroy(struct pair *pair)
{
	for (int i = 0; i < 2; i++)
		if (pair->fds[i] >= 0)
			close(pair->fds[i]);
	fake_destroy(&pair->source);
	fake_destroy(&pair->destination);
	assert_int_equal(pair->board.violations, 0);
}

void pair_incoming(struct pair *pair)
{
	struct migration_request request = {.uri = "fd:in", .fd = pair->fds[1]};
	struct error *err = NULL;

	pair->fds[1] = -1;
	assert_ok(migration_incoming(pair->destination.migration, &request, &err), err);
}

void pair_outgoing(struct pair *pair, bool check_only)
{
	struct migration_request request = {
		.uri = "fd:out", .fd = pair->fds[0], .check_only = check_only};
	struct error *err = NULL;

	pair->fds[0] = -1;
	assert_ok(migration_start(pair->source.migration, &request, &err), err);
}

void pair_start(struct pair *pair)
{
	pair_incoming(pair);
	pair_outgoing(pair, false);
}

void pair_assert_memory(struct pair *pair)
{
	const uint8_t *sent = pair->source.copy, *arrived = pair->destination.copy;
	uint64_t pages = pair->source.ram->size / RAM_PAGE_SIZE;

	assert_non_null(sent);
	assert_non_null(arrived);
	for (uint64_t page = 0; page < pages; page++)
		if (memcmp(sent + page * RAM_PAGE_SIZE, arrived + page * RAM_PAGE_SIZE,
			   RAM_PAGE_SIZE) != 0)
			fail_msg("page %llu differs", (unsigned long long)page);
}

static void assert_state(struct pair *pair)
{
	struct fake_guest *source = &pair->source, *destination = &pair->destination;

	for (unsigned int i = 0; i < source->config.vcpus; i++) {
		assert_memory_equal(&source->vcpus[i], &destination->vcpus[i],
				    sizeof(struct fake_vcpu));
		assert_int_equal(destination->vcpus[i].mode, 2);
		assert_int_equal(destination->vcpus[i].pc, UINT64_C(0xffffffff81000000) + i);
		assert_int_equal(destination->vcpus[i].early_only,
				 UINT64_C(0x1122334455667788) + i);
	}
	assert_int_equal(source->clock.ticks, destination->clock.ticks);
	assert_int_not_equal(destination->clock.ticks, 0);
}

void pair_assert_moved(struct pair *pair)
{
	struct fake_guest *source = &pair->source, *destination = &pair->destination;
	struct migration_info out, in;

	fake_wait(source, 20, &out);
	fake_wait(destination, 20, &in);
	if (out.status != MIGRATION_COMPLETED || in.status != MIGRATION_COMPLETED)
		fail_msg("source %s (%s), destination %s (%s)", migration_status_name(out.status),
			 out.error, migration_status_name(in.status), in.error);
	assert_string_equal(out.error, "");
	assert_int_equal(fake_count(source, FAKE_STOP), 1);
	assert_int_equal(fake_count(source, FAKE_MOVED), 1);
	assert_int_equal(fake_count(source, FAKE_RESUME), 0);
	assert_int_equal(fake_count(source, FAKE_IN_DOUBT), 0);
	assert_int_equal(fake_count(source, FAKE_LOCKS_RELEASE), 1);
	assert_int_equal(fake_count(source, FAKE_LOCKS_ACQUIRE), 0);
	assert_int_equal(fake_count(destination, FAKE_BUILD), 1);
	assert_int_equal(fake_count(destination, FAKE_LOAD), 2);
	assert_int_equal(fake_count(destination, FAKE_LOCKS_ACQUIRE), 1);
	assert_int_equal(fake_count(destination, FAKE_RUN), 1);
	assert_int_equal(fake_count(destination, FAKE_ARRIVED), 1);
	assert_false(fake_is_running(source));
	assert_state(pair);
	pair_assert_memory(pair);
}

void pair_assert_stayed(struct pair *pair, enum migration_status status, const char *part)
{
	struct fake_guest *source = &pair->source;
	struct migration_info out;

	fake_wait(source, 20, &out);
	if (out.status != status || !strstr(out.error, part))
		fail_msg("source: %s (%s), not %s (%s)", migration_status_name(out.status),
			 out.error, migration_status_name(status), part);
	assert_int_equal(fake_count(source, FAKE_MOVED), 0);
	assert_int_equal(fake_count(&pair->destination, FAKE_RUN), 0);
	assert_false(atomic_load(&source->logging));
	assert_true(fake_is_running(source));
}
