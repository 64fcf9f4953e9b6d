/* SPDX-License-Identifier: Apache-2.0 */
/* godwit run: one virtual machine in this process, until it powers off or is told to quit. */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include "base/log.h"
#include "base/parse.h"
#include "cmd/tool.h"
#include "control/server.h"
#include "machine/machine.h"

#define CONTROLS_MAX 16

static const char help[] =
	"Usage: godwit run --kernel FILE | --guest ARGUMENTS | --incoming URI [--option value]...\n"
	"\n"
	"Runs one virtual machine in this process, until the guest powers off, a client says\n"
	"\"quit\", or SIGTERM or SIGINT comes.\n"
	"\n"
	"What runs\n"
	"  --kernel FILE       a kernel as an ELF with a PVH entry (a vmlinux with CONFIG_PVH)\n"
	"  --initrd FILE       its initial RAM disk\n"
	"  --append TEXT       its command line\n"
	"  --guest ARGUMENTS   the built-in guest: stress,hot=64M,fill=512M (see \"godwit guest\n"
	"                      --help\"); it runs on all vCPUs unless cpus= says otherwise\n"
	"  --incoming URI      waits for a guest that comes from elsewhere: unix:PATH\n"
	"                      tcp:HOST:PORT fd:N exec:COMMAND, or \"defer\": migrate-incoming\n"
	"                      says it later\n"
	"\n"
	"The machine (an incoming one takes what is not given here from the source)\n"
	"  --memory SIZE       default 256M; a multiple of 2M\n"
	"  --memory-backing private|shared|hugetlb\n"
	"                      anonymous memory with huge pages where the host gives them (the\n"
	"                      default), a memory file, or reserved huge pages\n"
	"  --cpus N            1 to 64; default 1\n"
	"  --cpu host|baseline all CPU features that can move (the default), or those that most\n"
	"                      hosts have\n"
	"  --serial none|stdio|unix:PATH|FILE\n"
	"                      where the serial port goes; default none\n"
	"  --name TEXT         default \"guest\"\n"
	"  --uuid UUID         default random\n"
	"\n"
	"How it is run\n"
	"  --control unix:PATH a control socket (QMP), or its path alone; may be given several\n"
	"                      times\n"
	"  --paused            does not start the guest: \"cont\" does\n"
	"  --dirty-log auto|bitmap|manual\n"
	"                      how KVM says which memory was written, during a move: auto takes\n"
	"                      the log with manual protect where the host has it\n"
	"  --dirty-ring N      instead, a ring of N entries a vCPU (a power of two, 1024 to "
	"65536):\n"
	"                      for large guests that write little; needed to limit a vCPU's rate\n"
	"  --no-reboot         a reset by the guest ends the machine\n"
	"  --no-shutdown       after a power-off the process stays\n"
	"  --owner-record PATH|off\n"
	"                      the file that says which process may run this guest; default: one\n"
	"                      in the runtime folder. For moves between hosts: on storage that\n"
	"                      both share\n"
	"  --insecure          allows migration by tcp: beyond loopback, not encrypted\n"
	"  --allow-exec        allows exec: addresses given over the control socket\n"
	"  --log-level error|warning|info|debug\n"
	"                      default warning\n"
	"  --help              this text\n"
	"\n"
	"Examples\n"
	"  godwit run --guest stress,hot=64M,fill=512M --memory 1G --cpus 2 --serial stdio\n"
	"  godwit run --guest stress --control unix:/tmp/a --paused\n"
	"  godwit run --incoming unix:/tmp/move --control unix:/tmp/b\n"
	"  godwit migrate unix:/tmp/a unix:/tmp/move\n";

struct run {
	uv_loop_t loop;
	uv_async_t exit;
	uv_signal_t signals[3];
	struct machine *machine;
	pthread_mutex_t lock; /* server */
	struct control_server *server;
	_Atomic(int) status;
	_Atomic(bool) ended; /* status is final */
	const char *controls[CONTROLS_MAX];
	unsigned int control_count;
};

