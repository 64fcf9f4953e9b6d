/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's parts without an engine: dictionary of state, convergence, handshake bodies, URIs.
 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "migration/convergence.h"
#include "migration/handshake.h"
#include "migration/state_map.h"
#include "migration_pair.h"

/* State */

struct device {
	uint32_t a, b, c;
};

#define FIELD(member_, name_) STATE_FIELD(struct device, member_, STATE_U32, name_)

static const struct state_field ab[] = {FIELD(a, "a"), FIELD(b, "b")};
static const struct state_field abc[] = {FIELD(a, "a"), FIELD(b, "b"), FIELD(c, "c")};
static const struct state_field aba[] = {FIELD(a, "a"), FIELD(b, "b"), FIELD(c, "a")};
static const struct state_field ba[] = {FIELD(b, "b"), FIELD(a, "a")};
static const struct state_field ab_new_c[] = {
	FIELD(a, "a"),
	FIELD(b, "b"),
	{.name = "c", .type = STATE_U32, .offset = 8, .size = 4, .since = 2}};
static const struct state_field ab_optional_c[] = {FIELD(a, "a"),
						   FIELD(b, "b"),
						   {.name = "c",
						    .type = STATE_U32,
						    .offset = 8,
						    .size = 4,
						    .since = 1,
						    .flags = STATE_OPTIONAL}};
static const struct state_field wide_b[] = {
	FIELD(a, "a"), {.name = "b", .type = STATE_U64, .offset = 4, .size = 8, .since = 1}};
static const struct state_field bytes_b[] = {
	FIELD(a, "a"), {.name = "b", .type = STATE_BYTES, .offset = 4, .size = 4, .since = 1}};
static const struct state_field bad_name[] = {FIELD(a, "a"), FIELD(b, "b\n\x1b[2J")};

#define OBJECT(fields_, data_)                                                                     \
	{                                                                                          \
		.name = "device", .fields = (fields_),                                             \
		.count = sizeof(fields_) / sizeof(*(fields_)), .data = (data_)                     \
	}

/* The source's dictionary against the destination's table; then early state and a delta. */
static int move_state(const struct state_object *source, const struct state_object *destination,
		      unsigned int version, struct error **err)
{
	struct state_map out, in;
	struct buffer schema = {0}, values = {0};
	struct reader reader;
	int status;

	((struct device *)source->data)->b = 2;
	assert_int_equal(state_map_build(&out, source, 1, NULL), 0);
	state_map_encode(&out, &schema);
	state_encode_early(&out, &values);
	assert_int_equal(schema.error, 0);
	reader_init(&reader, schema.data, schema.size);
	status = state_map_decode(&in, &reader, destination, 1, version, err);
	if (status == 0) {
		reader_init(&reader, values.data, values.size);
		assert_ok(state_decode(&in, &reader, true, err), *err);
		/* Only what changed is in a delta. */
		((struct device *)source->data)->b = 99;
		buffer_clear(&values);
		state_encode_delta(&out, &values);
		assert_int_equal(values.size, 8);
		reader_init(&reader, values.data, values.size);
		assert_ok(state_decode(&in, &reader, false, err), *err);
		state_map_free(&in);
	}
	buffer_free(&schema);
	buffer_free(&values);
	state_map_free(&out);
	return status;
}

