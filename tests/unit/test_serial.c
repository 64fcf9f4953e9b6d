/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "device/ports.h"
#include "device/serial.h"

struct line {
	struct serial serial;
	struct bus ports;
};

static void line_open(struct line *line, const char *where)
{
	struct error *err = NULL;

	memset(line, 0, sizeof(*line));
	assert_ok(serial_attach(&line->serial, NULL, &line->ports, where, &err), err);
	assert_int_equal(serial_room(&line->serial), 0); /* held until the guest runs */
	serial_hold(&line->serial, false);
}

static void line_close(struct line *line)
{
	serial_detach(&line->serial);
	bus_free(&line->ports);
}

static void out(struct line *line, unsigned int offset, uint8_t value)
{
	bus_access(&line->ports, PORT_SERIAL + offset, true, &value, 1);
}

static uint8_t in(struct line *line, unsigned int offset)
{
	uint8_t value = 0;

	bus_access(&line->ports, PORT_SERIAL + offset, false, &value, 1);
	return value;
}

static void test_registers(void **state)
{
	struct line line;

	line_open(&line, "none");
	assert_int_equal(in(&line, 5), 0x60); /* transmitter empty, no data */
	assert_int_equal(in(&line, 6), 0xb0); /* CTS DSR DCD */
	out(&line, 3, 0x83);
	out(&line, 0, 0x01);
	out(&line, 1, 0x02);
	assert_int_equal(in(&line, 0), 0x01);
	assert_int_equal(in(&line, 1), 0x02);
	out(&line, 3, 0x03);
	out(&line, 1, 0xff);
	assert_int_equal(in(&line, 1), 0x0f);
	out(&line, 7, 0x5a);
	assert_int_equal(in(&line, 7), 0x5a);
	out(&line, 2, 0x01);
	assert_int_equal(in(&line, 2) & 0xc0, 0xc0); /* a 16550A: both FIFO bits */
	serial_reset(&line.serial);
	assert_int_equal(in(&line, 1), 0);
	assert_int_equal(in(&line, 2), 0x01);
	line_close(&line);
}

static void test_receive(void **state)
{
	uint8_t data[20];
	struct line line;

	for (unsigned int i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)('a' + i);
	line_open(&line, "none");
	assert_int_equal(serial_room(&line.serial), 1); /* FIFO off */
	out(&line, 2, 0x01);
	assert_int_equal(serial_room(&line.serial), 16);
	serial_receive(&line.serial, data, 16);
	assert_int_equal(serial_room(&line.serial), 0);
	assert_int_equal(in(&line, 5), 0x61);
	serial_receive(&line.serial, data + 16, 1); /* one too many */
	assert_int_equal(in(&line, 5), 0x63);
	assert_int_equal(in(&line, 5), 0x61); /* the error is read once */
	for (unsigned int i = 0; i < 16; i++)
		assert_int_equal(in(&line, 0), 'a' + i);
	assert_int_equal(in(&line, 5), 0x60);
	line_close(&line);
}

static void test_interrupts(void **state)
{
	struct line line;

	line_open(&line, "none");
	out(&line, 2, 0x01);
	out(&line, 4, 0x08); /* OUT2: the line's gate */
	out(&line, 1, 0x03); /* data and transmitter */
	assert_true(line.serial.line);
	assert_int_equal(in(&line, 2) & 0x0f, 0x02);
	assert_int_equal(in(&line, 2) & 0x0f, 0x01); /* reading it took it back */
	assert_false(line.serial.line);
	serial_receive(&line.serial, (const uint8_t *)"x", 1);
	assert_true(line.serial.line);
	assert_int_equal(in(&line, 2) & 0x0f, 0x04);
	assert_int_equal(in(&line, 0), 'x');
	assert_false(line.serial.line);
	out(&line, 0, 'y'); /* sent at once: empty again */
	assert_true(line.serial.line);
	out(&line, 4, 0x00);
	assert_false(line.serial.line);
	line_close(&line);
}

static void test_loopback(void **state)
{
	struct line line;

	line_open(&line, "none");
	out(&line, 4, 0x1a); /* loop, OUT2, RTS */
	assert_int_equal(in(&line, 6), 0x90);
	out(&line, 0, 0x42);
	assert_int_equal(in(&line, 0), 0x42);
	line_close(&line);
}

