/* SPDX-License-Identifier: Apache-2.0 */
/* Where the owner record lies. */
#pragma once

#include "base/error.h"

struct machine;

/*
 * Makes the machine's owner record, as --owner-record says: "off" for none; a path (taken to lie on
 * storage that hosts share, so written durably); or nothing: UUID.owner in the folder "godwit" of
 * XDG_RUNTIME_DIR, of /run for root, or else /tmp/godwit-UID.
 */
int owner_record_open(struct machine *machine, struct error **err);
