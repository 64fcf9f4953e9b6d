/* SPDX-License-Identifier: Apache-2.0 */
/* godwit qmp: one command to a control socket, the answer as JSON. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/parse.h"
#include "cmd/tool.h"
#include "control/client.h"

static const char help[] =
	"Usage: godwit qmp CONTROL COMMAND [NAME=VALUE... | JSON]\n"
	"\n"
	"Sends one QMP command to a running virtual machine and prints the answer as JSON.\n"
	"CONTROL is the --control address of 'godwit run': unix:PATH, or the path alone.\n"
	"Arguments are NAME=VALUE (a value that is a JSON number, true, false, list, object or\n"
	"\"text\" is taken as such, everything else as text), or one JSON object.\n"
	"\n"
	"  --timeout T   how long to wait for the answer (default 30s; also 500ms, ...)\n"
	"  --help        this text\n"
	"\n"
	"Exit status: 0 done, 1 refused or no connection (the reason is on stderr), 2 usage.\n"
	"\n"
	"Examples:\n"
	"  godwit qmp unix:/run/g1.sock query-status\n"
	"  godwit qmp g1.sock migrate-set-parameters downtime-limit=50 max-bandwidth=0\n"
	"  godwit qmp g1.sock migrate '{\"uri\": \"tcp:192.0.2.7:4444\", \"check\": true}'\n"
	"  godwit qmp g1.sock query-commands\n";

static json_t *argument_value(const char *text)
{
	json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);

	return value ? value : json_string(text);
}

/* NULL, with a message, when an argument is neither of the two forms. */
static json_t *arguments_parse(char **words)
{
	json_t *arguments = json_object();
	json_error_t problem;

	if (words[0] && words[0][0] == '{') {
		json_decref(arguments);
		arguments = json_loads(words[0], JSON_REJECT_DUPLICATES, &problem);
		if (!arguments)
			tool_complain("the arguments are no JSON: %s (column %d)", problem.text,
				      problem.column);
		else if (words[1])
			tool_complain("'%s' follows the JSON arguments", words[1]);
		if (arguments && !words[1])
			return arguments;
		json_decref(arguments);
		return NULL;
	}
	for (; *words; words++) {
		const char *equals = strchr(*words, '=');
		cleanup_free char *name = NULL;

		if (equals && equals != *words)
			name = strndup(*words, (size_t)(equals - *words));
		if (!name || json_object_set_new(arguments, name, argument_value(equals + 1))) {
			tool_complain("'%s' is no argument: write NAME=VALUE, or one JSON object",
				      *words);
			json_decref(arguments);
			return NULL;
		}
	}
	return arguments;
}

static int qmp_run(char **words, uint64_t timeout)
{
	cleanup_client struct control_client *client = NULL;
	cleanup_error struct error *error = NULL;
	json_t *arguments = arguments_parse(words + 2);
	json_t *result = NULL;

	if (!arguments)
		return EXIT_USAGE;
	if (control_client_connect(&client, words[0], timeout, &error)) {
		json_decref(arguments);
		return tool_fail(&error);
	}
	if (!json_object_size(arguments)) {
		json_decref(arguments);
		arguments = NULL;
	}
	if (control_client_execute(client, words[1], arguments, &result, timeout, &error))
		return tool_fail(&error);
	json_dumpf(result, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
	putchar('\n');
	json_decref(result);
	return fflush(stdout) ? EXIT_FAILED : EXIT_OK;
}

int cmd_qmp(int argc, char **argv)
{
	static const struct option options[] = {
		{"timeout", required_argument, NULL, 't'},
		{"help", no_argument, NULL, 'h'},
		{NULL},
	};
	cleanup_error struct error *error = NULL;
	uint64_t timeout = 30000000;
	int option;

	while ((option = getopt_long(argc, argv, "+", options, NULL)) != -1) {
		if (option == 'h') {
			fputs(help, stdout);
			return EXIT_OK;
		}
		if (option != 't')
			return tool_usage("qmp", NULL);
		if (parse_time_us(optarg, &timeout, &error))
			return tool_usage("qmp", "--timeout: %s", error_text(error));
	}
	if (argc - optind < 2)
		return tool_usage("qmp", "CONTROL and COMMAND are needed");
	return qmp_run(argv + optind, timeout);
}