static void test_state(void **state)
{
	struct device from = {1, 2, 3}, to = {7, 7, 7};
	struct state_object s_ab = OBJECT(ab, &from), d_ab = OBJECT(ab, &to);
	struct state_object s_abc = OBJECT(abc, &from), d_abc = OBJECT(abc, &to);
	struct state_object s_optional = OBJECT(ab_optional_c, &from);
	struct state_object d_optional = OBJECT(ab_optional_c, &to);
	struct state_object d_new = OBJECT(ab_new_c, &to), d_ba = OBJECT(ba, &to);
	struct state_object d_wide = OBJECT(wide_b, &to), d_bytes = OBJECT(bytes_b, &to);
	struct state_object s_aba = OBJECT(aba, &from), s_bad = OBJECT(bad_name, &from);
	struct state_object d_other = {.name = "other", .fields = ab, .count = 2, .data = &to};
	struct error *err = NULL;

	assert_ok(move_state(&s_ab, &d_ab, 1, &err), err);
	assert_int_equal(to.a, 1);
	assert_int_equal(to.b, 99); /* the delta overrides */
	assert_int_equal(to.c, 7);
	/* By name, not by place. */
	to = (struct device){0};
	assert_ok(move_state(&s_ab, &d_ba, 1, &err), err);
	assert_int_equal(to.a, 1);
	assert_int_equal(to.b, 99);
	assert_refused(move_state(&s_abc, &d_ab, 1, &err), err, -EINVAL,
		       "the source sends 'device 0: c', which this machine does not have");
	to.c = 7;
	assert_ok(move_state(&s_optional, &d_ab, 1, &err), err);
	assert_int_equal(to.c, 7);
	assert_refused(move_state(&s_ab, &d_abc, 1, &err), err, -EINVAL,
		       "the source does not send 'device 0: c', which this machine needs");
	assert_ok(move_state(&s_ab, &d_optional, 1, &err), err);
	assert_ok(move_state(&s_ab, &d_new, 1, &err), err); /* an older source */
	assert_int_equal(to.c, 7);
	assert_refused(move_state(&s_ab, &d_new, 2, &err), err, -EINVAL, "'device 0: c'");
	assert_refused(move_state(&s_aba, &d_ab, 1, &err), err, -EPROTO,
		       "the source names 'device 0: a' twice");
	assert_refused(move_state(&s_ab, &d_wide, 1, &err), err, -EINVAL,
		       "'device 0: b' has 4 bytes on the source and 8 here");
	assert_refused(move_state(&s_ab, &d_bytes, 1, &err), err, -EINVAL,
		       "'device 0: b' is of type 3 on the source and of type 5 here");
	assert_refused(move_state(&s_ab, &d_other, 1, &err), err, -EINVAL, "'device 0: a'");
	assert_refused(move_state(&s_bad, &d_ab, 1, &err), err, -EPROTO,
		       "the source's state dictionary is damaged");
}

static void test_state_object_twice(void **state)
{
	struct device from = {1, 2, 3}, to = {0};
	struct state_object twice[2] = {OBJECT(ab, &from), OBJECT(ab, &from)};
	struct state_object once = OBJECT(ab, &to);
	struct buffer schema = {0};
	struct error *err = NULL;
	struct reader reader;
	struct state_map out, in;

	assert_ok(state_map_build(&out, twice, 2, &err), err);
	state_map_encode(&out, &schema);
	reader_init(&reader, schema.data, schema.size);
	assert_refused(state_map_decode(&in, &reader, &once, 1, 1, &err), err, -EPROTO,
		       "the source names 'device 0' twice");
	/* Cut anywhere it is refused, and nothing is left allocated. */
	for (size_t size = 0; size < schema.size; size++) {
		reader_init(&reader, schema.data, size);
		assert_int_equal(state_map_decode(&in, &reader, &once, 1, 1, NULL), -EPROTO);
		assert_null(in.bindings);
	}
	buffer_free(&schema);
	state_map_free(&out);
}

