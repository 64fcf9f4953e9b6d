/* SPDX-License-Identifier: Apache-2.0 */
/* Scope-bound release of the three things every file owns: heap memory, descriptors, streams. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free_(void *pointer)
{
	free(*(void **)pointer);
}

static inline void cleanup_close_(const int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static inline void cleanup_fclose_(FILE **file)
{
	if (*file)
		fclose(*file);
}

#define cleanup_free   __attribute__((cleanup(cleanup_free_)))
#define cleanup_close  __attribute__((cleanup(cleanup_close_)))
#define cleanup_fclose __attribute__((cleanup(cleanup_fclose_)))

/* Hands a value out of a cleanup variable: `return steal_fd(&fd);` */
static inline int steal_fd(int *fd)
{
	int value = *fd;

	*fd = -1;
	return value;
}

#define steal_pointer(p)                                                                           \
	({                                                                                         \
		__typeof__(*(p)) value_ = *(p);                                                    \
		*(p) = NULL;                                                                       \
		value_;                                                                            \
	})
