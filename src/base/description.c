/* SPDX-License-Identifier: Apache-2.0 */
#include "base/description.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cleanup.h"
#include "base/parse.h"

static bool is_printable(const char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			return false;
	return true;
}

/* Room for one more entry; doubles at powers of two. */
static int description_grow(struct description *d)
{
	struct description_entry *entries;

	if (d->count & (d->count - 1))
		return 0;
	entries = reallocarray(d->entries, d->count ? d->count * 2u : 1u, sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	d->entries = entries;
	return 0;
}

int description_add(struct description *d, bool required, const char *key, const char *format, ...)
{
	cleanup_free char *name = NULL, *value = NULL;
	char text[DESCRIPTION_MAX_VALUE + 1];
	size_t key_length = strlen(key);
	va_list arguments;
	int length, result;

	va_start(arguments, format);
	length = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (length < 0 || !key_length || !is_printable(key) || !is_printable(text))
		return -EINVAL;
	if (length > DESCRIPTION_MAX_VALUE || key_length > DESCRIPTION_MAX_KEY ||
	    d->count >= DESCRIPTION_MAX_ENTRIES)
		return -E2BIG;
	if (description_get(d, key))
		return -EEXIST;
	name = strdup(key);
	value = strdup(text);
	result = name && value ? description_grow(d) : -ENOMEM;
	if (result < 0)
		return result;
	d->entries[d->count++] = (struct description_entry){
		.key = steal_pointer(&name),
		.value = steal_pointer(&value),
		.required = required,
	};
	return 0;
}

const char *description_get(const struct description *d, const char *key)
{
	for (unsigned int i = 0; i < d->count; i++)
		if (strcmp(d->entries[i].key, key) == 0)
			return d->entries[i].value;
	return NULL;
}

int description_get_number(const struct description *d, const char *key, uint64_t *value)
{
	const char *text = description_get(d, key);

	if (!text)
		return -ENOENT;
	return parse_number(text, 0, UINT64_MAX, value, NULL) < 0 ? -EINVAL : 0;
}

void description_free(struct description *d)
{
	for (unsigned int i = 0; i < d->count; i++) {
		free(d->entries[i].key);
		free(d->entries[i].value);
	}
	free(d->entries);
	d->entries = NULL;
	d->count = 0;
}