static void test_state(void **state)
{
	struct line a, b;

	line_open(&a, "none");
	line_open(&b, "none");
	out(&a, 2, 0x01);
	out(&a, 4, 0x0b);
	out(&a, 1, 0x01);
	out(&a, 7, 0x77);
	serial_receive(&a.serial, (const uint8_t *)"hello", 5);
	serial_save(&a.serial);
	b.serial.state = a.serial.state;
	serial_load(&b.serial);
	assert_true(b.serial.line);
	assert_int_equal(in(&b, 7), 0x77);
	assert_int_equal(in(&b, 4), 0x0b);
	for (const char *c = "hello"; *c; c++)
		assert_int_equal(in(&b, 0), *c);
	/* A stream's nonsense does no harm. */
	memset(&b.serial.state, 0xff, sizeof(b.serial.state));
	serial_load(&b.serial);
	out(&b, 3, 0x03); /* no divisor latch */
	for (unsigned int i = 0; i < 20; i++)
		in(&b, 0);
	assert_int_equal(in(&b, 5) & 0x01, 0);
	line_close(&a);
	line_close(&b);
}

static void test_held(void **state)
{
	struct line line;

	line_open(&line, "none");
	serial_hold(&line.serial, true);
	assert_int_equal(serial_room(&line.serial), 0);
	serial_hold(&line.serial, false);
	assert_int_equal(serial_room(&line.serial), 1);
	line_close(&line);
}

static void temporary(char *path, size_t size, const char *name)
{
	snprintf(path, size, "/tmp/godwit-test-%d-%s", (int)getpid(), name);
	unlink(path);
}

static void test_file(void **state)
{
	char path[100], text[64] = "";
	struct line line;
	int fd;

	temporary(path, sizeof(path), "file");
	for (int round = 0; round < 2; round++) {
		line_open(&line, path);
		for (const char *c = "line\n"; *c; c++)
			out(&line, 0, (uint8_t)*c);
		line_close(&line);
	}
	fd = open(path, O_RDONLY);
	assert_int_equal(read(fd, text, sizeof(text) - 1), 10);
	assert_string_equal(text, "line\nline\n");
	close(fd);
	unlink(path);
}

/* A reader that never reads costs the guest nothing, and the newest bytes are kept. */
static void test_slow_reader(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char path[100], where[110], last = 0, buffer[4096];
	struct line line;
	uint64_t start;
	ssize_t got;
	int fd;

	temporary(path, sizeof(path), "socket");
	snprintf(where, sizeof(where), "unix:%s", path);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	line_open(&line, where);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	start = clock_us();
	for (unsigned int i = 0; i < 3000000; i++)
		out(&line, 0, 'a');
	out(&line, 0, 'z');
	out(&line, 0, '\n');
	assert_true(clock_us() - start < 20000000);
	/* ... and input arrives meanwhile. */
	assert_int_equal(write(fd, "k", 1), 1);
	for (unsigned int i = 0; i < 2000 && !(in(&line, 5) & 1); i++)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	assert_int_equal(in(&line, 0), 'k');
	while (last != '\n' && (got = read(fd, buffer, sizeof(buffer))) > 0)
		last = buffer[got - 1];
	assert_int_equal(last, '\n');
	close(fd);
	line_close(&line);
	assert_int_equal(access(path, F_OK), -1);
}

static void test_refusals(void **state)
{
	struct error *err = NULL;
	struct serial serial;
	struct bus bus = {0};
	char where[200];

	memset(where, 'x', sizeof(where));
	memcpy(where, "unix:/", 6);
	where[sizeof(where) - 1] = '\0';
	assert_refused(serial_attach(&serial, NULL, &bus, where, &err), err, -ENAMETOOLONG, "107");
	bus_free(&bus);
	assert_refused(serial_attach(&serial, NULL, &bus, "/no/such/folder/file", &err), err,
		       -ENOENT, "/no/such/folder/file");
	bus_free(&bus);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_registers),  cmocka_unit_test(test_receive),
		cmocka_unit_test(test_interrupts), cmocka_unit_test(test_loopback),
		cmocka_unit_test(test_state),      cmocka_unit_test(test_held),
		cmocka_unit_test(test_file),       cmocka_unit_test(test_slow_reader),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
