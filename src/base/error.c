/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What err points to when even the sentence could not be allocated; never freed. */
static struct error error_no_memory = {.code = -ENOMEM, .text = "out of memory"};

/* Takes ownership of text (NULL: out of memory). */
static void error_store(struct error **err, int code, char *text)
{
	struct error *error = text ? malloc(sizeof(*error)) : NULL;

	if (!error) {
		free(text);
		*err = &error_no_memory;
		return;
	}
	error->code = code;
	error->text = text;
	*err = error;
}

__attribute__((format(printf, 1, 0))) static char *error_format(const char *format,
								va_list arguments)
{
	char *text;

	return vasprintf(&text, format, arguments) < 0 ? NULL : text;
}

/* Frees both parts. */
static char *error_join(char *first, char *second)
{
	char *text = NULL;

	if (first && second && asprintf(&text, "%s: %s", first, second) < 0)
		text = NULL;
	free(first);
	free(second);
	return text;
}

static char *error_describe(int code)
{
	char buffer[128];

	return strdup(strerror_r(-code, buffer, sizeof(buffer)));
}

int error_set(struct error **err, int code, const char *format, ...)
{
	va_list arguments;

	if (!err || *err)
		return code;
	va_start(arguments, format);
	error_store(err, code, error_format(format, arguments));
	va_end(arguments);
	return code;
}

int error_set_errno(struct error **err, int code, const char *format, ...)
{
	va_list arguments;

	if (!err || *err)
		return code;
	va_start(arguments, format);
	error_store(err, code, error_join(error_format(format, arguments), error_describe(code)));
	va_end(arguments);
	return code;
}

int error_prefix(struct error **err, const char *format, ...)
{
	va_list arguments;
	char *text;

	if (!err || !*err)
		return 0;
	va_start(arguments, format);
	text = error_join(error_format(format, arguments), strdup((*err)->text));
	va_end(arguments);
	/* Without memory the sentence stays as it was: better short than lost. */
	if (text && *err != &error_no_memory) {
		free((*err)->text);
		(*err)->text = text;
	} else {
		free(text);
	}
	return (*err)->code;
}

const char *error_text(const struct error *err)
{
	return err ? err->text : "no error";
}

void error_free(struct error **err)
{
	if (!err || !*err)
		return;
	if (*err != &error_no_memory) {
		free((*err)->text);
		free(*err);
	}
	*err = NULL;
}
