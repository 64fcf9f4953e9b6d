/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that change the run state; those that wait for vCPUs do so on a worker. */
#include "control/internal.h"

static int stop_job(struct request *request, struct error **err)
{
	return machine_stop(request->server->machine, err);
}

static void run_stop(struct request *request)
{
	request_work(request, stop_job, NULL);
}

static int cont_job(struct request *request, struct error **err)
{
	return machine_cont(request->server->machine, err);
}

static void run_cont(struct request *request)
{
	request_work(request, cont_job, NULL);
}

static int reset_job(struct request *request, struct error **err)
{
	return machine_reset(request->server->machine, err);
}

static void run_reset(struct request *request)
{
	request_work(request, reset_job, NULL);
}

/* It waits for whoever stops or saves the vCPUs at this moment. */
static int powerdown_job(struct request *request, struct error **err)
{
	return machine_powerdown(request->server->machine, err);
}

static void run_powerdown(struct request *request)
{
	request_work(request, powerdown_job, NULL);
}

static void run_quit(struct request *request)
{
	machine_quit(request->server->machine, "host-qmp-quit");
	request_return(request, NULL);
}

const struct command commands_machine[] = {
	{"stop", NULL, NULL, run_stop},
	{"cont", NULL, NULL, run_cont},
	{"system_reset", NULL, NULL, run_reset},
	{"system_powerdown", NULL, NULL, run_powerdown},
	{"quit", NULL, NULL, run_quit, .oob = true},
	{NULL},
};