enum option_id {
	OPTION_KERNEL = 256,
	OPTION_INITRD,
	OPTION_APPEND,
	OPTION_GUEST,
	OPTION_INCOMING,
	OPTION_MEMORY,
	OPTION_MEMORY_BACKING,
	OPTION_CPUS,
	OPTION_CPU,
	OPTION_SERIAL,
	OPTION_NAME,
	OPTION_UUID,
	OPTION_CONTROL,
	OPTION_PAUSED,
	OPTION_DIRTY_LOG,
	OPTION_DIRTY_RING,
	OPTION_NO_REBOOT,
	OPTION_NO_SHUTDOWN,
	OPTION_OWNER_RECORD,
	OPTION_INSECURE,
	OPTION_ALLOW_EXEC,
	OPTION_LOG_LEVEL,
	OPTION_HELP,
};

static const struct option options[] = {
	{"kernel", required_argument, NULL, OPTION_KERNEL},
	{"initrd", required_argument, NULL, OPTION_INITRD},
	{"append", required_argument, NULL, OPTION_APPEND},
	{"guest", required_argument, NULL, OPTION_GUEST},
	{"incoming", required_argument, NULL, OPTION_INCOMING},
	{"memory", required_argument, NULL, OPTION_MEMORY},
	{"memory-backing", required_argument, NULL, OPTION_MEMORY_BACKING},
	{"cpus", required_argument, NULL, OPTION_CPUS},
	{"cpu", required_argument, NULL, OPTION_CPU},
	{"serial", required_argument, NULL, OPTION_SERIAL},
	{"name", required_argument, NULL, OPTION_NAME},
	{"uuid", required_argument, NULL, OPTION_UUID},
	{"control", required_argument, NULL, OPTION_CONTROL},
	{"paused", no_argument, NULL, OPTION_PAUSED},
	{"dirty-log", required_argument, NULL, OPTION_DIRTY_LOG},
	{"dirty-ring", required_argument, NULL, OPTION_DIRTY_RING},
	{"no-reboot", no_argument, NULL, OPTION_NO_REBOOT},
	{"no-shutdown", no_argument, NULL, OPTION_NO_SHUTDOWN},
	{"owner-record", required_argument, NULL, OPTION_OWNER_RECORD},
	{"insecure", no_argument, NULL, OPTION_INSECURE},
	{"allow-exec", no_argument, NULL, OPTION_ALLOW_EXEC},
	{"log-level", required_argument, NULL, OPTION_LOG_LEVEL},
	{"help", no_argument, NULL, OPTION_HELP},
	{0},
};

static int set_log_level(const char *name, struct error **err)
{
	static const char *const names[] = {"error", "warning", "info", "debug"};

	for (int level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_DEBUG; level++)
		if (strcmp(name, names[level]) == 0) {
			log_set_level((enum log_level)level);
			return 0;
		}
	return error_set(err, -EINVAL, "unknown log level \"%s\": error, warning, info or debug",
			 name);
}

static int set_text(char **text, const char *value, struct error **err)
{
	free(*text);
	*text = strdup(value);
	return *text ? 0 : error_set(err, -ENOMEM, "no memory for the options");
}

static int set_flag(bool *flag)
{
	*flag = true;
	return 0;
}

static int set_cpus(struct machine_config *config, const char *value, struct error **err)
{
	uint64_t cpus;
	int code = parse_number(value, 1, MACHINE_MAX_VCPUS, &cpus, err);

	if (code == 0)
		config->cpus = (unsigned int)cpus;
	return code;
}

static int set_memory(struct machine_config *config, const char *value, struct error **err)
{
	int code = parse_size(value, &config->memory, err);

	/* 0 would stand for "not given". */
	if (code == 0 && config->memory == 0)
		code = error_set(err, -EINVAL, "a guest needs memory; give a multiple of 2 MiB");
	return code;
}

static int set_backing(struct machine_config *config, const char *value, struct error **err)
{
	config->backing_given = true;
	return ram_backing_parse(value, &config->backing, err);
}

