/* SPDX-License-Identifier: Apache-2.0 */
/* What the protocol says about itself; all of it from the tables. */
#include "control/internal.h"

static SCHEMA_ENUM_TYPE(qmp_capability, "QMPCapability", "oob");
static SCHEMA_ARRAY_TYPE(qmp_capability_list, "QMPCapability", qmp_capability);
static SCHEMA_OBJECT_TYPE(capabilities_arg, "q_obj_qmp_capabilities-arg",
			  SCHEMA_OPTIONAL("enable", qmp_capability_list));

static SCHEMA_OBJECT_TYPE(version_triple, "VersionTriple", SCHEMA_REQUIRED("major", schema_int),
			  SCHEMA_REQUIRED("minor", schema_int),
			  SCHEMA_REQUIRED("micro", schema_int));
static SCHEMA_OBJECT_TYPE(version_result, "VersionInfo", SCHEMA_REQUIRED("qemu", version_triple),
			  SCHEMA_REQUIRED("package", schema_str));
static SCHEMA_OBJECT_TYPE(command_info, "CommandInfo", SCHEMA_REQUIRED("name", schema_str));
static SCHEMA_ARRAY_TYPE(command_list, "CommandInfo", command_info);
static SCHEMA_OBJECT_TYPE(event_info, "EventInfo", SCHEMA_REQUIRED("name", schema_str));
static SCHEMA_ARRAY_TYPE(event_list, "EventInfo", event_info);

static SCHEMA_ENUM_TYPE(meta_type, "SchemaMetaType", "builtin", "enum", "array", "object",
			"alternate", "command", "event");
static SCHEMA_OBJECT_TYPE(schema_entry, "SchemaInfo", SCHEMA_REQUIRED("name", schema_str),
			  SCHEMA_REQUIRED("meta-type", meta_type));
static SCHEMA_ARRAY_TYPE(schema_list, "SchemaInfo", schema_entry);

static void run_capabilities(struct request *request)
{
	struct session *session = request->session;

	if (session->negotiated) {
		request_refuse(request, "CommandNotFound",
			       "Capabilities negotiation is already complete, command ignored");
		return;
	}
	session->negotiated = true;
	session->oob = json_array_size(json_object_get(request->arguments, "enable")) > 0;
	request_return(request, NULL);
}

static void run_version(struct request *request)
{
	request_return(request, version_info());
}

static void run_commands(struct request *request)
{
	json_t *list = json_array();

	for (const struct command *c = command_next(NULL); c; c = command_next(c))
		json_array_append_new(list, json_pack("{s:s}", "name", c->name));
	request_return(request, list);
}

static void run_events(struct request *request)
{
	json_t *list = json_array();

	for (unsigned int i = 0; i < event_types_count; i++)
		if (event_types[i].name)
			json_array_append_new(list,
					      json_pack("{s:s}", "name", event_types[i].name));
	request_return(request, list);
}

static void describe_command(const struct command *command, json_t *list, json_t *known)
{
	const struct schema_type *argument =
		command->arguments ? command->arguments : &schema_empty;
	const struct schema_type *result = command->result ? command->result : &schema_empty;
	json_t *info = json_pack("{s:s, s:s, s:s, s:s}", "name", command->name, "meta-type",
				 "command", "arg-type", argument->name, "ret-type", result->name);

	if (command->oob)
		json_object_set_new(info, "allow-oob", json_true());
	json_array_append_new(list, info);
	schema_describe(argument, list, known);
	schema_describe(result, list, known);
}

static void run_schema(struct request *request)
{
	json_t *list = json_array();
	json_t *known = json_object();

	for (const struct command *c = command_next(NULL); c; c = command_next(c))
		describe_command(c, list, known);
	for (unsigned int i = 0; i < event_types_count; i++) {
		const struct event_type *event = &event_types[i];
		const struct schema_type *data = event->data ? event->data : &schema_empty;

		if (!event->name)
			continue;
		json_array_append_new(list,
				      json_pack("{s:s, s:s, s:s}", "name", event->name, "meta-type",
						"event", "arg-type", data->name));
		schema_describe(data, list, known);
	}
	json_decref(known);
	request_return(request, list);
}

const struct command commands_introspect[] = {
	{"qmp_capabilities", &capabilities_arg, NULL, run_capabilities},
	{"query-version", NULL, &version_result, run_version, .oob = true},
	{"query-commands", NULL, &command_list, run_commands},
	{"query-events", NULL, &event_list, run_events},
	{"query-qmp-schema", NULL, &schema_list, run_schema},
	{NULL},
};
