/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error values that carry a sentence.
 *
 * A function that can fail for a reason a person must read returns 0 or a negative errno and
 * fills `struct error **` as its last argument. Each layer may put in front what it was doing:
 * "cannot map 2 GiB at 0x100000000: Cannot allocate memory". A caller that does not care passes
 * NULL. No function here may be called in the switchover window's good path (it allocates).
 */
#pragma once

#include <stdarg.h>

struct error {
	int code;   /* negative errno */
	char *text; /* one sentence, no full stop, no newline */
};

/* Sets *err (if err is not NULL and *err is NULL) and returns code, which must be negative. */
int error_set(struct error **err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Like error_set(), and appends ": " and strerror(-code). */
int error_set_errno(struct error **err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Puts "<formatted>: " in front of the text of *err, if there is one; returns its code (or 0). */
int error_prefix(struct error **err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The text, or "no error" for NULL. Owned by err. */
const char *error_text(const struct error *err);

/* Frees *err and sets it to NULL. Both may be NULL. */
void error_free(struct error **err);

#define cleanup_error __attribute__((cleanup(error_free)))