static int set_dirty_log(struct machine_config *config, const char *value, struct error **err)
{
	enum kvm_dirty_kind kind;
	int code = kvm_dirty_kind_parse(value, &kind, err);

	if (code == 0 && config->dirty.ring_entries)
		code = error_set(err, -EINVAL, "not together with --dirty-ring");
	if (code == 0)
		config->dirty.kind = kind;
	return code;
}

static int set_dirty_ring(struct machine_config *config, const char *value, struct error **err)
{
	uint64_t entries;
	int code = parse_number(value, KVM_DIRTY_RING_MIN, KVM_DIRTY_RING_MAX, &entries, err);

	if (code == 0 && (entries & (entries - 1)))
		code = error_set(err, -EINVAL, "%s is no power of two", value);
	if (code == 0 && config->dirty.kind != KVM_DIRTY_AUTO)
		code = error_set(err, -EINVAL, "not together with --dirty-log");
	if (code == 0)
		config->dirty = (struct kvm_dirty_options){.kind = KVM_DIRTY_RING,
							   .ring_entries = (uint32_t)entries};
	return code;
}

static int add_control(struct run *run, const char *value, struct error **err)
{
	if (run->control_count == CONTROLS_MAX)
		return error_set(err, -E2BIG, "more than %d control sockets", CONTROLS_MAX);
	run->controls[run->control_count++] = value;
	return 0;
}

static int take_option(struct run *run, struct machine_config *config, int id, const char *value,
		       struct error **err)
{
	switch (id) {
	case OPTION_KERNEL:
		return set_text(&config->kernel, value, err);
	case OPTION_INITRD:
		return set_text(&config->initrd, value, err);
	case OPTION_APPEND:
		return set_text(&config->append, value, err);
	case OPTION_GUEST:
		return set_text(&config->guest, value, err);
	case OPTION_INCOMING:
		return set_text(&config->incoming, value, err);
	case OPTION_MEMORY:
		return set_memory(config, value, err);
	case OPTION_MEMORY_BACKING:
		return set_backing(config, value, err);
	case OPTION_CPUS:
		return set_cpus(config, value, err);
	case OPTION_CPU:
		return set_text(&config->cpu_model, value, err);
	case OPTION_SERIAL:
		return set_text(&config->serial, value, err);
	case OPTION_NAME:
		return set_text(&config->name, value, err);
	case OPTION_UUID:
		return set_text(&config->uuid, value, err);
	case OPTION_CONTROL:
		return add_control(run, value, err);
	case OPTION_PAUSED:
		return set_flag(&config->paused);
	case OPTION_DIRTY_LOG:
		return set_dirty_log(config, value, err);
	case OPTION_DIRTY_RING:
		return set_dirty_ring(config, value, err);
	case OPTION_NO_REBOOT:
		return set_flag(&config->no_reboot);
	case OPTION_NO_SHUTDOWN:
		return set_flag(&config->no_shutdown);
	case OPTION_OWNER_RECORD:
		return set_text(&config->owner_record, value, err);
	case OPTION_INSECURE:
		return set_flag(&config->insecure);
	case OPTION_ALLOW_EXEC:
		return set_flag(&config->allow_exec);
	default:
		return set_log_level(value, err);
	}
}

/* 0; EXIT_USAGE after saying why; -1 for --help. */
static int parse_options(struct run *run, struct machine_config *config, int argc, char **argv)
{
	int id, index = 0;

	optind = 0;
	while ((id = getopt_long(argc, argv, "", options, &index)) != -1) {
		struct error *err = NULL;

		if (id == '?')
			return argv[optind - 1][0] == '-' && argv[optind - 1][1] != '-'
				       ? tool_usage("run", "options have two dashes and whole "
							   "words, as in --memory 1G --cpus 2")
				       : tool_usage("run", NULL);
		if (id == OPTION_HELP)
			return -1;
		if (take_option(run, config, id, optarg, &err) < 0) {
			int status =
				tool_usage("run", "--%s: %s", options[index].name, error_text(err));

			error_free(&err);
			return status;
		}
	}
	if (optind < argc)
		return tool_usage("run", "what is \"%s\"? Options begin with --", argv[optind]);
	if (!config->kernel && !config->guest && !config->incoming)
		return tool_usage("run",
				  "nothing to run: give --kernel FILE, --guest ARGUMENTS, or "
				  "--incoming URI");
	return 0;
}