/* Values: each missing, repeated, unknown, or cut. */
static void test_state_values(void **state)
{
	struct device from = {1, 2, 3}, to = {0};
	struct state_object source = OBJECT(abc, &from), destination = OBJECT(abc, &to);
	struct buffer schema = {0}, values = {0};
	struct error *err = NULL;
	struct reader reader;
	struct state_map out, in;
	uint8_t twice[16];

	assert_ok(state_map_build(&out, &source, 1, &err), err);
	state_map_encode(&out, &schema);
	state_encode_early(&out, &values);
	assert_int_equal(values.size, 24);
	assert_int_equal(out.values_size, 24);
	reader_init(&reader, schema.data, schema.size);
	assert_ok(state_map_decode(&in, &reader, &destination, 1, 1, &err), err);
	for (size_t size = 0; size < values.size; size++) {
		reader_init(&reader, values.data, size);
		assert_int_equal(state_decode(&in, &reader, true, NULL), -EPROTO);
	}
	reader_init(&reader, values.data + 8, 16);
	assert_refused(state_decode(&in, &reader, true, &err), err, -EPROTO,
		       "value 1 came where 0");
	memcpy(twice, values.data, 8);
	memcpy(twice + 8, values.data, 8);
	reader_init(&reader, twice, sizeof(twice));
	assert_refused(state_decode(&in, &reader, false, &err), err, -EPROTO,
		       "value 0 came where 1");
	twice[0] = 3;
	reader_init(&reader, twice, 8);
	assert_refused(state_decode(&in, &reader, false, &err), err, -EPROTO, "no value has id 3");
	/* Nothing in a delta is fine: nothing changed. */
	reader_init(&reader, twice, 0);
	assert_ok(state_decode(&in, &reader, false, &err), err);
	buffer_free(&schema);
	buffer_free(&values);
	state_map_free(&in);
	state_map_free(&out);
}

static void test_many_vcpus(void **state)
{
	struct fake_config config = {.size = UINT64_C(2) << 20,
				     .backing = RAM_BACKING_PRIVATE,
				     .log = FAKE_LOG_MANUAL,
				     .vcpus = 64};
	struct pair pair;

	pair_create(&pair, &config);
	pair_start(&pair);
	pair_assert_moved(&pair); /* compares all 64, each with values of its own */
	assert_int_equal(pair.destination.vcpus[63].selector, 0x1000 + 63);
	assert_int_equal(pair.destination.vcpus[63].registers[199], 63);
	pair_destroy(&pair);
}

/* Convergence */

static void test_convergence(void **state)
{
	static const struct {
		uint64_t rate, fixed_us, limit_us;
		uint64_t left[8];        /* bytes after each round; ends with ~0 */
		unsigned int stop_after; /* rounds until the verdict is to stop; 0: never */
		bool converging;
	} table[] = {
		/* Nothing left: at once, whatever the limit, if the fixed cost is under it. */
		{1000000000, 100, 1000, {0, UINT64_MAX}, 1, true},
		{1000000000, 2000, 1000, {0, 0, 0, 0, UINT64_MAX}, 0, false},
		/* Below the limit, and each round shrinks it by more than a fifth: go on, to the
		   end. */
		{1000000000,
		 0,
		 300000,
		 {64000000, 32000000, 16000000, 8000000, 8000000, UINT64_MAX},
		 5,
		 true},
		/* Below the limit, and a round gains less than a fifth: stop. */
		{1000000000, 0, 300000, {64000000, 60000000, UINT64_MAX}, 2, true},
		/* Above the limit and not shrinking: never, and it is said. */
		{100000000,
		 0,
		 300000,
		 {64000000, 64000000, 64000000, 64000000, 64000000, UINT64_MAX},
		 0,
		 false},
		/* Above the limit, still shrinking. */
		{100000000, 0, 1000, {64000000, 40000000, 20000000, 10000000, UINT64_MAX}, 0, true},
		/* Above, then below. */
		{100000000, 0, 100000, {64000000, 9000000, 9000000, UINT64_MAX}, 3, true},
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		struct convergence c = {.rate = table[i].rate, .fixed_us = table[i].fixed_us};
		unsigned int stopped = 0, round;

		for (round = 0; table[i].left[round] != UINT64_MAX && !stopped; round++) {
			uint64_t bytes = table[i].left[round];

			if (convergence_decide(&c, bytes, table[i].limit_us) == CONVERGENCE_STOP)
				stopped = round + 1;
			assert_int_equal(c.expected_us,
					 table[i].fixed_us + bytes * 1000000 / table[i].rate);
		}
		if (stopped != table[i].stop_after ||
		    convergence_converging(&c, table[i].limit_us) != table[i].converging)
			fail_msg("row %zu: stopped after %u, converging %d", i, stopped,
				 convergence_converging(&c, table[i].limit_us));
	}
}

