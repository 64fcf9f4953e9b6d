/* SPDX-License-Identifier: Apache-2.0 */
/* Migration parameters and capabilities as arguments: of their own commands and inline in migrate.
 */
#pragma once

#include "control/command.h"

extern const struct schema_type schema_parameters_arg, schema_capability_list;

/* Change what the (checked) arguments name; nothing is changed on an error. NULL changes nothing.
 */
int parameters_apply(struct migration *migration, json_t *arguments, struct error **err);
int capabilities_apply(struct migration *migration, json_t *list, struct error **err);