/* Any thread. */
static void listener(void *opaque, const struct machine_event *event)
{
	struct run *run = opaque;

	pthread_mutex_lock(&run->lock);
	if (run->server)
		control_machine_event(run->server, event);
	pthread_mutex_unlock(&run->lock);
	if (event->type == MACHINE_EVENT_EXIT) {
		/* The first counts: what ends after "quit" is no failure. */
		if (!atomic_exchange(&run->ended, true))
			atomic_store(&run->status, (int)event->value);
		uv_async_send(&run->exit);
	}
}

static void on_exit_event(uv_async_t *async)
{
	uv_stop(async->loop);
}

static void on_signal(uv_signal_t *handle, int number)
{
	struct run *run = handle->data;

	machine_quit(run->machine, "host-signal");
}

static void close_handle(uv_handle_t *handle, void *opaque)
{
	if (!uv_is_closing(handle))
		uv_close(handle, NULL);
}

static void end_loop(struct run *run)
{
	uv_walk(&run->loop, close_handle, NULL);
	uv_run(&run->loop, UV_RUN_DEFAULT);
	uv_loop_close(&run->loop);
}

static int start_loop(struct run *run, struct error **err)
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
	int result = uv_loop_init(&run->loop);

	if (result)
		return error_set(err, result, "cannot start the event loop: %s",
				 uv_strerror(result));
	/* A full pipe or a file at its size limit is the writer's error, not the guest's end. */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	result = uv_async_init(&run->loop, &run->exit, on_exit_event);
	for (size_t i = 0; !result && i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		result = uv_signal_init(&run->loop, &run->signals[i]);
		run->signals[i].data = run;
		if (!result)
			result = uv_signal_start(&run->signals[i], on_signal, numbers[i]);
	}
	if (!result)
		return 0;
	end_loop(run);
	return error_set(err, result, "cannot watch for signals: %s", uv_strerror(result));
}

static int open_controls(struct run *run, struct error **err)
{
	struct control_server *server;
	int code = control_create(&server, &run->loop, run->machine, err);

	if (code < 0)
		return code;
	pthread_mutex_lock(&run->lock);
	run->server = server;
	pthread_mutex_unlock(&run->lock);
	for (unsigned int i = 0; code == 0 && i < run->control_count; i++)
		code = control_listen(server, run->controls[i], err);
	return code;
}

static void close_controls(struct run *run)
{
	struct control_server *server;

	pthread_mutex_lock(&run->lock);
	server = run->server;
	run->server = NULL;
	pthread_mutex_unlock(&run->lock);
	control_destroy(server);
}

static int run_machine(struct run *run, const struct machine_config *config)
{
	struct error *err = NULL;
	int code;

	code = start_loop(run, &err);
	if (code < 0)
		return tool_fail(&err);
	code = machine_create(&run->machine, config, listener, run, &err);
	if (code == 0)
		code = open_controls(run, &err);
	if (code == 0)
		code = machine_start(run->machine, &err);
	if (code == 0)
		uv_run(&run->loop, UV_RUN_DEFAULT);
	close_controls(run);
	machine_destroy(run->machine);
	end_loop(run);
	return code < 0 ? tool_fail(&err) : atomic_load(&run->status);
}

int cmd_run(int argc, char **argv)
{
	struct run run = {.lock = PTHREAD_MUTEX_INITIALIZER};
	struct machine_config config = {0};
	int status = parse_options(&run, &config, argc, argv);

	if (status == 0) {
		status = run_machine(&run, &config);
	} else if (status < 0) {
		fputs(help, stdout);
		status = fflush(stdout) ? EXIT_FAILED : EXIT_OK;
	}
	machine_config_free(&config);
	return status;
}