static void test_convergence_measure(void **state)
{
	struct convergence c = {0};

	convergence_measure(&c, 1 << 20, 1000); /* too little to say anything */
	assert_int_equal(c.rate, 0);
	convergence_measure(&c, 100000000, 100000);
	assert_int_equal(c.rate, 1000000000);
	convergence_measure(&c, 100000000, 0);
	assert_int_equal(c.rate, 1000000000);
	/* However small each gain is, the number of rounds is bounded. */
	c = (struct convergence){.rate = 1000000000};
	for (uint64_t round = 0, bytes = UINT64_C(1) << 50;; round++, bytes = bytes / 10 * 7) {
		assert_true(round <= 60);
		if (convergence_decide(&c, bytes + 1000, UINT64_MAX) == CONVERGENCE_STOP)
			break;
	}
}

static void test_throttle(void **state)
{
	struct throttle_policy policy = {
		.initial = 20, .increment = 10, .most = 45, .threshold = 50};
	struct convergence c = {.expected_us = 1000000};
	static const unsigned int expected[] = {0, 20, 20, 30, 30, 40, 40, 45, 45, 45};
	uint64_t now = 5;

	/* The first round is not counted; then every second period that is too much adds a step. */
	assert_int_equal(convergence_throttle(&c, &policy, 1, 1000, 300000, now), 0);
	for (unsigned int i = 0; i < 10; i++)
		assert_int_equal(
			convergence_throttle(&c, &policy, 1000, 600, 300000, now += 100000),
			expected[i]);
	/* What is within the threshold, or converges, changes nothing. */
	c = (struct convergence){.expected_us = 1000000, .since_us = 5};
	for (unsigned int i = 0; i < 10; i++)
		assert_int_equal(
			convergence_throttle(&c, &policy, 1000, 500, 300000, now += 100000), 0);
	c.expected_us = 200000;
	for (unsigned int i = 0; i < 10; i++)
		assert_int_equal(
			convergence_throttle(&c, &policy, 1000, 900, 300000, now += 100000), 0);
	/* Short rounds are added up. */
	c = (struct convergence){.expected_us = 1000000, .since_us = now};
	for (unsigned int i = 0; i < 39; i++)
		convergence_throttle(&c, &policy, 10, 9, 300000, now += 5000);
	assert_int_equal(c.throttle, 0);
	assert_int_equal(convergence_throttle(&c, &policy, 10, 9, 300000, now += 5000), 20);
	/* Towards the end no more than is needed: 80 % of the time, 5 % too much. */
	policy.tailslow = true;
	convergence_throttle(&c, &policy, 1000, 526, 300000, now += 100000);
	assert_int_equal(convergence_throttle(&c, &policy, 1000, 526, 300000, now += 100000), 24);
}

/* Handshake */

static void test_hello(void **state)
{
	struct hello in = {.version = 3,
			   .version_min = 2,
			   .features = 0x81,
			   .required = 0x80,
			   .nonce = {1, 2, 3, 16}},
		     out;
	struct buffer body = {0};
	struct error *err = NULL;
	struct reader reader;

	hello_encode(&in, &body);
	reader_init(&reader, body.data, body.size);
	assert_ok(hello_decode(&out, &reader, &err), err);
	assert_int_equal(out.version, 3);
	assert_int_equal(out.version_min, 2);
	assert_int_equal(out.features, 0x81);
	assert_int_equal(out.required, 0x80);
	assert_memory_equal(out.nonce, in.nonce, sizeof(in.nonce));
	for (size_t size = 0; size < body.size; size++) {
		reader_init(&reader, body.data, size);
		assert_int_equal(hello_decode(&out, &reader, NULL), -EPROTO);
	}
	buffer_put_u32(&body, 77); /* a newer one is longer */
	reader_init(&reader, body.data, body.size);
	assert_ok(hello_decode(&out, &reader, &err), err);
	buffer_free(&body);
}

