/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control server alone, over a fake machine: qmp-server-under-test ADDRESS... [--incoming URI]
 * [--allow-exec]. It ends at `quit`, with 0, and reports on stderr a descriptor that it leaks.
 * SIGUSR1 makes it send 2000 events.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include "control/server.h"
#include "fake_machine.h"

static struct control_server *server;
static struct machine *machine;
static uv_async_t ended;
static uv_signal_t flood;

static unsigned int count_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	unsigned int count = 0;

	while (folder && readdir(folder))
		count++;
	if (folder)
		closedir(folder);
	return count;
}

static void listener(void *opaque, const struct machine_event *event)
{
	if (event->type == MACHINE_EVENT_EXIT)
		uv_async_send(&ended);
	else
		control_machine_event(server, event);
}

static void on_ended(uv_async_t *handle)
{
	uv_stop(handle->loop);
}

static void on_flood(uv_signal_t *handle, int number)
{
	for (unsigned int i = 0; i < 2000; i++)
		fake_machine_emit(machine, MACHINE_EVENT_MIGRATION_PASS, i, false, NULL);
}

int main(int argc, char **argv)
{
	struct machine_config config = {
		.name = "fake",
		.uuid = "11111111-2222-3333-4444-555555555555",
		.memory = 64 << 20,
		.cpus = 2,
	};
	struct error *error = NULL;
	unsigned int before;
	uv_loop_t loop;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--incoming") && i + 1 < argc)
			config.incoming = argv[++i];
		else if (!strcmp(argv[i], "--allow-exec"))
			config.allow_exec = true;
	}
	before = count_descriptors();
	uv_loop_init(&loop);
	uv_async_init(&loop, &ended, on_ended);
	uv_signal_init(&loop, &flood);
	uv_signal_start(&flood, on_flood, SIGUSR1);
	if (machine_create(&machine, &config, listener, NULL, &error) ||
	    control_create(&server, &loop, machine, &error))
		return 1;
	for (int i = 1; i < argc; i++) {
		if (!strncmp(argv[i], "--", 2)) {
			i += !strcmp(argv[i], "--incoming");
			continue;
		}
		if (control_listen(server, argv[i], &error)) {
			fprintf(stderr, "%s\n", error_text(error));
			error_free(&error);
			control_destroy(server); /* waits for its workers, which know the loop */
			return 1;
		}
	}
	puts("listening");
	fflush(stdout);
	uv_run(&loop, UV_RUN_DEFAULT);
	control_destroy(server);
	machine_destroy(machine);
	uv_close((uv_handle_t *)&ended, NULL);
	uv_close((uv_handle_t *)&flood, NULL);
	uv_run(&loop, UV_RUN_DEFAULT);
	if (uv_loop_close(&loop))
		fprintf(stderr, "the loop still has handles\n");
	uv_library_shutdown();
	if (count_descriptors() != before)
		fprintf(stderr, "leaked %d descriptors\n", (int)count_descriptors() - (int)before);
	return 0;
}
