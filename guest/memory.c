/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the memory map gives. boot.S maps the low 4 GiB; RAM above is mapped here, in tables that
 * are complete before they are loaded. All that is free above the image is handed out as one
 * linear row of pages.
 */
#include "guest.h"

#define START_MAGIC    0x336ec578
#define MAP_RAM        1
#define MAX_EXTENTS    64
#define COMMAND_LINE   1024
#define LARGE_PAGE     0x200000ull
#define GIB            0x40000000ull
#define MAP_LIMIT      (1024 * GIB)
#define ENTRY_TABLE    0x27 /* present, writable, user, accessed */
#define ENTRY_LARGE    0xe7 /* and dirty, large */
#define ALIGN_UP(x, a) (((x) + (a)-1) & ~((a)-1))

/* Xen's public/arch-x86/hvm/start_info.h */
struct start_info {
	uint32_t magic, version, flags, modules;
	uint64_t module_list, command_line, rsdp, map;
	uint32_t map_entries, reserved;
};

struct map_entry {
	uint64_t address, size;
	uint32_t type, reserved;
};

struct extent {
	uint64_t start, pages;
};

extern char guest_image_end[];
extern uint64_t pml4[], low_directories[];

static struct extent ram[MAX_EXTENTS], usable[MAX_EXTENTS];
static unsigned int ram_count, usable_count;
static char command_line[COMMAND_LINE];

bool memory_is_ram(uint64_t start, uint64_t length)
{
	for (unsigned int i = 0; i < ram_count; i++) {
		if (start >= ram[i].start && start + length <= ram[i].start + ram[i].pages * PAGE)
			return true;
	}
	return false;
}

uint64_t *memory_page(uint64_t index)
{
	unsigned int i = 0;

	if (guest.config.top)
		index = guest.usable / PAGE - 1 - index;
	while (index >= usable[i].pages)
		index -= usable[i++].pages;
	return (uint64_t *)(usable[i].start + index * PAGE);
}

static const char *read_start_info(const struct start_info *info)
{
	const char *text = (const char *)info->command_line;
	const struct map_entry *map = (const struct map_entry *)info->map;

	if (info->magic != START_MAGIC)
		return "the start info has not the PVH magic number";
	if (info->version < 1 || !info->map_entries)
		return "the start info has no memory map (PVH version 1 is needed)";
	for (size_t i = 0; text && text[i] && i < COMMAND_LINE - 1; i++)
		command_line[i] = text[i];
	for (uint32_t i = 0; i < info->map_entries && ram_count < MAX_EXTENTS; i++) {
		uint64_t start = ALIGN_UP(map[i].address, PAGE);
		uint64_t end = (map[i].address + map[i].size) & ~(PAGE - 1);

		if (map[i].type != MAP_RAM)
			continue;
		guest.memory += map[i].size;
		if (end > MAP_LIMIT)
			end = MAP_LIMIT;
		if (start < end)
			ram[ram_count++] = (struct extent){start, (end - start) / PAGE};
	}
	return NULL;
}

/* Tables for the RAM above 4 GiB, taken from *next on, which is moved. */
static const char *map_high(uint64_t *next)
{
	uint64_t *top = NULL, *pointers = NULL, *directory = NULL;

	for (unsigned int i = 0; i < ram_count; i++) {
		uint64_t end = ram[i].start + ram[i].pages * PAGE;
		uint64_t page = ram[i].start & ~(LARGE_PAGE - 1);

		for (page = page < 4 * GIB ? 4 * GIB : page; page < end; page += LARGE_PAGE) {
			uint64_t *slot;

			if (!memory_is_ram(*next, 4 * PAGE))
				return "there is no room for page tables above the image";
			if (!top) {
				top = memset((void *)*next, 0, PAGE);
				pointers = memset((void *)(*next + PAGE), 0, PAGE);
				top[0] = (uint64_t)pointers | ENTRY_TABLE;
				for (uint64_t g = 0; g < 4; g++)
					pointers[g] = ((uint64_t)low_directories + g * PAGE) |
						      ENTRY_TABLE;
				*next += 2 * PAGE;
			}
			slot = &top[page / (512 * GIB)];
			if (!*slot) {
				*slot = *next | ENTRY_TABLE;
				memset((void *)*next, 0, PAGE);
				*next += PAGE;
			}
			pointers = (uint64_t *)(*slot & ~(PAGE - 1));
			slot = &pointers[page / GIB % 512];
			if (!*slot) {
				*slot = *next | ENTRY_TABLE;
				memset((void *)*next, 0, PAGE);
				*next += PAGE;
			}
			directory = (uint64_t *)(*slot & ~(PAGE - 1));
			directory[page / LARGE_PAGE % 512] = page | ENTRY_LARGE;
		}
	}
	if (top)
		cpu_set_page_tables((uint64_t)top);
	return NULL;
}

const char *memory_init(const struct start_info *info, const char **text)
{
	uint64_t next = ALIGN_UP((uint64_t)guest_image_end, PAGE);

	*text = read_start_info(info);
	if (*text)
		return NULL;
	*text = map_high(&next);
	if (*text)
		return NULL;
	next = ALIGN_UP(next, LARGE_PAGE);
	for (unsigned int i = 0; i < ram_count; i++) {
		uint64_t start = ram[i].start < next ? next : ram[i].start;
		uint64_t end = ram[i].start + ram[i].pages * PAGE;

		if (start < end) {
			usable[usable_count++] = (struct extent){start, (end - start) / PAGE};
			guest.usable += end - start;
		}
	}
	return command_line;
}

void *memset(void *to, int value, size_t length)
{
	void *at = to;

	__asm__ volatile("rep stosb" : "+D"(at), "+c"(length) : "a"(value) : "memory");
	return to;
}

void *memcpy(void *to, const void *from, size_t length)
{
	void *at = to;

	__asm__ volatile("rep movsb" : "+D"(at), "+S"(from), "+c"(length)::"memory");
	return to;
}