static void test_machine_offer(void **state)
{
	struct machine_offer in = {.machine_version = 4,
				   .owner_path = "/run/x",
				   .owner_durable = true,
				   .owner = {9},
				   .epoch = 5,
				   .switchover_timeout_ms = 1234},
			     out;
	struct buffer body = {0};
	struct error *err = NULL;
	struct reader reader;

	assert_int_equal(description_add(&in.description, true, "memory.size", "123"), 0);
	assert_int_equal(description_add(&in.description, false, "cpu.count", "2"), 0);
	machine_offer_encode(&in, &body);
	reader_init(&reader, body.data, body.size);
	assert_ok(machine_offer_decode(&out, &reader, &err), err);
	assert_int_equal(out.machine_version, 4);
	assert_string_equal(out.owner_path, "/run/x");
	assert_true(out.owner_durable);
	assert_int_equal(out.owner[0], 9);
	assert_int_equal(out.epoch, 5);
	assert_int_equal(out.switchover_timeout_ms, 1234);
	assert_int_equal(out.description.count, 2);
	assert_true(out.description.entries[0].required);
	assert_false(out.description.entries[1].required);
	assert_string_equal(description_get(&out.description, "cpu.count"), "2");
	description_free(&out.description);
	for (size_t size = 0; size < body.size; size++) {
		reader_init(&reader, body.data, size);
		assert_int_equal(machine_offer_decode(&out, &reader, NULL), -EPROTO);
		assert_int_equal(out.description.count, 0);
	}
	/* Too long, and a key given twice. */
	buffer_put_u8(&body, 0);
	reader_init(&reader, body.data, body.size);
	assert_int_equal(machine_offer_decode(&out, &reader, NULL), -EPROTO);
	buffer_clear(&body);
	free(in.description.entries[1].key);
	in.description.entries[1].key = strdup("memory.size");
	machine_offer_encode(&in, &body);
	reader_init(&reader, body.data, body.size);
	assert_refused(machine_offer_decode(&out, &reader, &err), err, -EPROTO,
		       "repeated property");
	description_free(&in.description);
	buffer_free(&body);
}

static void test_prepare(void **state)
{
	struct prepare in = {.nonce = {5},
			     .epoch = 1,
			     .running = true,
			     .pages = 2,
			     .zero_pages = 3},
		       out;
	uint8_t raw[PREPARE_SIZE + 1] = {0};
	struct error *err = NULL;
	struct reader reader;

	prepare_encode(&in, raw);
	reader_init(&reader, raw, PREPARE_SIZE);
	assert_ok(prepare_decode(&out, &reader, &err), err);
	assert_int_equal(out.epoch, 1);
	assert_true(out.running);
	assert_int_equal(out.pages, 2);
	assert_int_equal(out.zero_pages, 3);
	assert_memory_equal(out.nonce, in.nonce, sizeof(in.nonce));
	for (size_t size = 0; size <= PREPARE_SIZE + 1; size++) {
		if (size == PREPARE_SIZE)
			continue;
		reader_init(&reader, raw, size);
		assert_int_equal(prepare_decode(&out, &reader, NULL), -EPROTO);
	}
}

/* URIs */

static void refuse(const char *uri, bool listening, int code, const char *part)
{
	struct migration_request request = {.uri = uri, .fd = -1};
	struct error *err = NULL;

	if (channel_check_uri(&request, listening, &err) != code || !strstr(error_text(err), part))
		fail_msg("%s: %s", uri, error_text(err));
	error_free(&err);
}

