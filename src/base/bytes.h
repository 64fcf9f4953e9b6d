/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian numbers at any alignment. */
#pragma once

#include <endian.h>
#include <stdint.h>
#include <string.h>

#define BYTES_DEFINE_(bits)                                                                        \
	static inline void bytes_put_u##bits(void *place, uint##bits##_t value)                    \
	{                                                                                          \
		value = htole##bits(value);                                                        \
		memcpy(place, &value, sizeof(value));                                              \
	}                                                                                          \
	static inline uint##bits##_t bytes_get_u##bits(const void *place)                          \
	{                                                                                          \
		uint##bits##_t value;                                                              \
                                                                                                   \
		memcpy(&value, place, sizeof(value));                                              \
		return le##bits##toh(value);                                                       \
	}

BYTES_DEFINE_(16)
BYTES_DEFINE_(32)
BYTES_DEFINE_(64)
#undef BYTES_DEFINE_
