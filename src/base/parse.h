/* SPDX-License-Identifier: Apache-2.0 */
/* Values as people type them. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

/* "512", "64K", "1.5G": bytes, powers of 1024, suffix K M G T in either case, optional "iB"/"B". */
int parse_size(const char *text, uint64_t *bytes, struct error **err);

/* "300", "300ms", "2s", "1500us": microseconds; without a suffix the unit is milliseconds. */
int parse_time_us(const char *text, uint64_t *microseconds, struct error **err);

/* A decimal or 0x number within [min, max]. */
int parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *value, struct error **err);

/* "1.5 GiB", "64 MiB", "100 bytes". Returns buffer. */
char *format_size(char *buffer, size_t length, uint64_t bytes);