static void test_uri(void **state)
{
	static const char *const good[] = {"unix:/run/x",     "unix:relative",
					   "tcp:127.0.0.1:5", "tcp:localhost:65535",
					   "tcp:[::1]:0",     "tcp::7"};
	struct migration_request request = {.fd = -1};
	struct error *err = NULL;
	char path[200];

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		request.uri = good[i];
		assert_ok(channel_check_uri(&request, i % 2, &err), err);
	}
	refuse("", false, -EINVAL, "is none of");
	refuse("rdma:host:1", false, -EINVAL, "'rdma:host:1' is none of unix:PATH");
	refuse("/run/x", false, -EINVAL, "is none of");
	refuse("unix:", true, -EINVAL, "nothing follows 'unix:'");
	refuse("tcp:127.0.0.1", false, -EINVAL, "has no port");
	refuse("tcp:127.0.0.1:", false, -EINVAL, "has no port");
	refuse("tcp:127.0.0.1:65536", false, -EINVAL, "at most 65535");
	refuse("tcp:127.0.0.1:99999999999999999999", false, -EINVAL, "");
	refuse("tcp:[::1:5", false, -EINVAL, "tcp:[ADDRESS]:PORT");
	refuse("tcp:[::1]5", false, -EINVAL, "tcp:[ADDRESS]:PORT");
	refuse("exec:cat", false, -EPERM, "--allow-exec");
	refuse("fd:nobody", false, -EINVAL, "no descriptor named 'nobody'");
	memset(path, 'a', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	memcpy(path, "unix:/", 6);
	refuse(path, true, -ENAMETOOLONG, "at most 107");
	memcpy(path, "tcp::1", 6);
	refuse(path, true, -EINVAL, "too long");
}

static void open_refused(const char *uri, int fd, int code, const char *part)
{
	struct migration_request request = {.uri = uri, .fd = fd};
	struct listener listener;
	struct error *err = NULL;

	if (listener_open(&listener, &request, &err) != code || !strstr(error_text(err), part))
		fail_msg("%s: %s", uri, error_text(err));
	error_free(&err);
	listener_close(&listener);
}

static void test_listen(void **state)
{
	struct migration_request request = {.fd = -1};
	struct listener listener, second;
	struct error *err = NULL;
	char uri[64], again[128];
	int pipes[2], file;

	snprintf(uri, sizeof(uri), "unix:/tmp/godwit-test-listen-%d", (int)getpid());
	request.uri = uri;
	assert_ok(listener_open(&listener, &request, &err), err);
	assert_string_equal(listener.address, uri);
	assert_refused(listener_open(&second, &request, &err), err, -EADDRINUSE,
		       "another process listens");
	listener_close(&listener);
	assert_int_equal(access(uri + 5, F_OK), -1);
	/* A file that is no socket is left alone. */
	file = open(uri + 5, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(file >= 0);
	open_refused(uri, -1, -EEXIST, "exists and is no socket");
	assert_int_equal(access(uri + 5, F_OK), 0);
	unlink(uri + 5);
	close(file);
	/* TCP says which port it got, and a taken one is refused. */
	request.uri = "tcp:127.0.0.1:0";
	assert_ok(listener_open(&listener, &request, &err), err);
	assert_int_equal(strncmp(listener.address, "tcp:127.0.0.1:", 14), 0);
	assert_true(atoi(listener.address + 14) > 0);
	snprintf(again, sizeof(again), "%s", listener.address);
	open_refused(again, -1, -EADDRINUSE, "cannot listen on");
	listener_close(&listener);
	open_refused("tcp:0.0.0.0:0", -1, -EPERM, "--insecure");
	open_refused("tcp::0", -1, -EPERM, "--insecure");
	open_refused("tcp:no.such.host.invalid:1", -1, -EINVAL, "cannot resolve");
	/* A pipe has one direction only. It stays the caller's. */
	assert_int_equal(pipe(pipes), 0);
	open_refused("fd:pipe", pipes[0], -EINVAL, "a pipe has one");
	assert_int_equal(close(pipes[0]), 0);
	assert_int_equal(close(pipes[1]), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_state),         cmocka_unit_test(test_state_object_twice),
		cmocka_unit_test(test_state_values),  cmocka_unit_test(test_many_vcpus),
		cmocka_unit_test(test_convergence),   cmocka_unit_test(test_convergence_measure),
		cmocka_unit_test(test_throttle),      cmocka_unit_test(test_hello),
		cmocka_unit_test(test_machine_offer), cmocka_unit_test(test_prepare),
		cmocka_unit_test(test_uri),           cmocka_unit_test(test_listen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
